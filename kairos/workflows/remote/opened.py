"""Processors that the settings name: in this process, or separate services."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from kairos.settings import RetrievalSettings
from kairos.workflows.remote.remote import RemoteProcessors, remote_processors
from kairos.workflows.retrieve.service import ProcessorService, processor_service
from kairos.workflows.retrieve.worked import Note

AnyProcessors = ProcessorService | RemoteProcessors


@asynccontextmanager
async def opened_processors(
    settings: RetrievalSettings,
    environ: Mapping[str, str],
    note: Note = lambda _: None,
    at_once: int | None = None,
) -> AsyncIterator[AnyProcessors]:
    """Yield processors. Separate services count for themselves, and have their own limits.

    `note`, `at_once`: see `processors`.

    Raises:
        SetupError: they cannot be used.
    """
    if settings.processors:
        async with remote_processors(settings, environ) as remote:
            yield remote
        return
    async with processor_service(settings, environ, note, at_once) as here:
        yield here

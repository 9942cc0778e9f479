"""Batches in a process that serves clients, if a directory is set for them, and their metrics."""

import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from typing import TYPE_CHECKING, Protocol

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from kairos.batches.records import ENDED, OPEN, NoBatches
from kairos.gateway import Access, Gateway
from kairos.host import WallClock
from kairos.observe import counter, gauge
from kairos.settings import BatchSettings

if TYPE_CHECKING:
    from fastapi import FastAPI

    from kairos.batches.store import BatchStore

_LINES = "Lines of batches that ended, since their directory was created"


class BatchService(Protocol):
    def add_to(self, app: "FastAPI") -> None:
        """Add the routes; call it before the routes that pass requests on are added."""

    def background(self) -> list[Coroutine[None, None, None]]:
        """Return the coroutines to run concurrently with the service."""


class BatchesOff:
    """Routes that refuse every request: batches are off."""

    def __init__(self, access: Access) -> None:
        self._access = access

    def add_to(self, app: "FastAPI") -> None:
        from kairos.gateway import refuse_routes

        paths, methods = ["/v1/files", "/v1/batches"], ["GET", "POST", "DELETE"]
        refuse_routes(app, self._access, NoBatches, paths, methods)

    def background(self) -> list[Coroutine[None, None, None]]:
        return []


@contextlib.asynccontextmanager
async def serving_batches(
    settings: BatchSettings | None, access: Access, gateway: Gateway
) -> AsyncIterator[BatchService]:
    """Yield the batches of a process. Raises SetupError: the directory cannot hold batches."""
    if settings is None:
        yield BatchesOff(access)
        return
    from kairos.batches.batches_on import BatchesOn
    from kairos.batches.store import KeptBatches

    with contextlib.closing(KeptBatches(settings)) as kept:
        yield BatchesOn(kept, access, gateway, WallClock().now)


class BatchFigures(Collector):
    """Metrics of batches, as of the last read of the database."""

    def __init__(self, batches: "BatchStore") -> None:
        self._batches = batches
        self._lines: Mapping[str, int] = {}
        self._open: Mapping[str, int] = {}

    def look(self) -> None:
        """Read the counts again. Raises sqlite3.Error."""
        self._lines, self._open = self._batches.totals(), self._batches.open_by_state()

    def collect(self) -> Iterator[Metric]:
        lines = {str(state): self._lines.get(state, 0) for state in ENDED}
        open_now = {str(state): self._open.get(state, 0) for state in OPEN}
        yield counter("kairos_batch_lines", _LINES, lines, "state")
        yield gauge("kairos_batches_open", "Batches that have not ended", open_now, "state")


@contextlib.contextmanager
def batch_figures(
    settings: BatchSettings | None, show: Callable[[Collector], None]
) -> Iterator[list[Coroutine[None, None, None]]]:
    """Show the metrics if batches are on; yield the coroutines to run concurrently.

    Raises:
        SetupError: the directory cannot hold batches.
    """
    if settings is None:
        yield []
        return
    from kairos.batches.store import KeptBatches
    from kairos.host import look_again

    with contextlib.closing(KeptBatches(settings)) as kept:
        figures = BatchFigures(kept.batches)
        show(figures)
        yield [look_again(figures.look)]

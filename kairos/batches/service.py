"""Batches in a process that serves clients, if a directory is set for them."""

import contextlib
from collections.abc import AsyncIterator, Coroutine
from typing import TYPE_CHECKING, Protocol

from kairos.gateway import Access, Gateway, authorization_of
from kairos.host import WallClock
from kairos.settings import BatchSettings

if TYPE_CHECKING:
    from fastapi import FastAPI


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
        from fastapi import Request as HttpRequest
        from fastapi.responses import Response

        from kairos.batches.records import NoBatches

        async def refuse(request: HttpRequest) -> Response:
            await self._access.admitted_caller(authorization_of(request))
            raise NoBatches

        for path in (
            "/v1/files",
            "/v1/files/{rest:path}",
            "/v1/batches",
            "/v1/batches/{rest:path}",
        ):
            app.api_route(path, methods=["GET", "POST", "DELETE"])(refuse)

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
    from kairos.batches.kept import KeptBatches

    with contextlib.closing(KeptBatches(settings)) as kept:
        yield BatchesOn(kept, access, gateway, WallClock().now)

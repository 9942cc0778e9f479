"""A processor as a service of its own: `kairos process`.

It speaks plain HTTP: values are fetched from the process that holds them, and need not pass
through a bus. Any key grants access to everything, so keys are for processes that run flows, and
for other processors.
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Annotated

import aiohttp
import msgspec
from fastapi import FastAPI
from fastapi import Path as InPath
from fastapi import Request as HttpRequest
from fastapi.responses import Response

from kairos import __version__
from kairos.cluster.local.changes import of_keys
from kairos.cluster.local.reload import Reload
from kairos.core import BodyTooLarge, InvalidRequest, SetupError, TooMuchHeld, Unavailable
from kairos.gateway import (
    Access,
    Probes,
    ServiceTls,
    access_of,
    answer_errors_as_openai_does,
    authorization_of,
    listening_socket,
    pages_of,
    server_of,
    serving_ports,
    url_of,
)
from kairos.request import Caller
from kairos.settings import RetrievalSettings, Settings, is_loopback, is_postgres
from kairos.workflows import (
    ABOUT,
    HELD,
    MOST_BYTES,
    TASKS,
    AboutProcessor,
    HeldStore,
    ProcessorFigures,
    ProcessorPeers,
    ProcessorService,
    ProcessorTask,
    ProcessorWork,
    ValuesLost,
    processor_service,
)

_MOST_TASKS = 1_024  # concurrent ones; clients retry beyond that
_MOST_BODIES = 512 << 20  # bytes of all bodies being read
_OLD_S = 30.0  # between removals of unused values
_PEER_CONNECT_S, _PEER_S = 5.0, 120.0

_RunName = Annotated[str, InPath(pattern="^[A-Za-z0-9_-]{1,64}$")]
_ValueId = Annotated[str, InPath(pattern="^[0-9a-f]{32}$")]
_read_task = msgspec.json.Decoder(ProcessorTask).decode


class ProcessorRoutes:
    """Routes of the processor. They bound the number of tasks and the bytes of their bodies."""

    def __init__(
        self, work: ProcessorWork, about: AboutProcessor, access: Access, figures: ProcessorFigures
    ) -> None:
        self._work, self._access, self._figures = work, access, figures
        self._about = msgspec.json.encode(about)
        self._tasks = self._body_bytes = 0

    def add_to(self, app: FastAPI) -> None:
        app.get(f"/v1{ABOUT}")(self._tell)
        app.post(f"/v1{TASKS}")(self._do)
        app.get(f"/v1{HELD}/{{run}}/{{value_id}}")(self._give)
        app.delete(f"/v1{HELD}/{{run}}")(self._drop)

    async def _caller(self, request: HttpRequest) -> Caller:
        return await self._access.admitted(authorization_of(request))

    async def _tell(self, request: HttpRequest) -> Response:
        await self._caller(request)
        return _json(self._about)

    async def _do(self, request: HttpRequest) -> Response:
        caller = await self._caller(request)
        with self._one_more() as sizes:
            task = await self._task(request, sizes)
            reply = await self._work.do(task, caller.tenant)
            return _json(msgspec.json.encode(reply))

    async def _give(self, request: HttpRequest, run: _RunName, value_id: _ValueId) -> Response:
        caller = await self._caller(request)
        value = self._work.store.get((caller.tenant, run), value_id)
        if value is None:
            raise ValuesLost([value_id])
        self._figures.passed_bytes += len(value)
        return _json(value)

    async def _drop(self, request: HttpRequest, run: _RunName) -> Response:
        caller = await self._caller(request)
        self._work.store.drop_run((caller.tenant, run))
        return Response(status_code=204)

    async def _task(self, request: HttpRequest, sizes: list[int]) -> ProcessorTask:
        """Read a task from the request's body.

        Raises:
            KairosError: The body is too large, or is not a task.
        """
        body = bytearray()
        async for part in request.stream():
            sizes.append(len(part))
            self._body_bytes += len(part)
            if self._body_bytes > _MOST_BODIES:
                raise TooMuchHeld(_MOST_BODIES)
            body += part
            if len(body) > MOST_BYTES:
                raise BodyTooLarge(MOST_BYTES)
        try:
            return await asyncio.to_thread(_read_task, body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidRequest(f"not a valid task for a processor: {error}") from None

    @contextlib.contextmanager
    def _one_more(self) -> Iterator[list[int]]:
        """Count one more task in the block; yield a list for the sizes of its body's parts.

        Raises:
            Unavailable: Too many tasks are in progress.
        """
        if self._tasks >= _MOST_TASKS:
            raise Unavailable(f"{_MOST_TASKS} tasks are in progress, which is the limit; try later")
        sizes: list[int] = []
        self._tasks += 1
        try:
            yield sizes
        finally:
            self._tasks -= 1
            self._body_bytes -= sum(sizes)


class ProcessorHost:
    """A running processor."""

    def __init__(self, work: ProcessorWork, reload: Reload, url: str) -> None:
        self.work, self.reload, self.url = work, reload, url


@contextlib.asynccontextmanager
async def processing_host(settings: Settings) -> AsyncIterator[ProcessorHost]:
    """Perform tasks until the block ends; running ones may finish.

    Raises:
        SetupError: Anyone could reach the port without a key, the port is taken, or a model or
            collection in `[retrieval]` cannot be used.
    """
    check_guarded(settings)
    retrieval = settings.retrieval or RetrievalSettings()
    access, tls, figures = access_of(settings), ServiceTls(settings), ProcessorFigures()
    timeout = aiohttp.ClientTimeout(total=_PEER_S, sock_connect=_PEER_CONNECT_S)
    async with contextlib.AsyncExitStack() as stack:
        sock = stack.enter_context(listening_socket(settings.host, settings.port))
        found = await stack.enter_async_context(
            processor_service(retrieval, os.environ, figures.note)
        )
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), timeout=timeout, auto_decompress=False
        )
        await stack.enter_async_context(session)
        peers = ProcessorPeers(session, retrieval.processor_services, os.environ)
        work = ProcessorWork(found, HeldStore(retrieval.hold_mb << 20), peers)
        app = _app(ProcessorRoutes(work, _about(found, retrieval), access, figures))
        Probes(lambda: True, lambda: figures.collect(work)).add_to(app)
        beside = [_forgetting(work.store), *access.background()]
        server = server_of(app, tls=tls.callers, pages=pages_of(settings, access))
        await stack.enter_async_context(serving_ports({sock: server}, beside))
        reload = Reload(settings, of_keys(access) | tls.changes())
        yield ProcessorHost(work, reload, url_of(sock, has_tls=tls.is_on))


def check_guarded(settings: Settings) -> None:
    """Check that not everyone can use the processor.

    Raises:
        SetupError: The port is reachable from other hosts, without keys or client certificates.
    """
    guarded = settings.asks_for_keys or settings.tls_client_ca is not None
    if not is_loopback(settings.host) and not guarded:
        raise SetupError(
            f"{settings.host} can be reached from elsewhere, and nothing says who may ask: name "
            "keys (`kairos keys create` makes them, keys_path names their file) or tls_client_ca"
        )


def _app(routes: ProcessorRoutes) -> FastAPI:
    app = FastAPI(
        title="Kairos's processor",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
    )
    routes.add_to(app)
    answer_errors_as_openai_does(app)
    return app


def _about(found: ProcessorService, retrieval: RetrievalSettings) -> AboutProcessor:
    return AboutProcessor(found.models, _identity(retrieval.collections))


def _identity(collections: str | None) -> str | None:
    """Return an id that processors with the same collections (database, directory) share."""
    if collections is None:
        return None
    if not is_postgres(collections):
        collections = f"{socket.gethostname()} {Path(collections).resolve()}"
    return blake2b(collections.encode(), digest_size=16).hexdigest()


async def _forgetting(store: HeldStore) -> None:
    while True:
        await asyncio.sleep(_OLD_S)
        store.forget_old()


def _json(content: bytes) -> Response:
    return Response(content, media_type="application/json")

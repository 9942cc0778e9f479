"""Answers of a port to requests that are not calls.

The few routes that probes and clients request often are answered without FastAPI. All others are
answered by an application that is built on the first such request: to import FastAPI and build the
application takes a third of a second of CPU time. It is built in a thread, so that calls go on.
"""

import asyncio
from collections.abc import Callable, Iterable, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from kairos.core import FactSink
from kairos.gateway.auth.access import Access
from kairos.gateway.server.openai_errors import REQUEST_ID, new_id, send_error, send_whole
from kairos.observe import OnError
from kairos.request import (
    ASGIApp,
    NamedRoutes,
    Receive,
    RouteRefused,
    Scope,
    Send,
    valid_identifier,
)

if TYPE_CHECKING:
    from fastapi import FastAPI
_ALLOWED = "GET, HEAD, OPTIONS"
MetricFamilies = Callable[[], Iterable[Metric]]


class RouteTaker(Protocol):
    """ASGI application for some of the requests."""

    def takes(self, scope: Scope) -> bool: ...

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...


class LateApp:
    """ASGI application that is built on its first request."""

    def __init__(self, build: Callable[[], ASGIApp]) -> None:
        """Wrap an application. `build` is called once, in a thread."""
        self._build = build
        self._building: asyncio.Task[ASGIApp] | None = None
        self._app: ASGIApp | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app or await self._built()
        await app(scope, receive, send)

    async def _built(self) -> ASGIApp:
        if self._building is None:
            self._building = asyncio.create_task(asyncio.to_thread(self._build))
        self._app = await asyncio.shield(self._building)  # a client that leaves does not cancel it
        return self._app


class PortFront:
    """ASGI application that passes a request to the first taker that takes it, or to `app`."""

    def __init__(self, takers: Sequence[RouteTaker], app: ASGIApp) -> None:
        self._takers, self._app = takers, app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answering = next((each for each in self._takers if each.takes(scope)), self._app)
        await answering(scope, receive, send)


def name_answers(app: ASGIApp) -> ASGIApp:
    """Return `app` with an `x-request-id` in each answer: the caller's, or the answer's, or new."""

    async def named(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_named(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                given = valid_identifier(dict(scope["headers"]).get(REQUEST_ID))
                others = [each for each in message["headers"] if each[0] != REQUEST_ID]
                if given is not None or len(others) == len(message["headers"]):
                    id_ = (given or new_id()).encode()
                    message["headers"] = [*others, (REQUEST_ID, id_)]
            await send(message)

        await app(scope, receive, send_named)

    return named


def clients_front(
    sink: FactSink,
    takers: Sequence[RouteTaker],
    access: Access,
    add_rooms: Iterable[Callable[["FastAPI"], None]],
    on_error: OnError,
) -> ASGIApp:
    """Return the application for client requests that are not calls.

    `takers` answer before the application does. `add_rooms` add routes of other packages to the
    application. `on_error` counts errors.
    """

    def build() -> ASGIApp:
        from kairos.gateway.api.app import build_app

        return build_app(sink, access, add_rooms, on_error)

    return NamedRoutes(name_answers(PortFront(takers, LateApp(build))))


class _Families(Collector):
    def __init__(self, families: MetricFamilies) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families()


class Probes:
    """`RouteTaker` for what supervisors and Prometheus poll on every service."""

    def __init__(self, is_well: Callable[[], bool], metrics: MetricFamilies) -> None:
        """Create the routes. `is_well` returns whether the process can do its work."""
        self._is_well, self._families = is_well, _Families(metrics)

    def takes(self, scope: Scope) -> bool:
        return scope["path"] in ("/health", "/metrics")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        method, path = scope["method"], scope["path"]
        if method != "GET":
            await send_error(
                RouteRefused(405, f"there is no {method} {path!r} here", _ALLOWED), send
            )
        elif path == "/health":
            await send_whole(send, 200 if self._is_well() else 503, b"")
        else:
            accepted = (value for name, value in scope["headers"] if name == b"accept")
            content, kind = self._figures(next(accepted, b"").decode("latin-1"))
            await send_whole(send, 200, content, [(b"content-type", kind.encode())])

    def _figures(self, accept: str) -> tuple[bytes, str]:
        """Return the metrics and their content type: OpenMetrics if accepted, else text."""
        try:
            encode, kind = choose_encoder(accept)
        except (TypeError, ValueError):  # the version is not a number
            encode, kind = choose_encoder("")
        return encode(self._families), kind

"""Answers of a port to requests that are not calls.

The few routes that probes and clients request often are answered without FastAPI. All others are
answered by an application that is built on the first such request: to import FastAPI and build the
application takes a third of a second of CPU time. It is built in a thread, so that calls go on.
"""

import asyncio
from collections.abc import Callable, Iterable, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from kairos.gateway.api.gateway import Gateway
from kairos.gateway.auth.access import Access
from kairos.gateway.server.openai_errors import REQUEST_ID, new_id
from kairos.observe import AuditLog
from kairos.request import ASGIApp, NamedRoutes, Receive, Scope, Send

if TYPE_CHECKING:
    from fastapi import FastAPI


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
    """ASGI application that passes a request to the first taker that takes it, or to `app`.

    Every answer without an `x-request-id` gets one; calls set their own.
    """

    def __init__(self, takers: Sequence[RouteTaker], app: ASGIApp) -> None:
        self._takers, self._app = takers, app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_named(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                headers = message["headers"]
                if not any(name == REQUEST_ID for name, _ in headers):
                    headers.append((REQUEST_ID, new_id().encode()))
            await send(message)

        answering = next((each for each in self._takers if each.takes(scope)), self._app)
        await answering(scope, receive, send_named)


def clients_front(
    gateway: Gateway,
    takers: Sequence[RouteTaker],
    access: Access,
    add_rooms: Iterable[Callable[["FastAPI"], None]],
    audit: AuditLog | None,
) -> ASGIApp:
    """Return the application for client requests that are not calls.

    `takers` answer before the application does, in addition to the passed-on routes. `add_rooms`
    add routes of other packages to the application. `audit` records refusals.
    """

    def build() -> ASGIApp:
        from kairos.gateway.api.app import build_app

        return build_app(gateway, access, add_rooms, audit)

    return NamedRoutes(PortFront((*takers, gateway), LateApp(build)))

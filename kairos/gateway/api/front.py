"""What a port is asked that is no call.

The few routes that probes and clients ask again and again are answered without FastAPI. All others
are answered by an application that is built when one of them is first asked for: to import FastAPI
and to build it takes a third of a second of CPU time. It is built in a thread, so that calls go on.
"""

import asyncio
from collections.abc import Callable, Iterable, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from kairos.gateway.api.gateway import Gateway
from kairos.gateway.auth.access import Access
from kairos.gateway.server.openai_errors import INTERNAL, RequestIds, send_error
from kairos.observe.audit_log import AuditLog
from kairos.request.client_response import ASGIApp, Receive, Scope, Send
from kairos.request.identity.agent_urls import NamedRoutes
from kairos.request.routes import is_passed_on

if TYPE_CHECKING:
    from fastapi import FastAPI


class RouteTaker(Protocol):
    """Answers some of the requests; an ASGI application for these."""

    def takes(self, scope: Scope) -> bool: ...

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...


class PassedOn:
    """Requests that nobody but an engine can answer: a `RouteTaker`."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def takes(self, scope: Scope) -> bool:
        """See `RouteTaker`."""
        return is_passed_on(scope["method"], scope["path"])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See `RouteTaker`."""
        await self._gateway(scope, receive, send)


class LateApp:
    """An ASGI application that is built when it is first asked for anything."""

    def __init__(self, build: Callable[[], ASGIApp]) -> None:
        """`build`: is called once, in a thread."""
        self._build = build
        self._building: asyncio.Task[ASGIApp] | None = None
        self._app: ASGIApp | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app or await self._built()
        await app(scope, receive, send)

    async def _built(self) -> ASGIApp:
        if self._building is None:
            self._building = asyncio.create_task(asyncio.to_thread(self._build))
        self._app = await asyncio.shield(self._building)  # whoever leaves does not end it
        return self._app


class PortFront:
    """Has a request answered by the first of the takers that takes it, or by the application."""

    def __init__(self, takers: Sequence[RouteTaker], app: ASGIApp) -> None:
        self._takers, self._app = takers, app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answering = next((each for each in self._takers if each.takes(scope)), self._app)
        is_started = False

        async def noted(message: MutableMapping[str, Any]) -> None:
            nonlocal is_started
            is_started = True
            await send(message)

        try:
            await answering(scope, receive, noted)
        except Exception:
            if not is_started:  # it is our own, and logged by who asked for an answer
                await send_error(INTERNAL, send)
            raise


def clients_front(
    gateway: Gateway,
    takers: Sequence[RouteTaker],
    access: Access,
    add_rooms: Iterable[Callable[["FastAPI"], None]],
    audit: AuditLog | None,
) -> ASGIApp:
    """Return what clients reach with all but calls. `takers`: beside what is passed on. `add_rooms`
    add the routes of other rooms to the application. `audit`: is told who is refused."""

    def build() -> ASGIApp:
        from kairos.gateway.api.app import build_app

        return build_app(gateway, access, add_rooms, audit)

    front = PortFront((*takers, PassedOn(gateway)), LateApp(build))
    return RequestIds(NamedRoutes(front))

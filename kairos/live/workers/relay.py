"""What a worker is asked that only the decider knows: passed on to it, and its answer back."""

from pathlib import Path
from typing import Self

import aiohttp
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from kairos.errors import Unavailable
from kairos.header_names import REQUEST_ID
from kairos.live.frontend.openai_errors import error_response

TIMEOUT_S = 15.0  # in which a decider that died is started again
PATHS = (
    "/health",
    "/metrics",
    "/v1/models",
    "/v1/models/{name:path}",
    "/v1/workflows/{rest:path}",
    "/v1/agents",
)
_FORWARDED = ("authorization", "accept", REQUEST_ID)
_RESTARTED = "whoever knows is being started again; try again"
_DROPPED = {"content-length", "transfer-encoding", "connection", "date", "server"}


class Relay:
    """An async context manager, and an ASGI application. Requests for these routes need no body."""

    def __init__(self, path: Path) -> None:
        """`path`: the Unix socket at which the decider answers HTTP."""
        self._path = path
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.UnixConnector(str(self._path), force_close=True),
            timeout=aiohttp.ClientTimeout(total=TIMEOUT_S),
            auto_decompress=False,
        )
        return self

    async def __aexit__(self, *_raised: object) -> None:
        if self._session is not None:
            await self._session.close()

    def add_routes(self, app: FastAPI) -> None:
        """Before those that the application has of the same paths."""
        app.router.routes[:0] = [Route(path, self) for path in PATHS]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert self._session is not None, "used outside of `async with`"
        request = Request(scope)
        headers = {name: request.headers[name] for name in _FORWARDED if name in request.headers}
        url = request.url.replace(scheme="http", netloc="decider")
        try:
            async with self._session.request(
                request.method, str(url), headers=headers, allow_redirects=False
            ) as answer:
                kept = {n: v for n, v in answer.headers.items() if n.lower() not in _DROPPED}
                response: Response = Response(await answer.read(), answer.status, kept)
        except (aiohttp.ClientError, TimeoutError, OSError):
            response = error_response(Unavailable(_RESTARTED))
        await response(scope, receive, send)

"""What a worker is asked that only the decider knows: passed on to it, and its answer back."""

import re
from pathlib import Path
from typing import Self
from urllib.parse import quote

import aiohttp
from yarl import URL

from kairos.errors import Unavailable
from kairos.header_names import RAW, REQUEST_ID
from kairos.live.frontend.openai_errors import send_error, send_whole
from kairos.live.request.client_response import Receive, Scope, Send

_SAFE = "/:@!$&'()*+,;=-._~"  # in a path
TIMEOUT_S = 15.0  # in which a decider that died is started again
_PATHS = re.compile(r"/(health|metrics)|/v1/(models(/.*)?|workflows/.*|agents)", re.DOTALL)
_FORWARDED = {b"authorization", b"accept", RAW[REQUEST_ID]}
_RESTARTED = "whoever knows is being started again; try again"
_DROPPED = {b"content-length", b"transfer-encoding", b"connection", b"date", b"server"}


class Relay:
    """An async context manager, and a `RouteTaker`. Requests for these routes need no body."""

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

    def takes(self, scope: Scope) -> bool:
        """See `RouteTaker`: whichever method is used."""
        return _PATHS.fullmatch(scope["path"]) is not None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        """See `RouteTaker`."""
        assert self._session is not None, "used outside of `async with`"
        headers = {
            name.decode(): value.decode("latin-1")
            for name, value in scope["headers"]
            if name in _FORWARDED
        }
        target = URL.build(
            scheme="http",
            host="decider",
            path=quote(scope["path"], safe=_SAFE),
            query_string=scope["query_string"].decode("latin-1"),
            encoded=True,
        )
        try:
            async with self._session.request(
                scope["method"], target, headers=headers, allow_redirects=False
            ) as answer:
                kept = [each for each in answer.raw_headers if each[0].lower() not in _DROPPED]
                content = await answer.read()
        except (aiohttp.ClientError, TimeoutError, OSError):
            await send_error(Unavailable(_RESTARTED), send)
            return
        await send_whole(send, answer.status, content, kept)

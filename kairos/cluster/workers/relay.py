"""What a worker is asked that only the decider knows: passed on to it, and its answer back."""

import asyncio
import re
from pathlib import Path
from urllib.parse import quote

import httptools

from kairos.core.errors import Unavailable
from kairos.core.header_names import RAW, REQUEST_ID
from kairos.gateway.auth.access import KEY_HEADERS
from kairos.gateway.server.openai_errors import send_error, send_whole
from kairos.proxy.asked import header_lines
from kairos.request.client_response import Receive, Scope, Send

_SAFE = "/:@!$&'()*+,;=-._~"  # in a path
TIMEOUT_S = 15.0  # in which a decider that died is started again
_PATHS = re.compile(r"/(health|metrics)|/v1/(models(/.*)?|workflows/.*|agents)", re.DOTALL)
_HEADERS = (b"host: decider", b"connection: close")
_PIECE_BYTES = 1 << 16
_FORWARDED = {b"authorization", *KEY_HEADERS, b"accept", RAW[REQUEST_ID]}
_RESTARTED = "whoever knows is being started again; try again"
_DROPPED = {b"content-length", b"transfer-encoding", b"connection", b"date", b"server"}


class Relay:
    """A `RouteTaker`. Requests for these routes need no body."""

    def __init__(self, path: Path) -> None:
        """`path`: the Unix socket at which the decider answers HTTP."""
        self._path = path

    def takes(self, scope: Scope) -> bool:
        """See `RouteTaker`: whichever method is used."""
        return _PATHS.fullmatch(scope["path"]) is not None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        """See `RouteTaker`."""
        target = quote(scope["path"], safe=_SAFE).encode()
        if query := scope["query_string"]:
            target += b"?" + query
        lines = [b"%b %b HTTP/1.1" % (scope["method"].encode(), target), *_HEADERS]
        lines += [b"%b: %b" % each for each in scope["headers"] if each[0] in _FORWARDED]
        try:
            answer = _Answer(is_bodiless=scope["method"] == "HEAD")
            await self._ask(header_lines(lines) + b"\r\n", answer)
        except (OSError, ValueError, httptools.HttpParserError):
            await send_error(Unavailable(_RESTARTED), send)
            return
        await send_whole(send, answer.status, bytes(answer.body), answer.headers)

    async def _ask(self, request: bytes, answer: "_Answer") -> None:
        """Raises OSError, HttpParserError: there is no answer, or none that is whole."""
        async with asyncio.timeout(TIMEOUT_S):
            reader, writer = await asyncio.open_unix_connection(self._path)
            try:
                writer.write(request)
                while not answer.is_whole:
                    data = await reader.read(_PIECE_BYTES)
                    if not data:
                        raise ConnectionResetError
                    answer.feed(data)
            finally:
                writer.close()


class _Answer:
    """What the decider answers, as its parser finds it."""

    def __init__(self, *, is_bodiless: bool) -> None:
        """`is_bodiless`: whatever its headers say."""
        self._is_bodiless = is_bodiless
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.body = bytearray()
        self.is_whole = False
        self._parser = httptools.HttpResponseParser(self)

    def feed(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() not in _DROPPED:
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        self.is_whole = self._is_bodiless

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_message_complete(self) -> None:
        self.is_whole = True

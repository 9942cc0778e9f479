"""Relay of requests that only the decider can answer, from a worker to the decider."""

import asyncio
import re
from pathlib import Path
from urllib.parse import quote

import httptools

from kairos.core import RAW_HEADERS, Header, Unavailable
from kairos.gateway import KEY_HEADERS, send_error, send_whole
from kairos.proxy import header_lines
from kairos.request import Receive, Scope, Send

_SAFE = "/:@!$&'()*+,;=-._~"  # in a path
TIMEOUT_S = 15.0  # enough for a decider that died to restart
_PATHS = re.compile(r"/(health|metrics)|/v1/(models(/.*)?|workflows/.*|agents)", re.DOTALL)
_HEADERS = (b"host: decider", b"connection: close")
_PIECE_BYTES = 1 << 16
_FORWARDED = {b"authorization", *KEY_HEADERS, b"accept", RAW_HEADERS[Header.REQUEST_ID]}
_RESTARTED = "the process that decides is restarting; try again"
_DROPPED = {b"content-length", b"transfer-encoding", b"connection", b"date", b"server"}


class Relay:
    """A `RouteTaker`. Requests for these routes need no body."""

    def __init__(self, path: Path) -> None:
        """Create the relay. `path` is the Unix socket at which the decider serves HTTP."""
        self._path = path

    def takes(self, scope: Scope) -> bool:
        """Return whether the path is one of the decider's, for any method."""
        return _PATHS.fullmatch(scope["path"]) is not None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
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
        """Send the request to the decider, and feed `answer` with its response.

        Raises:
            OSError, HttpParserError: There was no answer, or only part of one.
        """
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
    """The decider's answer, filled by the HTTP parser's callbacks."""

    def __init__(self, *, is_bodiless: bool) -> None:
        """Create an empty answer. `is_bodiless`: it has no body, regardless of its headers."""
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

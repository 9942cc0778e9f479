"""HTTP/1.1 to engines over kept-alive connections: what a call needs, and no more.

A general client spends more on a call than all that Kairos does with it: `make profile` has the
shares. This one sends one request at a time on a connection, parses the answer with llhttp
(`httptools`), and hands out its body as it comes. Redirects, cookies, proxies, pipelining and
compression are not its business. An engine is not trusted: the size of its headers is bounded, and
so is what is held of a body that nobody reads.
"""

import asyncio
import socket
import ssl
from collections.abc import Sequence

from yarl import URL

from kairos.live.process.pace import LoopPace
from kairos.live.proxy.engine_answer import (
    ConnectionBroke,
    EngineAnswer,
    EngineRefused,
    Limit,
)
from kairos.live.proxy.engine_link import EngineLink, Origin

# Below the 5 s after which vLLM's and llama.cpp's servers close an idle connection, so that a call
# does not meet a connection that is being closed at that moment.
KEEPALIVE_S = 4.0
CONNECT_S = 5.0
_SAFE_TO_REPEAT = ("GET", "DELETE")

Headers = Sequence[tuple[bytes, bytes]]


class Connections:
    """To all engines; those that wait for their next call are closed after `KEEPALIVE_S`."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.pace = LoopPace()
        self._idle: dict[Origin, list[EngineLink]] = {}
        self._sweep: asyncio.TimerHandle | None = None
        self._tls: ssl.SSLContext | None = None

    def close(self) -> None:
        if self._sweep is not None:
            self._sweep.cancel()
        for connection in [each for idle in self._idle.values() for each in idle]:
            connection.abort()
        self._idle.clear()

    async def send(
        self, method: str, url: URL, headers: Headers, body: bytes, limit: Limit
    ) -> EngineAnswer:
        """Send a request and return once status and headers of the answer are here.

        Raises:
            Refused: nothing listens there.
            OSError: no connection, or it broke before an answer began.
            TimeoutError: no connection in time, or nothing came.
        """
        key = url.scheme, url.raw_host or "", url.port or 0
        head = _head(method, url, headers, body)
        connection = self._take(key)
        while connection is not None:  # an engine may close what waits just as it is used
            answer = connection.send(head, body, limit)
            try:
                return await _begun(answer)
            except ConnectionBroke:
                if answer.began or method not in _SAFE_TO_REPEAT:
                    raise
            connection = self._take(key)
        connection = await self._connect(key)
        return await _begun(connection.send(head, body, limit))

    def _take(self, key: Origin) -> EngineLink | None:
        idle = self._idle.get(key)
        while idle:
            connection = idle.pop()  # the latest: those that are too many grow old
            if connection.is_open:
                return connection
        return None

    async def _connect(self, key: Origin) -> EngineLink:
        scheme, host, port = key
        tls = self._context() if scheme == "https" else None
        async with asyncio.timeout(CONNECT_S):
            found = await self.loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            errors: list[OSError] = []
            for family, _, _, _, address in found:
                try:
                    _, connection = await self.loop.create_connection(
                        lambda: EngineLink(self, key),
                        str(address[0]),
                        int(address[1]),
                        family=family,
                        ssl=tls,
                        server_hostname=host if tls else None,
                    )
                except OSError as error:
                    errors.append(error)
                else:
                    return connection
        if all(isinstance(each, ConnectionRefusedError) for each in errors):
            raise EngineRefused(f"nothing listens at {host}:{port}")
        raise errors[0]

    def _context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = ssl.create_default_context()
        return self._tls

    def keep(self, connection: EngineLink, key: Origin) -> None:
        """It waits for its next call."""
        connection.idle_since = self.loop.time()
        self._idle.setdefault(key, []).append(connection)
        if self._sweep is None:
            self._sweep = self.loop.call_later(KEEPALIVE_S, self._close_idle)

    def lost(self, connection: EngineLink, key: Origin) -> None:
        idle = self._idle.get(key, [])
        if connection in idle:
            idle.remove(connection)

    def _close_idle(self) -> None:
        self._sweep = None
        oldest = now = self.loop.time()
        for key, idle in list(self._idle.items()):
            for connection in [each for each in idle if now - each.idle_since >= KEEPALIVE_S]:
                idle.remove(connection)
                connection.abort()
            oldest = min(oldest, *(each.idle_since for each in idle)) if idle else oldest
            if not idle:
                del self._idle[key]
        if self._idle:
            self._sweep = self.loop.call_at(oldest + KEEPALIVE_S, self._close_idle)


async def _begun(answer: EngineAnswer) -> EngineAnswer:
    """Once it has begun. Whoever stops to wait before that gives up the call."""
    try:
        await answer.headers()
    except BaseException:
        answer.close()
        raise
    return answer


def _head(method: str, url: URL, headers: Headers, body: bytes) -> bytes:
    """Request line and headers, as bytes; none of them can end its line early."""
    lines = [
        f"{method} {url.raw_path_qs} HTTP/1.1".encode("ascii"),
        b"Host: " + _host(url),
        *(b"%b: %b" % pair for pair in headers),
    ]
    if body or method not in _SAFE_TO_REPEAT:
        lines.append(b"Content-Length: %d" % len(body))
    breaks = len(lines) - 1
    head = b"\r\n".join(lines)
    if head.count(b"\r") != breaks or head.count(b"\n") != breaks or b"\0" in head:
        raise ValueError("a header has a line break in it")
    return head + b"\r\n\r\n"


def _host(url: URL) -> bytes:
    return url.raw_authority.rpartition("@")[2].encode("ascii")

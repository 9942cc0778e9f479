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
from collections.abc import Callable, Sequence
from typing import cast

import httptools
from yarl import URL

from kairos.live.process.pace import LoopPace
from kairos.live.proxy.engine_answer import (
    ConnectionBroke,
    EngineAnswer,
    EngineRefused,
    Limit,
    NothingCame,
)

# Below the 5 s after which vLLM's and llama.cpp's servers close an idle connection, so that a call
# does not meet a connection that is being closed at that moment.
KEEPALIVE_S = 4.0
CONNECT_S = 5.0
_JOINED_BYTES = 1 << 16  # a larger request body is not copied behind its headers
_SAFE_TO_REPEAT = ("GET", "DELETE")

Headers = Sequence[tuple[bytes, bytes]]


class _Connection(asyncio.Protocol):
    """One connection, one call at a time; `data_received` and the callbacks of the parser."""

    _transport: asyncio.Transport  # once it is made

    def __init__(self, pool: "Connections", key: tuple[str, str, int]) -> None:
        self._pool, self._key = pool, key
        self._parser = httptools.HttpResponseParser(self)
        self._answer: EngineAnswer | None = None
        self._framed = False  # the answer says where it ends
        self._can_stay = True
        self._paused = False
        self._watch: asyncio.TimerHandle | None = None
        self._due_at = 0.0  # on the loop's clock: by then something must have come
        self.idle_since = 0.0

    @property
    def is_open(self) -> bool:
        return self._can_stay and not self._transport.is_closing()

    def send(self, head: bytes, body: bytes, limit: Limit) -> EngineAnswer:
        until = None if limit.whole_s is None else self._pool.loop.time() + limit.whole_s
        answer = self._answer = EngineAnswer(self, limit, until)
        self._parser = httptools.HttpResponseParser(self)
        self._framed = False
        if len(body) <= _JOINED_BYTES:
            self._transport.write(head + body)
        else:
            self._transport.writelines((head, body))
        return answer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        answer = self._answer
        if answer is None:  # nobody asked for anything: what says more than it should is not used
            self.abort()
            return
        answer.began = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError as error:
            self._break(error.__context__ or error)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._break(error)

    def eof_received(self) -> None:
        answer = self._answer
        if answer is not None and answer.has_headers and not self._framed:
            answer.end()

    def connection_lost(self, error: Exception | None) -> None:
        self._can_stay = False
        self._pool.lost(self, self._key)
        self._stop_watching()
        if self._answer is not None:
            self._answer.fail(ConnectionBroke(str(error) if error else "closed"))

    def _break(self, error: BaseException) -> None:
        if self._answer is not None:
            self._answer.fail(
                error if isinstance(error, ConnectionBroke) else ConnectionBroke(str(error))
            )
        self.abort()

    def on_message_begin(self) -> None:
        if self._answer is None or self._answer.is_whole:
            raise ConnectionBroke("the engine answers what nobody asked")

    def on_header(self, name: bytes, value: bytes) -> None:
        assert self._answer is not None
        self._answer.add_header(name, value)
        if name.lower() in (b"content-length", b"transfer-encoding"):
            self._framed = True

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        assert self._answer is not None
        if status < 200:
            if status == 101:
                raise ConnectionBroke("the engine wants to speak another protocol")
            self._answer.raw_headers.clear()
            return
        self._framed |= status in (204, 304)
        self._can_stay = self._framed and self._parser.should_keep_alive()
        self._answer.begin_body(status)

    def on_body(self, data: bytes) -> None:
        assert self._answer is not None
        self._answer.add(data)

    def on_message_complete(self) -> None:
        assert self._answer is not None
        if self._answer.has_headers:
            self._answer.end()

    def now(self) -> float:
        """On the clock by which it is expected."""
        return self._pool.loop.time()

    def begin(self, step: Callable[[], object]) -> None:
        """See `LoopPace`."""
        self._pool.pace.begin(step)

    def pause(self) -> None:
        if not self._paused:
            self._paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._paused:
            self._paused = False
            self._transport.resume_reading()

    def expect(self, due_at: float) -> None:
        """Something must come by then. One timer serves all pieces of an answer: when it ends, it
        is looked whether somebody still waits, and for how long."""
        self._due_at = due_at
        if self._watch is None:
            self._watch = self._pool.loop.call_at(due_at, self._look, due_at)

    def _look(self, due_at: float) -> None:
        self._watch = None
        answer = self._answer
        if answer is None or not answer.is_awaited:
            return
        if self._due_at > due_at:
            self._watch = self._pool.loop.call_at(self._due_at, self._look, self._due_at)
            return
        answer.fail(NothingCame())
        self.abort()

    def _stop_watching(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    def abort(self) -> None:
        self._can_stay = False
        self._stop_watching()
        self._transport.abort()

    def release(self, answer: EngineAnswer) -> None:
        if answer is not self._answer:
            return
        self._answer = None
        if not answer.is_whole or not self.is_open:
            self.abort()
            return
        self._stop_watching()
        self.resume()
        self._pool.keep(self, self._key)


class Connections:
    """To all engines; those that wait for their next call are closed after `KEEPALIVE_S`."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.pace = LoopPace()
        self._idle: dict[tuple[str, str, int], list[_Connection]] = {}
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

    def _take(self, key: tuple[str, str, int]) -> _Connection | None:
        idle = self._idle.get(key)
        while idle:
            connection = idle.pop()  # the latest: those that are too many grow old
            if connection.is_open:
                return connection
        return None

    async def _connect(self, key: tuple[str, str, int]) -> _Connection:
        scheme, host, port = key
        tls = self._context() if scheme == "https" else None
        async with asyncio.timeout(CONNECT_S):
            found = await self.loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            errors: list[OSError] = []
            for family, _, _, _, address in found:
                try:
                    _, connection = await self.loop.create_connection(
                        lambda: _Connection(self, key),
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

    def keep(self, connection: _Connection, key: tuple[str, str, int]) -> None:
        """It waits for its next call."""
        connection.idle_since = self.loop.time()
        self._idle.setdefault(key, []).append(connection)
        if self._sweep is None:
            self._sweep = self.loop.call_later(KEEPALIVE_S, self._close_idle)

    def lost(self, connection: _Connection, key: tuple[str, str, int]) -> None:
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

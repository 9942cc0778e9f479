"""One connection to an engine: a call at a time, and its answer."""

import asyncio
from collections.abc import Callable
from typing import Protocol, cast

import httptools

from kairos.live.process.pace import LoopPace
from kairos.live.proxy.engine_answer import (
    ConnectionBroke,
    EngineAnswer,
    Limit,
    NothingCame,
)

Origin = tuple[str, str, int]  # scheme, host, port

_JOINED_BYTES = 1 << 16  # a larger request body is not copied behind its headers


class Connections(Protocol):
    """Where connections are kept between calls."""

    loop: asyncio.AbstractEventLoop
    pace: LoopPace

    def keep(self, connection: "EngineLink", key: Origin) -> None:
        """It waits for its next call."""

    def lost(self, connection: "EngineLink", key: Origin) -> None:
        """It is gone."""


class EngineLink(asyncio.Protocol):
    """One connection, one call at a time; `data_received` and the callbacks of the parser."""

    _transport: asyncio.Transport  # once it is made

    def __init__(self, pool: Connections, key: Origin) -> None:
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

"""An engine's answer while it comes, and how it fails to."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Protocol

import msgspec

_MAX_HEADER_BYTES = 1 << 16  # of one answer, names and values
_HIGH_BYTES = 1 << 18  # of a body, held until somebody reads: beyond it the engine has to wait


class ConnectionBroke(ConnectionError):
    """The engine closed the connection, or broke HTTP, before its answer was whole."""


class EngineRefused(ConnectionRefusedError):
    """Nothing listens there."""


class NothingCame(TimeoutError):
    """No byte came within the time that was given."""


class Limit(msgspec.Struct, frozen=True):
    """How long an engine may take, in seconds: without a byte while somebody waits for one; and for
    the whole answer, where that comes in one piece."""

    stall_s: float
    whole_s: float | None = None


class EngineConnection(Protocol):
    """What an answer comes from."""

    def now(self) -> float:
        """On the clock by which it is expected."""

    def expect(self, due_at: float) -> None:
        """Something must come by then."""

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def abort(self) -> None: ...

    def release(self, answer: "EngineAnswer") -> None: ...

    def begin(self, step: Callable[[], object]) -> None:
        """See `Pace`."""


class EngineAnswer:
    """An engine's answer while it comes: status and headers first, then its body in pieces."""

    def __init__(self, connection: EngineConnection, limit: "Limit", until: float | None) -> None:
        """`until`: on the loop's clock, when all of it must be here."""
        self.status = 0
        self.raw_headers: list[tuple[bytes, bytes]] = []
        self._connection = connection
        self._stall_s, self._until = limit.stall_s, until
        self._pieces: deque[bytes] = deque()
        self._held_bytes = 0
        self._ended = False
        self._error: BaseException | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._is_woken = False
        self._header_bytes = 0
        self._piped: Callable[[bytes], bool] | None = None
        self._is_full = False  # who takes what is piped has to drain first
        self.began = False  # a byte of it has come
        self.has_headers = False

    @property
    def content_type(self) -> str:
        """Without its parameters; empty: it does not say."""
        for name, value in self.raw_headers:
            if name.lower() == b"content-type":
                return value.split(b";", 1)[0].strip().lower().decode("latin-1")
        return ""

    def at_eof(self) -> bool:
        """Whether all of it was read."""
        return self._ended and not self._pieces

    async def readany(self) -> bytes:
        """What has come since it was last read, and at least something; empty at the end.

        Raises:
            ConnectionBroke: it ended before its end.
            NothingCame: see `Limit`.
        """
        while not self._pieces:
            if self._error is not None:
                raise self._error
            if self._ended:
                return b""
            await self._wait()
        pieces = self._pieces
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        self._take(len(data))
        return data

    async def read(self, most: int) -> bytes:
        """At most so much of what has come, and at least something; empty at the end."""
        data = await self.readany()
        if len(data) > most:
            self._pieces.appendleft(data[most:])
            self._held_bytes += len(data) - most
        return data[:most]

    async def iter_any(self) -> AsyncIterator[bytes]:
        while data := await self.readany():
            yield data

    async def pipe(
        self, take: Callable[[bytes], bool], drained: Callable[[], Awaitable[None]]
    ) -> None:
        """Hand on the rest in the callbacks that bring it, until the end: no task has to wake up.

        Args:
            take: takes a piece; returns whether the next may follow at once, or must wait until
                whoever takes it has `drained`. Whether what came counts for the time that may pass
                without any, it says by `progressed`.

        Raises:
            ConnectionBroke, NothingCame: as `readany`; and what `take` raises.
        """
        pieces = b"".join(self._pieces)
        self._pieces.clear()
        self._take(len(pieces))
        self._piped = take
        try:
            if pieces:
                self._hand_on(pieces)
            while True:
                if self._error is not None:
                    raise self._error
                if self._is_full:
                    await drained()
                    self._is_full = False
                    self._connection.resume()
                elif self._ended:
                    return
                else:
                    await self._wait()
        finally:
            self._piped = None

    def _hand_on(self, data: bytes) -> None:
        assert self._piped is not None
        try:
            if not self._piped(data):
                self._is_full = True
                self._connection.pause()
                self._wake()
        except Exception as error:  # noqa: BLE001  (whoever pipes gets it)
            self._error = error
            self._wake()

    def progressed(self) -> None:
        """What is waited for came: the time without it begins anew."""
        if self._until is None:
            self._connection.expect(self._connection.now() + self._stall_s)

    def close(self) -> None:
        """Nobody reads the rest: the engine sees the connection break off."""
        self._connection.abort()

    def release(self) -> None:
        """It was read, or will not be: its connection is used again, if it can be."""
        self._connection.release(self)

    async def headers(self) -> None:
        """Wait until status and headers are here."""
        while not self.has_headers:
            if self._error is not None:
                raise self._error
            await self._wait()

    async def _wait(self) -> None:
        loop = asyncio.get_running_loop()
        self._waiter, self._is_woken = loop.create_future(), False
        due_at = self._until
        if due_at is None:
            due_at = loop.time() + self._stall_s
        self._connection.expect(due_at)
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _take(self, size: int) -> None:
        was_full = self._held_bytes > _HIGH_BYTES
        self._held_bytes -= size
        if was_full and self._held_bytes <= _HIGH_BYTES:
            self._connection.resume()

    def _wake(self) -> None:
        if self._waiter is not None and not self._is_woken:
            self._is_woken = True
            self._connection.begin(partial(_come, self._waiter))

    def add_header(self, name: bytes, value: bytes) -> None:
        """Raises ConnectionBroke: they are too large."""
        self._header_bytes += len(name) + len(value)
        if self._header_bytes > _MAX_HEADER_BYTES:
            raise ConnectionBroke("the answer's headers are too large")
        if not self.has_headers:  # what follows a body has no place in what we send on
            self.raw_headers.append((name, value))

    def begin_body(self, status: int) -> None:
        self.status, self.has_headers = status, True
        self._wake()

    def add(self, data: bytes) -> None:
        if self._piped is not None:
            self._hand_on(data)
            return
        self._pieces.append(data)
        self._held_bytes += len(data)
        if self._held_bytes > _HIGH_BYTES:
            self._connection.pause()
        self._wake()

    def end(self) -> None:
        self._ended = True
        self._wake()

    def fail(self, error: BaseException) -> None:
        if not self._ended and self._error is None:
            self._error = error
            self._wake()

    @property
    def is_whole(self) -> bool:
        return self._ended

    @property
    def is_awaited(self) -> bool:
        return self._waiter is not None


def _come(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)

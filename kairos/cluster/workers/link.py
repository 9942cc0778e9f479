"""Frames over a local stream: four bytes of length, then a msgpack value."""

import asyncio
from collections.abc import Callable, Iterator
from typing import cast

FRAME_BYTES = 16 << 20
UNSENT_BYTES = 64 << 20  # that a peer may leave unread before it counts as lost
_LENGTH_BYTES = 4


class BrokenFrame(Exception):
    """A frame is malformed or too long."""


def framed(payload: bytes) -> bytes:
    """Return the payload as a frame. Raises BrokenFrame: The payload is too long."""
    if len(payload) > FRAME_BYTES:
        raise BrokenFrame(f"a frame of {len(payload)} bytes exceeds {FRAME_BYTES}")
    return len(payload).to_bytes(_LENGTH_BYTES, "big") + payload


class Frames:
    """Parser that assembles frames from the pieces of a stream."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """Yield the payloads that are complete by now.

        Raises:
            BrokenFrame: A length exceeds the limit; the rest of the stream is unusable.
        """
        self._rest += piece
        start, end = 0, len(self._rest)
        try:
            while start + _LENGTH_BYTES <= end:
                length = int.from_bytes(self._rest[start : start + _LENGTH_BYTES], "big")
                if length > FRAME_BYTES:
                    raise BrokenFrame(f"a frame of {length} bytes exceeds {FRAME_BYTES}")
                begin = start + _LENGTH_BYTES
                if begin + length > end:
                    return
                start = begin + length
                yield bytes(self._rest[begin:start])
        finally:
            del self._rest[:start]


class FrameLink(asyncio.Protocol):
    """An end of a connection. If `on_payload` raises ValueError, the connection is closed."""

    def __init__(
        self,
        on_payload: Callable[["FrameLink", bytes], None],
        on_lost: Callable[["FrameLink"], None],
        on_made: Callable[["FrameLink"], None] = lambda _: None,
    ) -> None:
        self.lost = asyncio.Event()
        self.problem: str | None = None  # why it was closed from this side
        self._on_payload = on_payload
        self._on_lost = on_lost
        self._on_made = on_made
        self._frames = Frames()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no instances of it
        self._on_made(self)

    def data_received(self, data: bytes) -> None:
        try:
            for payload in self._frames.feed(data):
                self._on_payload(self, payload)
        except (BrokenFrame, ValueError, RecursionError) as error:  # msgspec's are ValueErrors
            self.abort(str(error))

    def connection_lost(self, _: Exception | None) -> None:
        self.lost.set()
        self._on_lost(self)

    def send(self, payload: bytes) -> None:
        """Send a frame. A peer that does not read is disconnected."""
        if self._transport is None or self._transport.is_closing():
            return
        self._transport.write(framed(payload))
        if self._transport.get_write_buffer_size() > UNSENT_BYTES:
            self.abort(f"more than {UNSENT_BYTES} bytes are unread")

    def abort(self, problem: str) -> None:
        self.problem = problem
        if self._transport is not None:
            self._transport.abort()

    async def close(self, limit_s: float) -> None:
        """Close the connection once all is sent, or after a limit."""
        if self._transport is not None:
            self._transport.close()
            try:
                await asyncio.wait_for(self.lost.wait(), limit_s)
            except TimeoutError:
                self._transport.abort()

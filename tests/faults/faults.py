"""What a proxy before an engine can do to a request, or to the answer to it.

Where in an answer something happens is told in bytes, as they go over the wire from the status line
on, or in server-sent events. A place that the answer does not reach leaves it whole.
"""

import msgspec


class Place(msgspec.Struct, frozen=True):
    after_bytes: int = 0
    after_events: int | None = None  # where given, bytes do not count


class Delay(msgspec.Struct, frozen=True):
    """The request goes on to the engine that much later."""

    seconds: float


class Cut(Place, frozen=True):
    """The connection ends there."""


class Stall(Place, frozen=True):
    """The connection stays open, and nothing more comes before the client leaves."""


class Stop(Place, frozen=True):
    """The answer ends there as if it were whole. Only one in chunks can, and only after a chunk."""


class EngineDies(Place, frozen=True):
    """The engine's process dies behind its API's, which says so in the stream, as vLLM does, and
    ends it well. At the beginning it is all that comes, and the engine is not asked."""


class Drip(Place, frozen=True, kw_only=True):
    """From there on the answer comes byte by byte."""

    bytes_per_s: float = 1.0


class Noise(msgspec.Struct, frozen=True):
    """What is answered is not HTTP; the engine is not asked."""


class WrongBody(msgspec.Struct, frozen=True):
    """Status 200, and a body that is no JSON; the engine is not asked."""

    streamed: bool = False  # it says that it is a stream of events


class Status(msgspec.Struct, frozen=True):
    """An error, as vLLM words it; the engine is not asked."""

    status: int
    retry_after_s: int | None = None


class HangUp(msgspec.Struct, frozen=True):
    """The answer is whole; then the connection, which was to be kept, is closed unannounced."""


Fault = Delay | Cut | Stall | Stop | EngineDies | Drip | Noise | WrongBody | Status | HangUp


class Gate:
    """Lets bytes pass up to a place in the answer; for a `Stop`, to the end of the chunk there."""

    def __init__(self, place: Place) -> None:
        self._left = place.after_bytes if place.after_events is None else place.after_events
        self._counts_events = place.after_events is not None
        self._passes_chunks = isinstance(place, Stop | EngineDies)
        self._last = b""

    def take(self, piece: bytes) -> bytes:
        """What of the piece passes: all of it, unless the place is reached."""
        reached = self._reached(piece)
        return piece[:reached] if self.is_shut and not self._passes_chunks else piece

    def _reached(self, piece: bytes) -> int:
        """How far into the piece the place allows."""
        if not self._counts_events:
            reached = min(self._left, len(piece))
            self._left -= reached
            return reached
        reached = 0
        while self._left and (end := self._end_of_event(piece, reached)) is not None:
            reached, self._left = end, self._left - 1
        self._last = piece[-1:]
        return reached

    @property
    def is_shut(self) -> bool:
        return self._left == 0

    def _end_of_event(self, piece: bytes, start: int) -> int | None:
        """No header ends with two bare newlines, and no length of a chunk does."""
        if start == 0 and self._last == b"\n" and piece.startswith(b"\n"):
            return 1
        found = piece.find(b"\n\n", start)
        return None if found < 0 else found + 2

"""An engine's answer while it comes, who takes it, and how it fails to."""

import asyncio
from collections.abc import Hashable
from typing import TYPE_CHECKING, Protocol

import msgspec

from kairos.core.errors import AnswerTimeout, KairosError, UpstreamFailed, UpstreamUnreachable

if TYPE_CHECKING:
    from kairos.proxy.engine_link import EngineLink

MAX_HEADER_BYTES = 1 << 16  # of one answer, names and values


class ConnectionBroke(ConnectionError):
    """The engine closed the connection, or broke HTTP, before its answer was whole."""


class ConnectionDropped(ConnectionBroke):
    """The engine had taken the call, and closed the connection."""


class EngineRefused(ConnectionRefusedError):
    """Nothing listens there."""


class NothingCame(TimeoutError):
    """No byte came within the time that was given."""

    def __init__(self, limit: "Limit | None" = None) -> None:
        super().__init__()
        self.limit = limit


class Stalled(UpstreamFailed):
    """Nothing has come of the call for far too long, by what came of others."""

    code = "stalled"

    def __init__(self, instance_id: str) -> None:
        super().__init__(
            f"instance {instance_id} was silent for longer than it ever was: the call is taken for "
            "lost there"
        )


class BrokenOff(UpstreamFailed):
    """An engine's answer ends before its end."""

    def __init__(self, instance_id: str, cause: str, *, dropped: bool) -> None:
        super().__init__(f"instance {instance_id} broke off its answer ({cause})")
        self.dropped = dropped


def failure_of(
    error: OSError, instance_id: str, *, begun: bool, was_dropped: bool = False
) -> KairosError:
    """Return the error for what `AnswerTaker.broke` received.

    `begun`: the client has a part of the answer; `was_dropped`: see `EngineAnswer`.
    """
    cause = type(error).__name__
    dropped = was_dropped or isinstance(error, ConnectionDropped)
    failure: KairosError = BrokenOff(instance_id, cause, dropped=dropped)
    if isinstance(error, NothingCame) and error.limit is not None:
        whole_s, stall_s = error.limit.whole_s, error.limit.stall_s
        failure = AnswerTimeout(
            instance_id, "stall_s" if whole_s is None else "answer_s", whole_s or stall_s
        )
    elif not begun:
        refused = isinstance(error, EngineRefused)
        failure = UpstreamUnreachable(instance_id, cause, refused=refused, dropped=dropped)
    failure.__cause__ = error
    return failure


class Limit(msgspec.Struct, frozen=True):
    """How long an engine may take, in seconds: without anything that counts as progress while it is
    waited for; and for the whole answer, where that comes in one piece."""

    stall_s: float
    whole_s: float | None = None


class AnswerTaker(Protocol):
    """Who takes an answer, as it comes. None of these may raise."""

    def begun(self, answer: "EngineAnswer") -> None:
        """Its status and headers are here."""

    def came(self, data: bytes) -> None:
        """A part of its body."""

    def ended(self) -> None:
        """It is whole."""

    def broke(self, error: Exception) -> None:
        """It will not be: an OSError says why, as ConnectionBroke, EngineRefused, NothingCame."""


class EngineAnswer:
    """What an engine is asked, and its answer while it comes: status and headers, then the body."""

    __slots__ = (
        "body",
        "caller",
        "connecting",
        "has_begun",
        "has_progressed",
        "head",
        "header_bytes",
        "headers",
        "is_bodiless",
        "is_repeatable",
        "is_whole",
        "limit",
        "source",
        "status",
        "taker",
        "was_dropped",
    )

    def __init__(
        self,
        taker: AnswerTaker,
        head: bytes,
        body: bytes,
        limit: Limit,
        method: str = "POST",
        *,
        is_repeatable: bool = False,
    ) -> None:
        """Hold what is asked.

        `head`: request line and headers, as they are sent. `is_repeatable`: no harm is done where
        an engine has it twice.
        """
        self.taker: AnswerTaker | None = taker  # None: nobody any more
        self.caller: Hashable | None = None  # in whose turns a fast answer is read; None: its own
        self.head, self.body, self.limit = head, body, limit
        self.is_repeatable = is_repeatable or method in ("GET", "HEAD", "DELETE")
        self.was_dropped = False  # with a kept connection, and then sent once more
        self.is_bodiless = method == "HEAD"
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []  # names in lower case
        self.header_bytes = 0
        self.has_begun = False  # a byte of it has come
        self.has_progressed = False  # since its source looked last
        self.is_whole = False  # with what comes next, or has come
        self.source: EngineLink | None = None
        self.connecting: asyncio.Task[None] | None = None  # until there is a source

    @property
    def content_type(self) -> bytes:
        """In lower case, without its parameters; empty: it does not say."""
        for name, value in self.headers:
            if name == b"content-type":
                return value.split(b";", 1)[0].strip().lower()
        return b""

    @property
    def silent_since(self) -> float | None:
        """When it was asked, or when the last progress of its stream came, or whoever takes it kept
        up again, on the loop's clock; None: there is no connection yet, or no more."""
        if self.source is None:
            return None
        return self.source.due_at - (self.limit.whole_s or self.limit.stall_s)

    @property
    def is_paused(self) -> bool:
        return self.source is not None and self.source.is_paused

    def progressed(self) -> None:
        """What is waited for is in what has just come: the time without it begins anew."""
        self.has_progressed = True

    def pause(self) -> None:
        """Who takes it is full: the engine has to wait."""
        if self.source is not None:
            self.source.pause()

    def resume(self) -> None:
        if self.source is not None:
            self.source.resume()

    def close(self) -> None:
        """Nobody takes the rest: the engine sees the connection break off. Nothing, once whole."""
        self.taker = None
        source, self.source = self.source, None
        if source is not None:
            source.abort()
        elif self.connecting is not None:
            self.connecting.cancel()

    def end(self) -> None:
        taker, self.taker, self.source = self.taker, None, None
        if taker is not None:
            taker.ended()

    def fail(self, error: Exception) -> None:
        taker, self.taker, self.source = self.taker, None, None
        if taker is not None:
            taker.broke(error)

"""An engine's answer as it arrives, its receiver, and its failures."""

import asyncio
from collections.abc import Hashable
from typing import TYPE_CHECKING, Protocol

import msgspec

from kairos.core import AnswerTimeout, KairosError, UpstreamFailed, UpstreamUnreachable

if TYPE_CHECKING:
    from kairos.proxy.engine_link import EngineLink

MAX_HEADER_BYTES = 1 << 16  # of one answer, names and values


class ConnectionBroke(ConnectionError):
    """The engine closed the connection, or violated HTTP, before its answer was complete."""


class ConnectionDropped(ConnectionBroke):
    """The engine had received the call, and closed the connection."""


class EngineRefused(ConnectionRefusedError):
    """The engine's address refuses connections."""


class NothingCame(TimeoutError):
    """No byte arrived within the time limit."""

    def __init__(self, limit: "Limit | None" = None) -> None:
        super().__init__()
        self.limit = limit


class Stalled(UpstreamFailed):
    """The instance sent nothing for the call for far too long, compared to other calls."""

    code = "stalled"

    def __init__(self, instance_id: str) -> None:
        super().__init__(
            f"instance {instance_id} was silent for longer than ever before: the call counts as "
            "lost there"
        )


class BrokenOff(UpstreamFailed):
    """An engine's answer ended before it was complete."""

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
    """Time limits of an answer, in seconds.

    `stall_s` bounds the time without progress; `whole_s` the whole answer, where it is not
    streamed.
    """

    stall_s: float
    whole_s: float | None = None


class AnswerTaker(Protocol):
    """Receiver of an answer as it arrives. No method may raise."""

    def begun(self, answer: "EngineAnswer") -> None:
        """Take the status and headers."""

    def came(self, data: bytes) -> None:
        """Take a part of the body."""

    def ended(self) -> None:
        """Note that the answer is complete."""

    def broke(self, error: Exception) -> None:
        """Note that the answer failed.

        An OSError says why, such as ConnectionBroke, EngineRefused or NothingCame.
        """


class EngineAnswer:
    """A request to an engine, and its answer as it arrives: status and headers, then the body."""

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
        """Create it.

        `head` has the request line and the headers as sent. `is_repeatable`: the engine may receive
        the request twice without harm.
        """
        self.taker: AnswerTaker | None = taker  # None: it has left
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
        """Content type in lower case, without parameters; empty if it is missing."""
        for name, value in self.headers:
            if name == b"content-type":
                return value.split(b";", 1)[0].strip().lower()
        return b""

    @property
    def silent_since(self) -> float | None:
        """Time since when the answer has made no progress, on the loop's clock.

        It starts with the request, each progress of the stream, and each resumption of reading.
        None: without a connection.
        """
        if self.source is None:
            return None
        return self.source.due_at - (self.limit.whole_s or self.limit.stall_s)

    @property
    def is_paused(self) -> bool:
        return self.source is not None and self.source.is_paused

    def progressed(self) -> None:
        """Note progress, which restarts the time limit."""
        self.has_progressed = True

    def pause(self) -> None:
        """Pause reading: the receiver is full."""
        if self.source is not None:
            self.source.pause()

    def resume(self) -> None:
        if self.source is not None:
            self.source.resume()

    def close(self) -> None:
        """Abort the connection: nobody takes the rest. Do nothing if the answer is complete."""
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

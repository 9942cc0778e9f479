"""The client side of a call over the bus: its answer is sent as one message."""

from collections.abc import Callable, Iterable

import msgspec

from kairos.cluster.pool.bus_call import BusCall
from kairos.cluster.pool.performer import Performer
from kairos.core import Arrived, Cancelled, Event, FirstToken, PrefillFailed, UpstreamFailed
from kairos.gateway import INTERNAL_ERROR
from kairos.request import Answering

ANSWER_BYTES = 8 << 20  # of an engine's answer; the bus's own limit is lower


class BusFactSink:
    """Sink of a call's facts: its arrival goes to the local balancer, the rest over the bus.

    The call's end is published only once its answer is committed, so that a crash in between does
    not lose the answer.
    """

    def __init__(
        self, performer: Performer, call: BusCall, arrive: Callable[[Event], None]
    ) -> None:
        self._performer = performer
        self._call = call
        self._arrive = arrive
        self._ended: list[Event] = []

    def now(self) -> int:
        return self._performer.now()

    def feed(self, event: Event) -> None:
        match event:
            case Arrived():
                self._arrive(event)
            case FirstToken() | PrefillFailed():
                self._performer.feed(event)
            case _:
                self._ended.append(event)

    def tell(self) -> None:
        """Publish the call's end; do nothing if the balancer does not know the call.

        A call that it knew from before may have ended before it was requested again.
        """
        if self._call.admitted:
            for event in self._ended or [Cancelled(self._call.request.id)]:
                self._performer.feed(event)


class BusAnswer:
    """A buffer for the answer that a call sends to its client."""

    def __init__(self) -> None:
        self.answering: Answering | None = None
        self.has_left = False
        self.status = INTERNAL_ERROR.status
        self._retry_after: str | None = None
        self._parts: list[bytes] = []
        self._bytes = 0

    def start(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        self.status = status
        retry_after = dict(headers).get(b"retry-after")
        self._retry_after = retry_after.decode("latin-1") if retry_after else None

    def write(self, data: bytes, *, more: bool) -> bool:  # noqa: ARG002
        """Append a part of the answer.

        Raises:
            UpstreamFailed: The answer is too large.
        """
        self._bytes += len(data)
        if self._bytes > ANSWER_BYTES:
            raise UpstreamFailed(f"the answer exceeds {ANSWER_BYTES} bytes")
        self._parts.append(data)
        return True

    def cut_off(self) -> None:
        """Do nothing: an incomplete answer is not sent, its error is."""

    def leave(self) -> None:
        """Disconnect the client: nobody waits for the answer any more."""
        self.has_left = True
        answering, self.answering = self.answering, None
        if answering is not None:
            answering.client_left()

    def payload(self) -> bytes:
        body = b"".join(self._parts)
        try:
            content: object = msgspec.Raw(body) if body else None
            msgspec.json.decode(body or b"null")
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            content = body.decode(errors="replace")
        answer = {"status": self.status, "body": content}
        if self._retry_after is not None:
            answer["retry_after"] = self._retry_after
        return msgspec.json.encode(answer)

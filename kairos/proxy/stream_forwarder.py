"""Forwarding of an engine's event stream to the client."""

from kairos.core import Event, Failed, FirstToken, UpstreamFailed
from kairos.proxy.response_forwarder import (
    ERROR_BYTES,
    ERROR_IN_STREAM,
    EngineError,
    PassedAnswer,
    ResponseForwarder,
)
from kairos.proxy.sse import SseReader, begin_well


class UnreadStreamAnswer(PassedAnswer):
    """Forwarder of a stream whose end and errors are not known."""

    def came(self, data: bytes) -> None:
        if not self._response.started:
            self._response.start(self._answer.status, self._headers())
            self._feed(FirstToken(self._request_id))
        super().came(data)


class StreamAnswer(ResponseForwarder):
    """Forwarder of an event stream: it starts the client's answer with the first event.

    Complete events are forwarded in the callback that brings them.
    """

    reader: SseReader
    tries_again = False
    _first = b""  # what came before it was begun
    _last = b""  # what goes out with the end, which is here too

    def came(self, data: bytes) -> None:
        reader = self.reader
        if reader.error is not None and not self._response.started:
            self._first += data
            if len(self._first) >= ERROR_BYTES:
                self._refuse()
            return
        events = reader.events
        forward = reader.feed(data)
        if reader.events > events or reader.done:
            self._answer.progressed()
        if self._response.started:
            if reader.done or reader.error is not None:
                self._settle()
            if forward:
                self._send(forward)
            return
        if reader.error is not None and self.tries_again:
            self._first += data
            return
        if not reader.events and not forward:
            self._first += data
            return
        self._begin(forward)

    def _begin(self, forward: bytes) -> None:
        """Start the client's answer. Before the first event, a failure can still be a plain error.

        Raises:
            UpstreamFailed: The event is not part of an answer.
        """
        if not begin_well(forward):
            raise UpstreamFailed(f"the answer of instance {self._instance_id} is not a stream")
        self._first = b""
        self._response.start(self._answer.status, self._headers())
        self._feed(FirstToken(self._request_id))
        self._settle()
        if forward:
            self._send(forward)

    def _send(self, data: bytes) -> None:
        if self._answer.is_whole:
            self._last = data
        elif not self._response.write(data, more=True):
            self._answer.pause()

    def _refuse(self) -> None:
        said = self._first[:ERROR_BYTES]
        raise EngineError(self._instance_id, self._answer.status, self._headers(), said)

    def ended(self) -> Event:
        reader = self.reader
        if reader.error is not None and not self._response.started:
            self._refuse()
        rest = reader.rest()
        self._settle()
        if not reader.done:
            if self._last:
                self._write(self._last)
            raise UpstreamFailed(
                f"instance {self._instance_id} ended its stream before it was complete"
            )
        if not self._response.started:
            self._response.start(self._answer.status, self._headers())
        self._response.write(self._last + rest, more=False)
        return self.settled or self._outcome(None)

    def _settle(self) -> None:
        reader = self.reader
        if reader.error is not None:
            self.settled = Failed(self._request_id, ERROR_IN_STREAM, by_instance=True)
        elif reader.done and self.settled is None:
            self.settled = self._outcome(reader.usage)
            if self._owner.wants_answer:
                self._owner.answered(reader.kept, streamed=True)

"""Calls over the bus that this process performs while it is the active balancer."""

import asyncio

import msgspec

from kairos.cluster.kafka.subscription import ReceivedMessage
from kairos.cluster.pool.admitting import Admitting
from kairos.cluster.pool.bus_call import BusCall, read_call
from kairos.cluster.pool.bus_calls import BusCalls
from kairos.cluster.pool.decision_publisher import DecisionPublisher, FactContext
from kairos.cluster.pool.messages import CALL, TYPE_HEADER
from kairos.cluster.pool.pool_calls import Open, PoolCalls
from kairos.core import Arrived, Clock, Event, Record, UpstreamFailed

_ALONE_AFTER = 2  # processes that died while they performed a call
_REFUSED_AFTER = 3


class BusCallsHere:
    """Start calls over the bus, adopt a predecessor's calls, and repeat lost ones.

    A call may be what kills its process. The log counts the processes that died while performing
    it: after two deaths it is performed alone, one such call at a time; after three it is refused.
    """

    def __init__(
        self,
        ourselves: str,
        calls: BusCalls,
        admitting: Admitting,
        publisher: DecisionPublisher,
        pool_calls: PoolCalls,
        clock: Clock,
    ) -> None:
        """Create it. `ourselves` is the performer of this process."""
        self._ourselves = ourselves
        self._calls = calls
        self._admitting = admitting
        self._publisher = publisher
        self._pool_calls = pool_calls
        self._clock = clock
        self._suspects: dict[str, tuple[BusCall, int]] = {}  # with the offset; the first has begun
        self._is_over = False

    def leave(self) -> None:
        """Stop starting calls: another process decides from now on."""
        self._is_over = True

    def take(self, call: BusCall, offset: int) -> None:
        suspect, _ = self._suspects.get(call.request.id, (None, 0))
        if suspect is not None and not suspect.admitted:  # its turn comes
            suspect.reply_to |= call.reply_to
            self._publisher.offsets.done(offset)
            return
        opened = self._pool_calls.get(call.request.id)
        goes_on = (
            opened is not None and opened.call is not None and opened.performer != self._ourselves
        )
        performing = self._calls.performing(call.request.id)
        if self._calls.ask_again(call) or goes_on:
            if opened is None and performing is not None:  # from this process's earlier term
                performing.add_done_callback(lambda _: self._publisher.offsets.done(offset))
            else:
                self._publisher.offsets.done(offset)
        else:  # `Admitting` refuses a call that was just answered here until it has ended
            self._start(call, offset)

    def _start(self, call: BusCall, offset: int) -> asyncio.Task[None]:
        def arrive(event: Event) -> None:
            assert isinstance(event, Arrived)
            if (lost := _lost_with(call)) >= _REFUSED_AFTER:
                raise UpstreamFailed(f"{lost} processes died in a row that performed this call")
            self._admitting.admit(event, self._ourselves, offset, call=call)
            call.admitted = True

        def ended(_: asyncio.Task[None]) -> None:
            if not call.admitted:
                self._publisher.offsets.done(offset)

        call.admitted = False
        task = self._calls.start(call, arrive)
        task.add_done_callback(ended)
        return task

    def adopt(self, opened: Open, message: ReceivedMessage) -> None:
        """Adopt a call that had not ended, from the message of its arrival."""
        if message.headers.get(TYPE_HEADER) != CALL:
            if opened.refused is not None:  # repeated: the order may have been lost
                self._pool_calls.remove(opened.request.id)
                self._publisher.refuse(
                    opened.performer, opened.refused, opened.turn, message.offset
                )
            return
        opened.call = read_call(message, self._clock.now())
        if opened.to_redo or opened.refused is not None:
            self.redo(opened)
        elif opened.instance_id is None:
            self._perform_here(opened, opened.call, message.offset)

    def _perform_here(self, opened: Open, call: BusCall, offset: int) -> None:
        """Perform a waiting call here. Its arrival is recorded again, with the new performer."""
        opened.performer, opened.turn = self._ourselves, 0
        request = opened.request
        context = FactContext(
            workflow_id=request.workflow_id, performer=self._ourselves, cause=offset
        )
        self._publisher.publish(Record(self._clock.now(), Arrived(request)), context)
        if self._calls.performing(call.request.id) is None:
            call.admitted = True
            self._calls.start(call, lambda _: None)

    def redo(self, opened: Open) -> None:
        """Repeat a call that came over the bus, in this process."""
        call, offset = opened.call, opened.offset
        assert call is not None
        assert offset is not None
        self._pool_calls.remove(opened.request.id)
        attempt = opened.request.attempt + 1
        call.request = msgspec.structs.replace(call.request, attempt=attempt)
        call.admitted = False
        if _lost_with(call) == _ALONE_AFTER:
            self._suspects[call.request.id] = (call, offset)
            if len(self._suspects) == 1:
                self._start_suspect()
        else:
            self._start(call, offset)

    def _start_suspect(self) -> None:
        call, offset = next(iter(self._suspects.values()))
        self._start(call, offset).add_done_callback(lambda _: self._start_next(call.request.id))

    def _start_next(self, ended: str) -> None:
        del self._suspects[ended]
        if self._suspects and not self._is_over:
            self._start_suspect()


def _lost_with(call: BusCall) -> int:
    """Return how many processes have died while they performed the call."""
    return call.request.attempt - call.headers.attempt

"""Calls that came over the bus, where this process performs them while it decides."""

import asyncio

import msgspec

from kairos.cluster.kafka.subscription import ReceivedMessage
from kairos.cluster.pool.admitting import Admitting
from kairos.cluster.pool.bus_call import BusCall, read_call
from kairos.cluster.pool.bus_calls import BusCalls
from kairos.cluster.pool.decision_publisher import DecisionPublisher, FactContext
from kairos.cluster.pool.messages import CALL, TYPE
from kairos.cluster.pool.pool_calls import Open, PoolCalls
from kairos.core.errors import UpstreamFailed
from kairos.core.events import Arrived, Event, Record
from kairos.core.ports import Clock

_ALONE_AFTER = 2  # processes that were lost while they performed a call
_REFUSED_AFTER = 3


class BusCallsHere:
    """Begins the bus's calls here, adopts those of a predecessor, and begins anew what was lost.

    A call may be what its process dies of. The log counts the processes that it was lost with: of
    those that were lost with two, one is performed at a time; with a third it is refused.
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
        """`ourselves`: the performer of this process."""
        self._ourselves = ourselves
        self._calls = calls
        self._admitting = admitting
        self._publisher = publisher
        self._pool_calls = pool_calls
        self._clock = clock
        self._suspects: dict[str, tuple[BusCall, int]] = {}  # with the offset; the first has begun
        self._is_over = False

    def leave(self) -> None:
        """Another process decides from now on."""
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
            if opened is None and performing is not None:  # from when this process decided before
                performing.add_done_callback(lambda _: self._publisher.offsets.done(offset))
            else:
                self._publisher.offsets.done(offset)
        else:  # of one that was answered here just now, it waits for the end, says `Admitting`
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
        """A message with which a call arrived that has not ended."""
        if message.headers.get(TYPE) != CALL:
            if opened.refused is not None:  # said again: the order may have been lost
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
        """A call that waits. Its arrival is recorded again, with who performs it from here on."""
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
        """Begin a call that came over the bus anew, here."""
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
    """How many processes were lost while they performed it."""
    return call.request.attempt - call.headers.attempt

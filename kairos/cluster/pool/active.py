"""The active balancer of a pool: facts come from `kairos.requests`, each decision is made safe in
`kairos.events` before anybody acts on it.

What is guaranteed: the offset of a message is done when its call's end is safe, so whoever takes
over finds every call that had not ended. A record names the message that told its fact, so no fact
counts twice. An older balancer that does not know yet is fenced off by the epoch of its records.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping

import msgspec

from kairos.cluster.kafka.subscription import ReceivedMessage
from kairos.cluster.pool.admitting import Admitting
from kairos.cluster.pool.bus_call import read_call
from kairos.cluster.pool.bus_calls import BusCalls
from kairos.cluster.pool.bus_calls_here import BusCallsHere
from kairos.cluster.pool.decision_publisher import DecisionPublisher, FactContext
from kairos.cluster.pool.decisions import Decisions
from kairos.cluster.pool.liveness import LOST_S, Liveness
from kairos.cluster.pool.messages import (
    ALIVE,
    CALL,
    TOLD,
    TYPE,
    Alive,
    Declined,
    RecalledRecord,
    Told,
    read_told,
)
from kairos.cluster.pool.pool_calls import Open, PoolCalls
from kairos.core.balancer import Balancer
from kairos.core.errors import InvalidRequest, KairosError, Unavailable
from kairos.core.events import (
    Arrived,
    Bounced,
    Cancelled,
    Dispatch,
    Event,
    Failed,
    Finished,
    FirstToken,
    InstanceJoined,
    InstanceLeft,
    PlanDeclared,
    PrefillFailed,
    Progressed,
    Record,
    Tick,
    WorkflowEnded,
)
from kairos.core.model import SECOND
from kairos.core.ports import Clock
from kairos.core.runtime import Observer

logger = logging.getLogger(__name__)

_WATCH_S = 0.5
_KIND = 40  # characters of an unknown one that are said
# How far a successor reads back beyond the oldest call in flight: where the workflows stand that
# have none in flight at that moment. More of it would cost only time.
_RECALL_US = 60 * SECOND

_alive = msgspec.json.Decoder(Alive)


class ActiveBalancer:
    """Decides for the pool while its partition is this process's.

    First `expect` the instances and `recall` what was decided before, then `begin` with the
    messages since the last commit, then `take` each that comes; `watch` runs beside.
    """

    def __init__(
        self,
        balancer: Balancer,
        pool: str,
        ourselves: str,
        publisher: DecisionPublisher,
        pool_calls: PoolCalls,
        calls: BusCalls,
        clock: Clock,
        observers: tuple[Observer, ...],
    ) -> None:
        """`ourselves`: the performer of this process, which performs the bus's `calls` too."""
        self.balancer = balancer
        self._pool = pool
        self._ourselves = ourselves
        self._publisher = publisher
        self._pool_calls = pool_calls
        self._calls = calls
        self._clock = clock
        self._decisions = Decisions(balancer, publisher, clock, observers)
        self._admitting = Admitting(self._decisions, publisher, pool_calls, clock)
        self._bus_calls = BusCallsHere(
            ourselves, calls, self._admitting, publisher, pool_calls, clock
        )
        self._recorded: set[int] = set()  # offsets of messages whose facts were decided on before
        self._liveness = Liveness(ourselves, (), clock.now())

    @property
    def done(self) -> tuple[int, int] | None:
        """The offset of `kairos.requests` from which a successor must read, and the instant from
        which it must read `kairos.events`. None: nothing was read yet."""
        offset, now = self._publisher.offsets.next, self._clock.now()
        if offset is None:
            return None
        return offset, self._pool_calls.oldest_at(now) - _RECALL_US

    @property
    def is_broken(self) -> bool:
        """A decision could not be recorded: whoever takes over must do without those after it."""
        return self._publisher.is_broken

    @property
    def recalled_to(self) -> int:
        """The last message of which a recalled record speaks; -1: none."""
        return max(self._recorded, default=-1)

    def expect(self, joined: InstanceJoined) -> None:
        """An instance that is there, before anything is recalled. It is told of by `begin`: a fact
        of now would make all that is recalled one of now."""
        self.balancer.replay(Record(0, joined))

    def recall(self, decided: RecalledRecord) -> None:
        """Take in what a balancer before this one decided."""
        record = decided.record
        record = msgspec.structs.replace(record, at=min(record.at, self._clock.now()))
        if decided.cause is not None:
            self._recorded.add(decided.cause)
        self._pool_calls.recall(msgspec.structs.replace(decided, record=record))
        self.balancer.replay(record)

    def begin(
        self, backlog: Iterable[ReceivedMessage], instances: Mapping[str, InstanceJoined]
    ) -> None:
        """Go on from what was recalled, with the instances that are there by now."""
        performers = {each.performer for each in self._pool_calls.all()}
        self._liveness = Liveness(self._ourselves, performers, self._clock.now())
        opened = {each.offset: each for each in self._pool_calls.all()}
        unknown: list[ReceivedMessage] = []
        for message in backlog:
            self._publisher.offsets.add(message.offset)
            if message.offset not in self._recorded:
                unknown.append(message)
            elif message.offset in opened:
                self._adopt(opened[message.offset], message)
            else:
                self._publisher.offsets.done(message.offset)
        for each in self._pool_calls.all():
            if each.to_redo or each.refused is not None:
                self._pool_calls.remove(each.request.id)  # its message is done
            elif each.instance_id is not None:  # said again: the order may have been lost
                again = Dispatch(each.request.id, each.instance_id)
                self._publisher.order(each.performer, [(again, each.turn)])
        self._compare(instances)
        for message in unknown:
            self.take(message)
        self._recorded.clear()
        self.feed(Tick())

    def _adopt(self, opened: Open, message: ReceivedMessage) -> None:
        """Go on with a call. One whose message has no call in it is given up."""
        try:
            self._bus_calls.adopt(opened, message)
        except InvalidRequest as error:
            self._give_up(opened)
            self._publisher.bury(message, error)

    def _compare(self, instances: Mapping[str, InstanceJoined]) -> None:
        """Tell of the instances; news of them may have come while this was read back."""
        for gone in self.balancer.ledger.instances.keys() - instances.keys():
            self.feed(InstanceLeft(gone))
        for joined in instances.values():
            self.feed(joined)

    def take(self, message: ReceivedMessage) -> None:
        """Act on a message. What makes no sense becomes a dead letter."""
        self._publisher.offsets.add(message.offset)
        if message.key != self._pool:
            self._publisher.offsets.done(message.offset)
            return
        try:
            self._read(message)
        except (KairosError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            self._publisher.bury(message, error)
        except Exception as error:  # a fault of ours: the message ends no process, and is named
            logger.exception("a message is not understood")
            self._publisher.bury(message, error)

    def _read(self, message: ReceivedMessage) -> None:
        """Act on a message.

        Raises:
            Exception: The message makes no sense, in any way.
        """
        kind = message.headers.get(TYPE)
        if kind == ALIVE:
            alive = _alive.decode(message.value or b"")
            self._liveness.hear(alive.performer, self._clock.now())
            self._publisher.offsets.done(message.offset)
        elif kind == TOLD:
            self._hear(read_told(message.value or b""), message.offset)
        elif kind == CALL:
            self._bus_calls.take(read_call(message, self._clock.now()), message.offset)
        else:
            raise InvalidRequest(f"the {TYPE} '{str(kind)[:_KIND]}' is not known")

    def leave(self) -> None:
        """Another process decides from now on."""
        self._bus_calls.leave()

    def feed(self, event: Event) -> None:
        """A fact of this process's own: of instances, of what was learnt, of time."""
        self._decisions.feed(event)

    async def watch(self) -> None:
        """Give up on what waits too long, and on the calls of performers that are no more."""
        while True:
            await asyncio.sleep(_WATCH_S)
            now = self._clock.now()
            tick_at = self.balancer.tick_at
            if tick_at is not None and tick_at <= now:
                self.feed(Tick())
            lost = self._liveness.take_lost(now)
            for performer in lost:
                logger.warning("%s has not been heard of for %g s", performer, LOST_S)
            for each in self._pool_calls.performed_by(lost):
                self._give_up(each)

    def _hear(self, told: Told, offset: int) -> None:
        event = told.event
        match event:
            case Arrived():
                self._liveness.hear(told.performer, self._clock.now())
                self._admitting.arrive(event, told, offset)
            case FirstToken() | PrefillFailed() | Finished() | Failed() | Cancelled() | Bounced():
                self._hear_of_call(event, told, offset)
            case Progressed(completion_tokens=counts):
                self._hear_of_progress(counts, told.performer, offset)
            case WorkflowEnded(workflow_id=workflow_id):
                context = FactContext(workflow_id=workflow_id, cause=offset)
                self._decisions.feed(event, context)
            case PlanDeclared():
                self._decisions.feed(event, FactContext(cause=offset))
            case _:
                raise InvalidRequest(f"{type(event).__name__} is not a performer's to tell")

    def _hear_of_call(
        self,
        event: FirstToken | PrefillFailed | Finished | Failed | Cancelled | Bounced,
        told: Told,
        offset: int,
    ) -> None:
        teller = told.performer
        opened = self._pool_calls.get(event.request_id)
        if opened is not None and teller == opened.performer and not self._is_old(opened, event):
            self._liveness.hear(teller, self._clock.now())
            turn = told.turn if isinstance(event, Bounced) else None
            if turn is not None:
                opened.turn = turn
            workflow_id = opened.request.workflow_id
            context = FactContext(workflow_id=workflow_id, cause=offset, turn=turn)
            self._decisions.feed(event, context)
            return
        if opened is None and isinstance(event, Bounced):  # what gave it up knew of an earlier turn
            gone = Unavailable("the call was given up while the instance that had it failed")
            self._publisher.refuse(teller, Declined.of(event.request_id, gone), told.turn, offset)
            return
        if isinstance(event, Cancelled):
            self._calls.leave(event.request_id, teller)
        self._publisher.offsets.done(offset)  # it was given up meanwhile, or is not the teller's

    def _hear_of_progress(self, counts: Mapping[str, int], teller: str, offset: int) -> None:
        """Of the calls that the teller performs; it may have lost others meanwhile."""
        theirs = {each: n for each, n in counts.items() if self._runs_at(each, teller)}
        if not theirs:
            self._publisher.offsets.done(offset)
            return
        self._liveness.hear(teller, self._clock.now())
        self._decisions.feed(Progressed(theirs), FactContext(cause=offset))

    def _runs_at(self, request_id: str, performer: str) -> bool:
        opened = self._pool_calls.get(request_id)
        if opened is None or opened.instance_id is None:
            return False
        return opened.performer == performer

    def _is_old(self, opened: Open, event: Event) -> bool:
        """Whether this process told how the call ended when it last performed it: a call over the
        bus is performed for as long as its end has not been told."""
        is_ours = opened.call is not None and opened.performer == self._ourselves
        is_performed = self._calls.performs(opened.request.id)
        return is_ours and is_performed and not isinstance(event, FirstToken | PrefillFailed)

    def _give_up(self, opened: Open) -> None:
        """Whoever performed the call is no more."""
        request = opened.request
        context = FactContext(workflow_id=request.workflow_id, redo=opened.call is not None)
        self._decisions.feed(Cancelled(request.id), context)
        if opened.call is not None:
            self._bus_calls.redo(opened)
        else:  # in case it was only cut off for a while
            gone = Unavailable("nothing was heard of this process for too long")
            declined = Declined.of(request.id, gone)
            self._publisher.order(opened.performer, [(declined, opened.turn)])

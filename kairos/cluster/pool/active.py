"""The active balancer: facts arrive on `kairos.requests`, decisions go to `kairos.events`.

A decision is acted on only once it is committed there.

Guarantees: a message's offset counts as done once the end of its call is committed, so a successor
finds every call that had not ended. A record names the message of its fact, so no fact counts
twice. A superseded balancer that does not know it yet is fenced off by the epoch of its records.
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
    TYPE_HEADER,
    Alive,
    Declined,
    RecalledRecord,
    Told,
    read_told,
)
from kairos.cluster.pool.pool_calls import Open, PoolCalls
from kairos.core import (
    SECOND,
    Arrived,
    Balancer,
    Bounced,
    Cancelled,
    Clock,
    Dispatch,
    Event,
    Failed,
    Finished,
    FirstToken,
    InstanceJoined,
    InstanceLeft,
    InvalidRequest,
    KairosError,
    Observer,
    PlanDeclared,
    PrefillFailed,
    Progressed,
    Record,
    Tick,
    Unavailable,
    WorkflowEnded,
)

logger = logging.getLogger(__name__)

_WATCH_S = 0.5
_KIND = 40  # characters of an unknown type that an error quotes
# How far a successor reads back beyond the oldest call in flight, to learn the state of workflows
# that have no call in flight. A longer time would be correct, too, but slower.
_RECALL_US = 60 * SECOND

_alive = msgspec.json.Decoder(Alive)


class ActiveBalancer:
    """The balancer that decides for the pool while this process owns its partition.

    First `expect` the instances and `recall` earlier decisions, then `begin` with the messages
    since the last commit, then `take` each new message; run `watch` concurrently.
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
        """Create the balancer.

        `ourselves` is this process's performer, which also runs the bus's calls.
        """
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
        """Where a successor must begin: an offset of `kairos.requests`, a time of `kairos.events`.

        None: no message has been read yet.
        """
        offset, now = self._publisher.offsets.next, self._clock.now()
        if offset is None:
            return None
        return offset, self._pool_calls.oldest_at(now) - _RECALL_US

    @property
    def is_broken(self) -> bool:
        """Whether a decision could not be published; all later ones are void."""
        return self._publisher.is_broken

    @property
    def recalled_to(self) -> int:
        """Highest offset of a message whose fact a recalled record holds; -1 without any."""
        return max(self._recorded, default=-1)

    def expect(self, joined: InstanceJoined) -> None:
        """Add an instance before anything is recalled.

        `begin` announces it: a fact with the present time would date all that is recalled to now.
        """
        self.balancer.replay(Record(0, joined))

    def recall(self, decided: RecalledRecord) -> None:
        """Replay a decision of an earlier balancer."""
        record = decided.record
        record = msgspec.structs.replace(record, at=min(record.at, self._clock.now()))
        if decided.cause is not None:
            self._recorded.add(decided.cause)
        self._pool_calls.recall(msgspec.structs.replace(decided, record=record))
        self.balancer.replay(record)

    def begin(
        self, backlog: Iterable[ReceivedMessage], instances: Mapping[str, InstanceJoined]
    ) -> None:
        """Continue from the recalled state, with the instances that are known now."""
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
            elif each.instance_id is not None:  # repeated: the order may have been lost
                again = Dispatch(each.request.id, each.instance_id)
                self._publisher.order(each.performer, [(again, each.turn)])
        self._compare(instances)
        for message in unknown:
            self.take(message)
        self._recorded.clear()
        self.feed(Tick())

    def _adopt(self, opened: Open, message: ReceivedMessage) -> None:
        """Continue a call. If its message is not a valid call, cancel it."""
        try:
            self._bus_calls.adopt(opened, message)
        except InvalidRequest as error:
            self._give_up(opened)
            self._publisher.bury(message, error)

    def _compare(self, instances: Mapping[str, InstanceJoined]) -> None:
        """Feed the differences between recalled and current instances."""
        for gone in self.balancer.ledger.instances.keys() - instances.keys():
            self.feed(InstanceLeft(gone))
        for joined in instances.values():
            self.feed(joined)

    def take(self, message: ReceivedMessage) -> None:
        """Handle a message. A malformed one becomes a dead letter."""
        self._publisher.offsets.add(message.offset)
        if message.key != self._pool:
            self._publisher.offsets.done(message.offset)
            return
        try:
            self._read(message)
        except (KairosError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            self._publisher.bury(message, error)
        except Exception as error:  # a bug in Kairos: the message must not end the process
            logger.exception("a message is not understood")
            self._publisher.bury(message, error)

    def _read(self, message: ReceivedMessage) -> None:
        """Handle a message.

        Raises:
            Exception: The message is malformed, in any way.
        """
        kind = message.headers.get(TYPE_HEADER)
        if kind == ALIVE:
            alive = _alive.decode(message.value or b"")
            self._liveness.hear(alive.performer, self._clock.now())
            self._publisher.offsets.done(message.offset)
        elif kind == TOLD:
            self._hear(read_told(message.value or b""), message.offset)
        elif kind == CALL:
            self._bus_calls.take(read_call(message, self._clock.now()), message.offset)
        else:
            raise InvalidRequest(f"the {TYPE_HEADER} '{str(kind)[:_KIND]}' is not known")

    def leave(self) -> None:
        """Stop deciding: another process takes over."""
        self._bus_calls.leave()

    def feed(self, event: Event) -> None:
        """Decide on a fact of this process: about instances, learnt profiles or time."""
        self._decisions.feed(event)

    async def watch(self) -> None:
        """Feed a `Tick` when calls have waited too long, and cancel calls of dead performers.

        Send an empty order as a sign of life: gateways over several pools leave out a pool whose
        balancer is silent.
        """
        while True:
            await asyncio.sleep(_WATCH_S)
            self._publisher.show_life()
            now = self._clock.now()
            tick_at = self.balancer.tick_at
            if tick_at is not None and tick_at <= now:
                self.feed(Tick())
            lost = self._liveness.take_lost(now)
            for performer in lost:
                logger.warning("%s has sent nothing for %g s", performer, LOST_S)
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
                raise InvalidRequest(f"a performer cannot report {type(event).__name__}")

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
        if opened is None and isinstance(event, Bounced):  # it was cancelled during an earlier turn
            gone = Unavailable("the call was cancelled while its instance was failing")
            self._publisher.refuse(teller, Declined.of(event.request_id, gone), told.turn, offset)
            return
        if isinstance(event, Cancelled):
            self._calls.leave(event.request_id, teller)
        self._publisher.offsets.done(offset)  # already cancelled, or another performer's call

    def _hear_of_progress(self, counts: Mapping[str, int], teller: str, offset: int) -> None:
        """Decide on the progress of calls. Calls that the sender no longer performs are ignored."""
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
        """Return whether the event is about an earlier attempt of a call that this process repeats.

        A call over the bus is in progress until its end has been published.
        """
        is_ours = opened.call is not None and opened.performer == self._ourselves
        is_performed = self._calls.performs(opened.request.id)
        return is_ours and is_performed and not isinstance(event, FirstToken | PrefillFailed)

    def _give_up(self, opened: Open) -> None:
        """Cancel a call whose performer is dead; repeat it if it came over the bus."""
        request = opened.request
        context = FactContext(workflow_id=request.workflow_id, redo=opened.call is not None)
        self._decisions.feed(Cancelled(request.id), context)
        if opened.call is not None:
            self._bus_calls.redo(opened)
        else:  # in case the performer was only disconnected for a while
            gone = Unavailable("this process sent no sign of life for too long")
            declined = Declined.of(request.id, gone)
            self._publisher.order(opened.performer, [(declined, opened.turn)])

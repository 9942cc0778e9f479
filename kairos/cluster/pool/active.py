"""The active balancer: facts arrive on `kairos.requests`, decisions go to `kairos.events`.

A decision is acted on only once it is committed there.

Guarantees: a message's offset counts as done once the end of its call is committed, so a successor
finds every call that had not ended. A record names the message of its fact, so no fact counts
twice. A superseded balancer that does not know it yet is fenced off by the epoch of its records.

The process that decides also performs the calls that come over the bus (`BusCallsHere`).
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping

import msgspec

from kairos.cluster.kafka.items import ReceivedMessage
from kairos.cluster.pool.bus_call import BusCall, read_call
from kairos.cluster.pool.bus_calls import BusCalls
from kairos.cluster.pool.decision_publisher import DecisionPublisher, FactContext
from kairos.cluster.pool.messages import (
    ALIVE,
    CALL,
    TOLD,
    TYPE_HEADER,
    Alive,
    Declined,
    RecalledRecord,
    Told,
    check_event,
    read_told,
)
from kairos.cluster.pool.performer import BEAT_S
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
    RequestIdTaken,
    RequestInFlight,
    Tick,
    Unavailable,
    UpstreamFailed,
    WorkflowEnded,
)

logger = logging.getLogger(__name__)

LOST_S = 5.0  # of silence
_STALLED_S = 2.5  # without a sign of life of our own: then the bus itself is stalled
_ALONE_AFTER = 2  # processes that died while they performed a call
_REFUSED_AFTER = 3
_WATCH_S = 0.5
_KIND = 40  # characters of an unknown type that an error quotes
# How far a successor reads back beyond the oldest call in flight, to learn the state of workflows
# that have no call in flight. A longer time would be correct, too, but slower.
_RECALL_US = 60 * SECOND

_OF_OUR_OWN = FactContext()
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
        self._observers = observers
        self._bus_calls = BusCallsHere(
            ourselves, calls, self._admit_here, publisher, pool_calls, clock
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
        self._decide(event, _OF_OUR_OWN)

    def _decide(self, event: Event, context: FactContext) -> None:
        """Decide on a fact, and publish the decision. Commands are performed once it is committed.

        Raises:
            KairosError: The fact is refused (see `Balancer.handle`); nothing is published.
        """
        at = self._clock.now()
        record = Record(at, event, tuple(self.balancer.handle(event, at)))
        self._publisher.publish(record, context)
        for observe in self._observers:
            observe(record)

    def _admit(
        self,
        arrived: Arrived,
        performer: str,
        offset: int,
        *,
        call: BusCall | None = None,
        turn: int = 0,
    ) -> None:
        """Have a call decided on that its performer reports, or that arrived over the bus.

        Raises:
            KairosError: The balancer refuses the request.
        """
        request = arrived.request
        other = self._pool_calls.get(request.id)
        if other is not None:
            is_own = other.request.tenant == request.tenant
            raise (RequestInFlight if is_own else RequestIdTaken)(request.id)
        now = self._clock.now()
        request = msgspec.structs.replace(
            request,
            arrived_at=min(request.arrived_at, now),
            workflow_started_at=min(request.workflow_started_at, now),
        )
        self._pool_calls.add(Open(request, performer, offset, now, call=call, turn=turn))
        context = FactContext(
            workflow_id=request.workflow_id, performer=performer, cause=offset, turn=turn
        )
        try:
            self._decide(Arrived(request, arrived.body), context)
        except KairosError:
            self._pool_calls.remove(request.id)
            raise

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
                self._hear_of_arrival(event, told, offset)
            case FirstToken() | PrefillFailed() | Finished() | Failed() | Cancelled() | Bounced():
                self._hear_of_call(event, told, offset)
            case Progressed(completion_tokens=counts):
                self._hear_of_progress(counts, told.performer, offset)
            case WorkflowEnded(workflow_id=workflow_id):
                context = FactContext(workflow_id=workflow_id, cause=offset)
                self._decide(event, context)
            case PlanDeclared():
                self._decide(event, FactContext(cause=offset))
            case _:
                raise InvalidRequest(f"a performer cannot report {type(event).__name__}")

    def _admit_here(self, arrived: Arrived, offset: int, call: BusCall) -> None:
        self._admit(arrived, self._ourselves, offset, call=call)

    def _hear_of_arrival(self, arrived: Arrived, told: Told, offset: int) -> None:
        try:
            check_event(arrived)
            self._admit(arrived, told.performer, offset, turn=told.turn)
        except KairosError as error:
            declined = Declined.of(arrived.request.id, error)
            self._publisher.refuse(told.performer, declined, told.turn, offset)

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
            self._decide(event, context)
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
        self._decide(Progressed(theirs), FactContext(cause=offset))

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
        self._decide(Cancelled(request.id), context)
        if opened.call is not None:
            self._bus_calls.redo(opened)
        else:  # in case the performer was only disconnected for a while
            gone = Unavailable("this process sent no sign of life for too long")
            declined = Declined.of(request.id, gone)
            self._publisher.order(opened.performer, [(declined, opened.turn)])


class BusCallsHere:
    """Start calls over the bus, adopt a predecessor's calls, and repeat lost ones.

    A call may be what kills its process. The log counts the processes that died while performing
    it: after two deaths it is performed alone, one such call at a time; after three it is refused.
    """

    def __init__(
        self,
        ourselves: str,
        calls: BusCalls,
        admit: Callable[[Arrived, int, BusCall], None],
        publisher: DecisionPublisher,
        pool_calls: PoolCalls,
        clock: Clock,
    ) -> None:
        """Create it.

        Args:
            ourselves: The performer of this process.
            calls: Performs and answers the calls.
            admit: Has the arrival of a call decided on, with the offset of its message.
            publisher: Output of the decisions.
            pool_calls: Open calls of the pool.
            clock: The clock.
        """
        self._ourselves = ourselves
        self._calls = calls
        self._admit = admit
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
        else:  # `admit` refuses a call that was just answered here until it has ended
            self._start(call, offset)

    def _start(self, call: BusCall, offset: int) -> asyncio.Task[None]:
        def arrive(event: Event) -> None:
            assert isinstance(event, Arrived)
            if (lost := _lost_with(call)) >= _REFUSED_AFTER:
                raise UpstreamFailed(f"{lost} processes died in a row that performed this call")
            self._admit(event, offset, call)
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


class Liveness:
    """Liveness of performers. Time is an argument, in µs.

    This process's own signs of life take the same way over the bus as the others'. While its
    own do not arrive, the silence of others means nothing.
    """

    def __init__(self, ourselves: str, performers: Iterable[str], now: int) -> None:
        self._ourselves = ourselves
        self._heard_at = {**dict.fromkeys(performers, now), ourselves: now}

    def hear(self, performer: str, now: int) -> None:
        silent_us = now - self._heard_at[self._ourselves]
        if performer == self._ourselves and silent_us > 2 * BEAT_S * SECOND:
            self._heard_at = dict.fromkeys(self._heard_at, now)  # theirs may be delayed, too
        self._heard_at[performer] = now

    def take_lost(self, now: int) -> set[str]:
        """Return the performers that fell silent, and forget them."""
        if now - self._heard_at[self._ourselves] > _STALLED_S * SECOND:
            return set()
        lost = {each for each, at in self._heard_at.items() if at + LOST_S * SECOND < now}
        for each in lost:
            del self._heard_at[each]
        return lost

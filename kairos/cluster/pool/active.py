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

from kairos.cluster.decisions.messages import Declined, LoggedDecision
from kairos.cluster.decisions.open_calls import OpenCall, OpenCallTable
from kairos.cluster.decisions.reports import LOST_S, Liveness, Report, Reports
from kairos.cluster.kafka.items import ReceivedMessage
from kairos.cluster.pool.bus_calls import BusCall, BusCalls, read_call
from kairos.cluster.pool.decision_publisher import DecisionPublisher
from kairos.cluster.pool.messages import (
    ALIVE,
    CALL,
    TOLD,
    TYPE_HEADER,
    Alive,
    Told,
    check_event,
    read_told,
)
from kairos.core import (
    SECOND,
    Arrived,
    Balancer,
    Cancelled,
    Clock,
    Dispatch,
    Event,
    FirstToken,
    InstanceJoined,
    InstanceLeft,
    InvalidRequest,
    KairosError,
    Observer,
    PlanDeclared,
    PrefillFailed,
    Record,
    Refuse,
    Tick,
    Unavailable,
    UpstreamFailed,
    WorkflowEnded,
)

logger = logging.getLogger(__name__)

_ALONE_AFTER = 2  # processes that died while they performed a call
_REFUSED_AFTER = 3
_WATCH_S = 0.5
_KIND = 40  # characters of an unknown type that an error quotes
# How far a successor reads back beyond the oldest call in flight, to learn the state of workflows
# that have no call in flight. A longer time would be correct, too, but slower.
_RECALL_US = 60 * SECOND

_OURS = ""  # the performer of a fact of this process
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
        open_calls: OpenCallTable,
        calls: BusCalls,
        clock: Clock,
        observers: tuple[Observer, ...],
    ) -> None:
        """`ourselves` is this process's performer, which also runs the bus's calls."""
        self.balancer = balancer
        self._pool = pool
        self._ourselves = ourselves
        self._publisher = publisher
        self.open_calls = open_calls
        self._calls = calls
        self._clock = clock
        self._observers = observers
        self._reports = Reports(open_calls, clock, self._decide, self._decline)
        self._bus_calls = BusCallsHere(
            ourselves, calls, self._admit_here, publisher, open_calls, clock
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
        return offset, self.open_calls.oldest_at(now) - _RECALL_US

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

    def recall(self, decision: LoggedDecision) -> None:
        """Replay a decision of an earlier balancer."""
        record = decision.record
        record = msgspec.structs.replace(record, at=min(record.at, self._clock.now()))
        if decision.cause is not None:
            self._recorded.add(decision.cause)
        self.open_calls.recall(msgspec.structs.replace(decision, record=record))
        self.balancer.replay(record)

    def begin(
        self, backlog: Iterable[ReceivedMessage], instances: Mapping[str, InstanceJoined]
    ) -> None:
        """Continue from the recalled state, with the instances that are known now."""
        performers = {each.performer for each in self.open_calls.all()}
        self._liveness = Liveness(self._ourselves, performers, self._clock.now())
        opened = {each.cause: each for each in self.open_calls.all()}
        unknown: list[ReceivedMessage] = []
        for message in backlog:
            self._publisher.offsets.add(message.offset)
            if message.offset not in self._recorded:
                unknown.append(message)
            elif message.offset in opened:
                self._adopt(opened[message.offset], message)
            else:
                self._publisher.offsets.done(message.offset)
        for each in self.open_calls.all():
            if each.to_redo or each.refused is not None:
                self.open_calls.remove(each.request.id)  # its message is done
            elif each.dispatch is not None:  # repeated: the order may have been lost
                again = Dispatch(each.request.id, each.dispatch.instance_id)
                self._publisher.order(each.performer, [(again, each.turn)])
        self._compare(instances)
        for message in unknown:
            self.take(message)
        self._recorded.clear()
        self.feed(Tick())

    def _adopt(self, opened: OpenCall, message: ReceivedMessage) -> None:
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
        """Handle a message. Raises Exception: The message is malformed, in any way."""
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
        self._bus_calls.leave()

    def feed(self, event: Event) -> None:
        """Decide on a fact of this process: about instances, learnt profiles or time."""
        self._decide(event, Report(_OURS, event))

    def _decide(
        self, event: Event, report: Report, *, redo: bool = False, bus_call: BusCall | None = None
    ) -> None:
        """Decide on a fact, and publish the decision. Commands are performed once it is committed.

        Raises:
            KairosError: The fact is refused (see `Balancer.handle`); nothing is published.
        """
        at = self._clock.now()
        record = Record(at, event, tuple(self.balancer.handle(event, at)))
        decision = LoggedDecision(record, report.performer, report.cause, report.turn, redo)
        self._publisher.publish(decision, bus_call)
        for observe in self._observers:
            observe(record)

    def _decline(self, report: Report, refusal: Refuse | Declined) -> None:
        assert report.cause is not None
        self._publisher.refuse(report.performer, refusal, report.turn, report.cause)

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
            for each in self.open_calls.performed_by(lost):
                self._give_up(each)

    def _hear(self, told: Told, offset: int) -> None:
        event, report = told.event, Report(told.performer, told.event, told.turn, offset)
        opened = self.open_calls.get(getattr(event, "request_id", ""))
        if opened is None or not self._is_old(opened, event):
            if isinstance(event, Arrived):
                try:
                    check_event(event)
                except InvalidRequest as error:
                    self._decline(report, Declined.of(event.request.id, error))
                    return
            if self._reports.hear(report):
                if not isinstance(event, WorkflowEnded | PlanDeclared):  # others say these, too
                    self._liveness.hear(told.performer, self._clock.now())
                return
        if isinstance(event, Cancelled):
            self._calls.leave(event.request_id, told.performer)
        self._publisher.offsets.done(offset)  # already cancelled, or another performer's call

    def _admit_here(self, arrived: Arrived, offset: int, call: BusCall) -> None:
        request = self._reports.admitted(arrived.request)
        admitted = Arrived(request, arrived.body)
        self._decide(admitted, Report(self._ourselves, admitted, cause=offset), bus_call=call)

    def _is_old(self, opened: OpenCall, event: Event) -> bool:
        """Return whether the event is about an earlier attempt of a call that this process repeats.

        A call over the bus is in progress until its end has been published.
        """
        is_ours = opened.bus_call is not None and opened.performer == self._ourselves
        is_performed = self._calls.performs(opened.request.id)
        return is_ours and is_performed and not isinstance(event, FirstToken | PrefillFailed)

    def _give_up(self, opened: OpenCall) -> None:
        """Cancel a call whose performer is dead; repeat it if it came over the bus."""
        cancelled = Cancelled(opened.request.id)
        is_from_bus = opened.bus_call is not None
        self._decide(cancelled, Report(_OURS, cancelled), redo=is_from_bus)
        if is_from_bus:
            self._bus_calls.redo(opened)
        else:  # in case the performer was only disconnected for a while
            gone = Unavailable("this process sent no sign of life for too long")
            declined = Declined.of(opened.request.id, gone)
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
        open_calls: OpenCallTable,
        clock: Clock,
    ) -> None:
        """`admit` has the arrival of a call decided on, with the offset of its message."""
        self._ourselves = ourselves
        self._calls = calls
        self._admit = admit
        self._publisher = publisher
        self._open_calls = open_calls
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
        opened = self._open_calls.get(call.request.id)
        goes_on = (
            opened is not None
            and opened.bus_call is not None
            and opened.performer != self._ourselves
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

    def adopt(self, opened: OpenCall, message: ReceivedMessage) -> None:
        """Adopt a call that had not ended, from the message of its arrival."""
        if message.headers.get(TYPE_HEADER) != CALL:
            if opened.refused is not None:  # repeated: the order may have been lost
                self._open_calls.remove(opened.request.id)
                self._publisher.refuse(
                    opened.performer, opened.refused, opened.turn, message.offset
                )
            return
        opened.bus_call = call = read_call(message, self._clock.now())
        if opened.to_redo or opened.refused is not None:
            self.redo(opened)
        elif opened.dispatch is None:
            self._perform_here(opened, call, message.offset)

    def _perform_here(self, opened: OpenCall, call: BusCall, offset: int) -> None:
        """Perform a waiting call here. Its arrival is recorded again, with the new performer."""
        record = Record(self._clock.now(), Arrived(opened.request))
        self._publisher.publish(LoggedDecision(record, self._ourselves, offset), call)
        if self._calls.performing(call.request.id) is None:
            call.admitted = True
            self._calls.start(call, lambda _: None)

    def redo(self, opened: OpenCall) -> None:
        """Repeat a call that came over the bus, in this process."""
        call, offset = opened.bus_call, opened.cause
        assert isinstance(call, BusCall)
        assert offset is not None
        self._open_calls.remove(opened.request.id)
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

"""The decider's side of its workers: their facts in, orders out.

Guarantees: a decision is in the journal before any worker receives it, so a restarted decider
continues from there. A fact that is not in the journal has not been acknowledged, so its worker
sends it again. Facts are numbered, so none counts twice.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator

import msgspec

from kairos.cluster.decisions.messages import Declined, LoggedDecision, Order
from kairos.cluster.decisions.open_calls import OpenCall, OpenCallTable
from kairos.cluster.decisions.reports import LOST_S, OF_CALLS, Liveness, Report, Reports
from kairos.cluster.workers.journal import Entry, Journal
from kairos.cluster.workers.link import FrameLink
from kairos.cluster.workers.messages import (
    AT_ONCE,
    Engines,
    Fact,
    FromWorker,
    Hello,
    InFlight,
    OfInstance,
    OrderFrame,
    QuestionAnswered,
    Trouble,
)
from kairos.core import (
    Cancelled,
    Clock,
    Command,
    Dispatch,
    Event,
    InstanceJoined,
    InstanceLeft,
    InstanceStatus,
    KairosError,
    ProfilesLearnt,
    Progressed,
    Record,
    Refuse,
    Tick,
    UpstreamUnreachable,
)

logger = logging.getLogger(__name__)

_WATCH_S = 0.5
_OURSELVES = ""

# Facts that matter for a second at most, or are stored in a file; their decisions are recorded.
_PASSING = Tick | InstanceStatus | Progressed | ProfilesLearnt

_encode = msgspec.msgpack.Encoder().encode
_messages = msgspec.msgpack.Decoder(list[FromWorker])


class Peer:
    """A connected worker, as the decider sees it."""

    def __init__(self, link: FrameLink) -> None:
        self.link = link
        self.worker = ""  # it has not said its name
        self.handled = self.acknowledged = 0  # numbers of facts
        self.orders: list[Order] = []
        self.engines: Engines | None = None  # news
        self.news: list[OfInstance] = []

    def send(self) -> None:
        """Send everything that the worker has not received yet."""
        if not (self.orders or self.news or self.engines or self.handled > self.acknowledged):
            return
        orders, self.orders = self.orders, []
        for start in range(0, max(1, len(orders)), AT_ONCE):
            some = orders[start : start + AT_ONCE]
            is_last = start + AT_ONCE >= len(orders)
            message = OrderFrame(
                self.handled if is_last else 0,
                tuple(command for command, _ in some),
                tuple(turn for _, turn in some),
                self.engines,
                tuple(self.news),
            )
            self.engines = None
            self.news.clear()
            self.link.send(_encode(message))
        self.acknowledged = self.handled


class Decider:
    """First observer of the runtime: write records to the journal, and send commands to workers.

    `recall` earlier decisions, then `begin`, then accept workers by `link`; run `watch`
    concurrently.
    """

    def __init__(self, journal: Journal, clock: Clock) -> None:
        self.calls = OpenCallTable()
        self.engines = Engines()
        self._numbers: dict[str, int] = {}  # by worker, of its last fact here
        self._reports = Reports(self.calls, clock, self._decide, self._decline)
        self._journal = journal
        self._clock = clock
        self._peers: dict[str, Peer] = {}  # by worker
        self._links: dict[FrameLink, Peer] = {}  # those, too, that have not said their name
        self._joined: dict[str, InstanceJoined] = {}  # instances that have not left
        self._refused: dict[str, Refuse] = {}  # before a restart; they may not know
        self._cause = Report(_OURSELVES, Tick())  # of what is fed now
        self._is_flushing = False
        self._liveness = Liveness(_OURSELVES, (), clock.now())
        self._feed: Callable[[Event], None] = lambda _: None
        self._on_trouble: Callable[[UpstreamUnreachable], None] = lambda _: None
        self._on_errors: Callable[[str, int], None] = lambda *_: None

    def recall(self) -> list[Record]:
        """Return the records of earlier deciders, to be replayed."""
        now, records = self._clock.now(), []
        for entry in self._journal.read():
            self._apply(entry)
            if entry.decision is not None:
                record = entry.decision.record
                self._follow(record.event)
                records.append(msgspec.structs.replace(record, at=min(record.at, now)))
                refused = (each for each in record.commands if isinstance(each, Refuse))
                self._refused.update((each.request_id, each) for each in refused)
        workers = {each.performer for each in self.calls.all()}
        self._liveness = Liveness(_OURSELVES, workers, now)
        return records

    def begin(
        self,
        feed: Callable[[Event], None],
        on_trouble: Callable[[UpstreamUnreachable], None],
        on_errors: Callable[[str, int], None],
    ) -> None:
        self._feed, self._on_trouble, self._on_errors = feed, on_trouble, on_errors

    def link(self) -> FrameLink:
        link = FrameLink(self._read, self._gone)
        self._links[link] = Peer(link)
        return link

    def __call__(self, record: Record) -> None:
        self._follow(record.event)
        if isinstance(record.event, _PASSING):
            if not record.commands:
                return
            record = Record(record.at, Tick(), record.commands)
        cause = self._cause
        self._keep(Entry(LoggedDecision(record, cause.performer, cause.cause, cause.turn)))

    def use(self, engines: Engines) -> None:
        """Set the instances in use; a worker receives them before any order."""
        if engines != self.engines:
            self._keep(Entry(engines=engines))
            for peer in self._peers.values():
                peer.engines = engines

    async def watch(self) -> None:
        """Cancel the calls of dead workers, until cancelled."""
        while True:
            await asyncio.sleep(_WATCH_S)
            now = self._clock.now()
            self._liveness.hear(_OURSELVES, now)
            for worker in self._liveness.take_lost(now):
                if (peer := self._peers.get(worker)) is not None:
                    peer.link.abort(f"it sent nothing for {LOST_S:g} s")
                else:
                    self._lose(worker)
            self._schedule()

    def _follow(self, event: Event) -> None:
        """Track the instances; workers need to know which ones have left."""
        if not isinstance(event, OfInstance):
            return
        if isinstance(event, InstanceJoined):
            self._joined[event.instance.id] = event
        elif isinstance(event, InstanceLeft):
            self._joined.pop(event.instance_id, None)
        for peer in self._peers.values():
            peer.news.append(event)
            self._schedule()

    def _keep(self, entry: Entry) -> None:
        """Write an entry, and send the commands of its decision."""
        for call, command in self._apply(entry):
            self._order(call.performer, command, call.turn)
        self._journal.add(entry)
        self._schedule()

    def _apply(self, entry: Entry) -> list[tuple[OpenCall, Command]]:
        """Apply an entry; return the commands of its decision, with their calls."""
        self._numbers.update(entry.numbers or {})
        if entry.engines is not None:
            self.engines = entry.engines
        if (decision := entry.decision) is None:
            return []
        if decision.cause is not None:
            worker = decision.performer
            self._numbers[worker] = max(decision.cause, self._numbers.get(worker, 0))
        return self.calls.apply(decision).commands

    def _carried(self) -> Iterator[Entry]:
        """Yield entries that a new file of the journal starts with: they restore all open calls."""
        yield Entry(engines=self.engines, numbers=self._numbers)
        yield from map(Entry, self.calls.course())

    def _order(self, worker: str, command: Dispatch | Refuse | Declined, turn: int) -> None:
        """Send a command to a worker.

        If it is disconnected, the command is repeated when it reconnects.
        """
        if (peer := self._peers.get(worker)) is not None:
            peer.orders.append((command, turn))
            self._schedule()

    def _schedule(self) -> None:
        if not self._is_flushing:
            self._is_flushing = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flushing = False
        self._journal.write(self._carried)
        for peer in self._peers.values():
            peer.send()

    def _read(self, link: FrameLink, payload: bytes) -> None:
        """Read messages of a worker. Raises ValueError: A message is malformed."""
        messages: Iterable[FromWorker] = _messages.decode(payload)
        peer = self._links[link]
        for message in messages:
            if isinstance(message, Hello):
                self._greet(peer, message.worker)
            elif not peer.worker:
                raise ValueError("a worker's first message must be its name")
            else:
                self._hear(peer, message)
        if peer.worker in self._peers:
            self._liveness.hear(peer.worker, self._clock.now())

    def _greet(self, peer: Peer, worker: str) -> None:
        peer.worker, peer.engines = worker, self.engines
        peer.news = [*self._joined.values()]
        peer.handled = self._numbers.get(worker, 0)
        self._peers[worker] = peer
        self._schedule()

    def _hear(self, peer: Peer, message: FromWorker) -> None:
        match message:
            case Fact():
                if message.number > peer.handled:
                    peer.handled = message.number
                    self._hear_fact(peer.worker, message)
                    self._schedule()
            case InFlight(turns=turns):
                self._compare(peer.worker, turns)
            case Trouble(instance_id=instance_id, cause=cause, refused=refused):
                self._on_trouble(UpstreamUnreachable(instance_id, cause, refused=refused))
            case QuestionAnswered(errors=errors):
                for code, count in errors.items():
                    self._on_errors(code, count)

    def _hear_fact(self, worker: str, fact: Fact) -> None:
        """Decide on a fact. A faulty one is left out, and counts as handled.

        If its link were closed instead, the worker would resend the fact and lose its calls each
        time.
        """
        event, report = fact.event, Report(worker, fact.event, fact.turn, fact.number)
        try:
            self._reports.hear(report, self._refused.get(getattr(event, "request_id", "")))
        except KairosError as error:
            logger.warning("%s of %s is left out: %s", type(event).__name__, worker, error)
            if isinstance(event, OF_CALLS):  # the call may wait for what is decided on it
                self._decline(report, Declined.of(event.request_id, error))

    def _decide(self, event: Event, report: Report) -> None:
        """Decide on a fact of a worker, and note in the journal that it was this one."""
        self._cause, before = report, self._cause
        try:
            self._feed(event)
        finally:
            self._cause = before

    def _decline(self, report: Report, refusal: Refuse | Declined) -> None:
        self._order(report.performer, refusal, report.turn)

    def _compare(self, worker: str, turns: dict[str, int]) -> None:
        """Repeat decisions on the worker's calls, in case it has missed some."""
        opened = {each.request.id: each for each in self.calls.performed_by([worker])}
        for request_id, turn in turns.items():
            call = opened.pop(request_id, None)
            if call is None:
                report = Report(worker, Tick(), turn)
                self._reports.decline_unknown(request_id, report, self._refused.get(request_id))
            elif call.dispatch is not None:
                self._order(worker, call.dispatch, call.turn)
        self._cancel(opened)

    def _gone(self, link: FrameLink) -> None:
        peer = self._links.pop(link)
        if self._peers.get(peer.worker) is peer:
            if link.problem is not None:
                logger.warning("%s is cut off: %s", peer.worker, link.problem)
            self._lose(peer.worker)

    def _lose(self, worker: str) -> None:
        """Cancel all calls of a dead worker at once, to free what they had booked."""
        self._peers.pop(worker, None)
        self._liveness.forget(worker)
        calls = [each.request.id for each in self.calls.performed_by([worker])]
        if calls:
            logger.warning("%s is gone; its %d calls are cancelled", worker, len(calls))
        self._cancel(calls)
        self._numbers.pop(worker, None)  # it does not come back

    def _cancel(self, request_ids: Iterable[str]) -> None:
        for request_id in request_ids:
            self._feed(Cancelled(request_id))

"""The decider's side of its workers: their facts in, orders out.

Guarantees: a decision is in the journal before any worker receives it, so a restarted decider
continues from there. A fact that is not in the journal has not been acknowledged, so its worker
sends it again. Facts are numbered, so none counts twice.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable

import msgspec

from kairos.cluster.pool.messages import Declined, Order
from kairos.cluster.workers.journal import Journal
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
from kairos.cluster.workers.worker_calls import Entry, OpenCall, WorkerCalls
from kairos.core import (
    SECOND,
    Arrived,
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
    InstanceStatus,
    KairosError,
    PrefillFailed,
    ProfilesLearnt,
    Progressed,
    Record,
    Refuse,
    RequestIdTaken,
    RequestInFlight,
    Tick,
    Unavailable,
    UpstreamUnreachable,
)

logger = logging.getLogger(__name__)

LOST_S = 5.0  # of silence: a worker that is stopped, or does not reconnect after a restart
_WATCH_S = 0.5
_STALLED_S = 2.5  # in which this process itself was stalled: then silence means nothing

# Facts that matter for a second at most, or are stored in a file; their decisions are recorded.
_PASSING = Tick | InstanceStatus | Progressed | ProfilesLearnt
_OF_CALLS = FirstToken | PrefillFailed | Finished | Failed | Cancelled | Bounced

_encode = msgspec.msgpack.Encoder().encode
_messages = msgspec.msgpack.Decoder(list[FromWorker])


class Peer:
    """A connected worker, as the decider sees it."""

    def __init__(self, link: FrameLink, now: int) -> None:
        self.link = link
        self.worker = ""  # it has not said its name
        self.heard_at = now
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
        self.worker_calls = WorkerCalls()
        self._journal = journal
        self._clock = clock
        self._peers: dict[str, Peer] = {}  # by worker
        self._links: dict[FrameLink, Peer] = {}  # those, too, that have not said their name
        self._awaited: dict[str, int] = {}  # workers before a restart, and since when
        self._joined: dict[str, InstanceJoined] = {}  # instances that have not left
        self._refused: dict[str, Refuse] = {}  # before a restart; they may not know
        self._cause = Entry()  # of what is fed now
        self._is_flushing = False
        self._watched_at = clock.now()
        self._feed: Callable[[Event], None] = lambda _: None
        self._on_trouble: Callable[[UpstreamUnreachable], None] = lambda _: None
        self._on_errors: Callable[[str, int], None] = lambda *_: None

    def recall(self) -> list[Record]:
        """Return the records of earlier deciders, to be replayed."""
        now, records = self._clock.now(), []
        for entry in self._journal.read():
            self.worker_calls.follow(entry)
            if (record := entry.record) is not None:
                self._follow(record.event)
                records.append(msgspec.structs.replace(record, at=min(record.at, now)))
                refused = (each for each in record.commands if isinstance(each, Refuse))
                self._refused.update((each.request_id, each) for each in refused)
        self._awaited = dict.fromkeys(self.worker_calls.workers(), now)
        return records

    def begin(
        self,
        feed: Callable[[Event], None],
        on_trouble: Callable[[UpstreamUnreachable], None],
        on_errors: Callable[[str, int], None],
    ) -> None:
        self._feed, self._on_trouble, self._on_errors = feed, on_trouble, on_errors

    def link(self) -> FrameLink:
        """Return the link for a worker that connects."""
        link = FrameLink(self._read, self._gone)
        self._links[link] = Peer(link, self._clock.now())
        return link

    def __call__(self, record: Record) -> None:
        self._follow(record.event)
        if isinstance(record.event, _PASSING):
            if not record.commands:
                return
            record = Record(record.at, Tick(), record.commands)
        cause = self._cause
        self._keep(Entry(cause.worker, cause.number, cause.turn, record))

    def use(self, engines: Engines) -> None:
        """Set the instances in use; a worker receives them before any order."""
        if engines != self.worker_calls.engines:
            self._keep(Entry(engines=engines))
            for peer in self._peers.values():
                peer.engines = engines

    async def watch(self) -> None:
        """Cancel the calls of dead workers, until cancelled."""
        while True:
            await asyncio.sleep(_WATCH_S)
            now = self._clock.now()
            if now - self._watched_at > _STALLED_S * SECOND:
                for peer in self._peers.values():
                    peer.heard_at = now
            self._watched_at = now
            silent_since = now - int(LOST_S * SECOND)
            for peer in [each for each in self._peers.values() if each.heard_at < silent_since]:
                peer.link.abort(f"it sent nothing for {LOST_S:g} s")
            for worker, since in list(self._awaited.items()):
                if since < silent_since:
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
        for call, command in self.worker_calls.follow(entry):
            self._order(call.worker, command, call.turn)
        self._journal.add(entry)
        self._schedule()

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
        """Write the journal, then send the orders."""
        self._is_flushing = False
        self._journal.write(self.worker_calls.carried)
        for peer in self._peers.values():
            peer.send()

    def _read(self, link: FrameLink, payload: bytes) -> None:
        """Read messages of a worker.

        Raises:
            ValueError: A message is malformed.
        """
        messages: Iterable[FromWorker] = _messages.decode(payload)
        peer = self._links[link]
        peer.heard_at = self._clock.now()
        for message in messages:
            if isinstance(message, Hello):
                self._greet(peer, message.worker)
            elif not peer.worker:
                raise ValueError("a worker's first message must be its name")
            else:
                self._hear(peer, message)

    def _greet(self, peer: Peer, worker: str) -> None:
        peer.worker, peer.engines = worker, self.worker_calls.engines
        peer.news = [*self._joined.values()]
        peer.handled = self.worker_calls.numbers.get(worker, 0)
        self._peers[worker] = peer
        self._awaited.pop(worker, None)
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
        event = fact.event
        self._cause = Entry(worker, fact.number, fact.turn)
        try:
            if isinstance(event, Arrived):
                self._arrive(event, worker, fact.turn)
            elif isinstance(event, _OF_CALLS):
                call = self.worker_calls.get(event.request_id)
                if call is not None and call.worker == worker:
                    self._feed(event)
                elif call is None and isinstance(event, Bounced):  # given up on an earlier turn
                    self._decline(worker, event.request_id, fact.turn)
            else:
                self._feed(event)
        except KairosError as error:
            self._refuse_fact(worker, fact, error)
        finally:
            self._cause = Entry()

    def _refuse_fact(self, worker: str, fact: Fact, error: KairosError) -> None:
        """Leave a faulty fact out, which then counts as handled.

        If its link were closed instead, the worker would resend the fact and lose its calls each
        time.
        """
        event = fact.event
        logger.warning("%s of %s is left out: %s", type(event).__name__, worker, error)
        if isinstance(event, _OF_CALLS):  # the call may wait for what is decided on it
            self._order(worker, Declined.of(event.request_id, error), fact.turn)

    def _arrive(self, arrived: Arrived, worker: str, turn: int) -> None:
        request, now = arrived.request, self._clock.now()
        request = msgspec.structs.replace(
            request,
            arrived_at=min(request.arrived_at, now),
            workflow_started_at=min(request.workflow_started_at, now),
        )
        try:
            other = self.worker_calls.get(request.id)
            if other is not None:
                is_own = other.tenant == request.tenant
                raise (RequestInFlight if is_own else RequestIdTaken)(request.id)
            self._feed(Arrived(request, arrived.body))
        except KairosError as error:
            self._order(worker, Declined.of(request.id, error), turn)

    def _compare(self, worker: str, turns: dict[str, int]) -> None:
        """Repeat decisions on the worker's calls, in case it has missed some."""
        opened = self.worker_calls.of(worker)
        for request_id, turn in turns.items():
            call = opened.pop(request_id, None)
            if call is None:
                self._decline(worker, request_id, turn)
            elif call.dispatch is not None:
                self._order(worker, call.dispatch, call.turn)
        self._cancel(opened)

    def _decline(self, worker: str, request_id: str, turn: int) -> None:
        """Refuse a call that is not open here: it was refused earlier, or is lost."""
        lost = Declined.of(request_id, Unavailable("the call is no longer known"))
        self._order(worker, self._refused.get(request_id, lost), turn)

    def _gone(self, link: FrameLink) -> None:
        peer = self._links.pop(link)
        if self._peers.get(peer.worker) is peer:
            if link.problem is not None:
                logger.warning("%s is cut off: %s", peer.worker, link.problem)
            self._lose(peer.worker)

    def _lose(self, worker: str) -> None:
        """Cancel all calls of a dead worker at once, to free what they had booked."""
        self._peers.pop(worker, None)
        self._awaited.pop(worker, None)
        calls = self.worker_calls.of(worker)
        if calls:
            logger.warning("%s is gone; its %d calls are cancelled", worker, len(calls))
        self._cancel(calls)
        self.worker_calls.forget(worker)

    def _cancel(self, calls: dict[str, OpenCall]) -> None:
        for request_id in calls:
            self._feed(Cancelled(request_id))

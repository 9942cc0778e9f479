"""A worker's connection to the decider: facts about calls out, orders in."""

import asyncio
import logging
from collections import Counter, deque
from functools import partial
from pathlib import Path

import msgspec

from kairos.cluster.decisions.orders import AwaitedOrders
from kairos.cluster.decisions.reports import BEAT_S
from kairos.cluster.workers.link import FrameLink
from kairos.cluster.workers.messages import (
    AT_ONCE,
    Beat,
    Fact,
    FromWorker,
    Hello,
    InFlight,
    OrderFrame,
    QuestionAnswered,
    Trouble,
)
from kairos.core import (
    Arrived,
    Bounced,
    Cancelled,
    Clock,
    Event,
    Failed,
    Finished,
    KairosError,
    PlanDeclared,
    Progressed,
    Unavailable,
    UpstreamUnreachable,
)
from kairos.engines import upstream_of
from kairos.proxy import HttpEngine

logger = logging.getLogger(__name__)

MAX_UNSAFE = 50_000  # facts that the decider has not acknowledged
_AGAIN_S = 0.05
_LAST_WORDS_S = 2.0

_encode = msgspec.msgpack.Encoder().encode
_orders = msgspec.msgpack.Decoder(OrderFrame)


class RemoteFactSink:
    """Counterpart of the runtime in a worker. `run` connects, and reconnects.

    A fact is kept until the decider acknowledges it, and sent again to a restarted decider. Facts
    of one turn of the event loop are sent as one frame.
    """

    def __init__(
        self, path: Path, worker: str, engine: HttpEngine, clock: Clock, *, max_wait_s: float
    ) -> None:
        self._path = path
        self._worker = worker
        self._engine = engine
        self._clock = clock
        self._awaited = AwaitedOrders(engine.calls, clock, max_wait_s=max_wait_s)
        self._turns: dict[str, int] = {}  # of all calls in flight
        self._unsafe: deque[Fact] = deque()
        self._number = 0
        self._untold: list[FromWorker] = []  # in this turn of the loop
        self._errors: Counter[str] = Counter()
        self._link: FrameLink | None = None
        self._is_flushing = self._is_done = False

    def now(self) -> int:
        return self._clock.now()

    def feed(self, event: Event) -> None:
        """Send a fact to the decider.

        Raises:
            Unavailable: A call arrived and too many facts are unacknowledged; or a plan is declared
                while disconnected. Plans are large, and the caller can declare one again.
        """
        if isinstance(event, Progressed) and self._link is None:
            return  # the next second's progress is newer
        if isinstance(event, PlanDeclared) and self._link is None:
            raise Unavailable("the decider is unreachable at the moment; try again")
        turn = self._note(event)
        self._number += 1
        fact = Fact(self._number, event, turn)
        self._unsafe.append(fact)
        self._tell(fact)

    def hear_of(self, trouble: UpstreamUnreachable) -> None:
        """Report an instance that a call could not reach, before the fact about the call."""
        self._tell(Trouble(trouble.instance_id, trouble.cause, trouble.refused))

    def count_error(self, error: KairosError) -> None:
        self._errors[error.code] += 1

    async def run(self) -> None:
        """Stay connected to the decider, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._beat())
            while True:
                link = await self._connect()
                await link.lost.wait()
                if self._is_done:
                    return
                logger.warning("calls wait for decisions: the decider is gone")

    async def finish(self) -> None:
        """Send the last messages: all calls have ended."""
        self._is_done = True
        if self._link is not None:
            self._tell_errors()
            self._flush()
            await self._link.close(_LAST_WORDS_S)

    def _note(self, event: Event) -> int:
        """Track calls in flight; return the turn that the call waits for."""
        if isinstance(event, Arrived | Bounced):
            if isinstance(event, Arrived):
                request_id = event.request.id
                if len(self._unsafe) >= MAX_UNSAFE:
                    raise Unavailable("the decider is unreachable at the moment; try again")
            else:
                request_id = event.request_id
            turn = self._turns[request_id] = self._awaited.ask(request_id)
            return turn
        if isinstance(event, Finished | Failed | Cancelled):
            self._turns.pop(event.request_id, None)
            self._awaited.forget(event.request_id)
        return 0

    def _tell(self, message: FromWorker) -> None:
        if self._link is None:
            return  # facts are kept, the rest is of no use later
        self._untold.append(message)
        if not self._is_flushing:
            self._is_flushing = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flushing = False
        untold, self._untold = self._untold, []
        for start in range(0, len(untold), AT_ONCE):
            if self._link is not None:
                self._link.send(_encode(untold[start : start + AT_ONCE]))

    async def _connect(self) -> FrameLink:
        """Connect to the decider.

        The supervisor holds the socket, so this works while no decider runs: the next one accepts
        it.
        """
        loop = asyncio.get_running_loop()
        while True:
            link = FrameLink(self._read, self._gone, self._introduce)
            try:
                await loop.create_unix_connection(partial(_same, link), str(self._path))
            except OSError as error:
                logger.warning("the decider cannot be reached: %s", error)
                await asyncio.sleep(_AGAIN_S)
            else:
                return link

    def _introduce(self, link: FrameLink) -> None:
        """Send the worker's state to a decider that may not know the last facts, or this worker."""
        self._link = link
        self._untold = [Hello(self._worker), *self._unsafe, InFlight(dict(self._turns))]
        self._flush()

    def _gone(self, link: FrameLink) -> None:
        if link is self._link:
            self._link, self._untold = None, []

    def _read(self, _: FrameLink, payload: bytes) -> None:
        orders = _orders.decode(payload)
        while self._unsafe and self._unsafe[0].number <= orders.acknowledged:
            self._unsafe.popleft()
        if orders.engines is not None:  # calls on a removed one continue
            self._engine.client.use(upstream_of(each) for each in orders.engines.all)
        for each in orders.news:
            self._engine.hear(each)
        self._awaited.obey(zip(orders.commands, orders.turns, strict=True))

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            self._tell(Beat())
            self._tell_errors()
            self._awaited.give_up()

    def _tell_errors(self) -> None:
        if self._errors and self._link is not None:
            self._tell(QuestionAnswered(dict(self._errors)))
            self._errors.clear()


def _same(link: FrameLink) -> FrameLink:
    return link

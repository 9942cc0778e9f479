"""Embedding, ingestion, search and rerank in virtual time: engines that process batches.

A batch of n items takes `fixed_us + n * item_us`, regardless of the items, and an engine processes
one at a time. Waiting items are batched as in `workflows/execute/batching.py` once an engine is
free, so items that arrive at the same instant can share a batch. Values are from
`processor_answers.py`.
"""

from collections.abc import Callable, Mapping
from functools import partial

import msgspec

from kairos.simulate.clock import VirtualClock
from kairos.simulate.flow_answers import SHORTEST
from kairos.simulate.processor_answers import processed
from kairos.workflows import (
    BatchOrder,
    BatchQueue,
    BatchShare,
    CallAnswered,
    Query,
    RunProcessor,
    TimeShares,
    topology_aware,
)


class ProcessorTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Times of a batch, in µs; `batch`: its maximum number of items."""

    fixed_us: int = 0
    item_us: int = 0
    batch: int = 16
    engines: int = 1


NO_TIME = ProcessorTimes(batch=1_000_000)

# Those that the paper on Teola gives, and others of the same kind beside them.
#   embed    figure 4: 48 chunks take 1.8 s in batches of 4, 1.35 s in batches of 16; so
#            12 * (fixed + 4 * item) = 1.8 s and 3 * (fixed + 16 * item) = 1.35 s
#   rerank   figure 3's totals, 4.1 s one after the other and 2.4 s overlapped, leave about 0.6 s
#            for 48 pairs: 3 * (fixed + 16 * item)
#   ingest, search   not told; assumed, of the order of pgvector
TEOLA: Mapping[str, ProcessorTimes] = {
    "embed": ProcessorTimes(fixed_us=50_000, item_us=25_000),
    "rerank": ProcessorTimes(fixed_us=50_000, item_us=9_400),
    "ingest": ProcessorTimes(fixed_us=10_000, item_us=1_000, batch=1_000),
    "search": ProcessorTimes(fixed_us=10_000, item_us=2_000, batch=1_000),
}

# The argument whose items take the time.
_KINDS = "embed", "ingest", "search", "rerank"


class Surroundings(msgspec.Struct, frozen=True, kw_only=True):
    """Surroundings of a simulated flow, other than its models.

    `processors`: times by kind, zero by default; `order`: of their batches.
    `function_us`: duration of each function. `shortest_answer`: minimum length of an answer, as a
    share of its maximum.
    """

    processors: Mapping[str, ProcessorTimes] = {}
    order: BatchOrder = topology_aware
    function_us: int = 0
    shortest_answer: float = SHORTEST


NOTHING_AROUND = Surroundings()


class BatchEngines:
    """Engines of one kind."""

    def __init__(
        self, clock: VirtualClock, times: ProcessorTimes, order: BatchOrder = topology_aware
    ) -> None:
        self._clock, self._times = clock, times
        self._waiting = BatchQueue(order)
        self._idle = times.engines
        self._left: dict[int, tuple[int, Callable[[], None]]] = {}  # items, and who is told

    def add(self, query: Query, depth: int, items: int, ended: Callable[[], None]) -> None:
        """`ended` is called when the last of its items is done."""
        number = self._waiting.add(query, depth, items)
        self._left[number] = (items, ended)
        self._clock.call_at(self._clock.now(), self._begin)

    def _begin(self) -> None:
        while self._idle and len(self._waiting):
            batch = self._waiting.take(self._times.batch)
            self._idle -= 1
            took_us = self._times.fixed_us + self._times.item_us * sum(e.items for e in batch)
            self._clock.call_at(self._clock.now() + took_us, partial(self._end, batch))

    def _end(self, batch: list[BatchShare]) -> None:
        self._idle += 1
        for share in batch:
            left, ended = self._left.pop(share.id)
            if left > share.items:
                self._left[share.id] = (left - share.items, ended)
            else:
                ended()
        self._begin()


class SimulatedProcessors:
    """Processors of all kinds. `tell` receives their answers."""

    def __init__(
        self, clock: VirtualClock, around: Surroundings, tell: Callable[[CallAnswered], None]
    ) -> None:
        self._tell, self._clock = tell, clock
        self._engines = {
            kind: BatchEngines(clock, around.processors.get(kind, NO_TIME), around.order)
            for kind in _KINDS
        }
        self._shares = {kind: TimeShares() for kind in _KINDS}

    def run(self, command: RunProcessor) -> None:
        begun = self._shares[command.kind].begin(command.items, self._clock.now())
        self._engines[command.kind].add(
            (command.stage, command.row),
            command.depth,
            command.items,
            partial(self._ended, command, begun),
        )

    def _ended(self, command: RunProcessor, begun: tuple[int, float]) -> None:
        took_us = round(self._shares[command.kind].end(begun, self._clock.now()))
        value = processed(command.kind, command.arguments)
        self._tell(CallAnswered(command.call, value, took_us=took_us))

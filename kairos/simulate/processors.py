"""Embedding, ingestion, search and rerank in virtual time: engines that process batches.

A batch of n items takes `fixed_us + n * item_us`, regardless of the items, and an engine processes
one at a time. Waiting items are batched as in `workflows/execute/batching.py` once an engine is
free, so items that arrive at the same instant can share a batch.

Results are made up, a function of the arguments only: a vector has eight numbers, by a hash of its
text; passages are ranked by one of them and the query. A row's own collection is really searched; a
stored one has made-up passages.
"""

from array import array
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import msgspec

from kairos.simulate.clock import VirtualClock
from kairos.simulate.flow_answers import SHORTEST, share_of
from kairos.workflows import (
    BatchOrder,
    BatchQueue,
    BatchShare,
    Query,
    RunProcessor,
    TimeShares,
    topology_aware,
)

DIMENSIONS = 8


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
        self._clock.call_at(self._clock.now(), self._begin_batches)

    def _begin_batches(self) -> None:
        while self._idle and len(self._waiting):
            batch = self._waiting.take(self._times.batch)
            self._idle -= 1
            took_us = self._times.fixed_us + self._times.item_us * sum(e.items for e in batch)
            self._clock.call_at(self._clock.now() + took_us, partial(self._end_batch, batch))

    def _end_batch(self, batch: list[BatchShare]) -> None:
        self._idle += 1
        for share in batch:
            left, ended = self._left.pop(share.id)
            if left > share.items:
                self._left[share.id] = (left - share.items, ended)
            else:
                ended()
        self._begin_batches()


class SimulatedProcessors:
    """Processors of all kinds. `tell` receives a call, its value, and the µs that it took."""

    def __init__(
        self, clock: VirtualClock, around: Surroundings, tell: Callable[[int, object, int], None]
    ) -> None:
        self._tell, self._clock = tell, clock
        self._engines = {
            kind: BatchEngines(clock, around.processors.get(kind, NO_TIME), around.order)
            for kind in _KINDS
        }
        self._shares = {kind: TimeShares() for kind in _KINDS}

    def run(self, command: RunProcessor) -> None:
        begun = self._shares[command.kind].begin_call(command.items, self._clock.now())
        self._engines[command.kind].add(
            (command.stage, command.row),
            command.depth,
            command.items,
            partial(self._ended, command, begun),
        )

    def _ended(self, command: RunProcessor, begun: tuple[int, float]) -> None:
        took_us = round(self._shares[command.kind].end_call(begun, self._clock.now()))
        value = processed(command.kind, command.arguments)
        self._tell(command.call, value, took_us)


def processed(kind: str, asked: Mapping[str, Any]) -> object:
    """Return the result for the arguments of a `RunProcessor` of this kind."""
    if kind == "embed":
        texts = asked["texts"]
        return vector(texts) if isinstance(texts, str) else [vector(each) for each in texts]
    if kind == "ingest":
        return _ingested(asked)
    if kind == "search":
        return _found(asked)
    query, passages = asked["query"], _texts(asked["passages"])
    return _best({each: share_of(f"{query} {each}") for each in passages}, asked["top_k"])


def vector(text: str) -> str:
    numbers = (2 * share_of(f"{at} {text}") - 1 for at in range(DIMENSIONS))
    return b64encode(array("f", numbers).tobytes()).decode()


def _ingested(asked: Mapping[str, Any]) -> object:
    texts, vectors = asked["texts"], asked["vectors"]
    pairs = ([texts], [vectors]) if isinstance(texts, str) else (texts, vectors)
    if "collection" in asked:
        return {"collection": asked["collection"], "count": len(pairs[0])}
    return {"texts": pairs[0], "vectors": pairs[1]}


def _found(asked: Mapping[str, Any]) -> list[object]:
    vectors = asked["vectors"]
    queries = [_numbers(each) for each in ([vectors] if isinstance(vectors, str) else vectors)]
    collection = asked["collection"]
    parts = collection if isinstance(collection, list) else [collection]
    if isinstance(collection, str):
        texts = [f"passage {number} of {collection}" for number in range(100)]
        parts = [{"texts": texts, "vectors": list(map(vector, texts))}]
    scores: dict[str, float] = {}
    for part in parts:
        for text, there in zip(part["texts"], part["vectors"], strict=True):
            numbers = _numbers(there)
            near = max(sum(map(float.__mul__, each, numbers)) for each in queries)
            scores[text] = max(near, scores.get(text, near))
    return _best(scores, asked["top_k"])


def _best(scores: Mapping[str, float], top_k: int) -> list[object]:
    best = sorted(scores.items(), key=lambda each: (-each[1], each[0]))[:top_k]
    return [{"text": text, "score": score} for text, score in best]


def _texts(passages: list[Any]) -> list[str]:
    return [each["text"] if isinstance(each, Mapping) else each for each in passages]


def _numbers(text: str) -> list[float]:
    return array("f", b64decode(text)).tolist()

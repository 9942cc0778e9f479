"""Batches of work of processors, as passed to their counters, and totals for /metrics."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Literal

import msgspec
from prometheus_client.core import Metric, SummaryMetricFamily

from kairos.core import InvalidRequest

Outcome = Literal["finished", "refused", "failed"]  # refused: the request is wrong


class Worked(msgspec.Struct, frozen=True):
    """Batch of work of a processor.

    `items`: texts embedded, passages ranked or ingested, or vectors searched for.
    """

    kind: str  # of operator
    processor: str  # HOST:PORT of an engine, or the store of collections
    outcome: Outcome
    items: int
    seconds: float


Note = Callable[[Worked], None]


@contextmanager
def noted(note: Note, kind: str, processor: str, items: int) -> Iterator[None]:
    """Report the batch that the block performs; a cancelled one is not reported."""
    began_s = time.monotonic()

    def tell(outcome: Outcome) -> None:
        note(Worked(kind, processor, outcome, items, time.monotonic() - began_s))

    try:
        yield
    except InvalidRequest:
        tell("refused")
        raise
    except Exception:
        tell("failed")
        raise
    tell("finished")


class ProcessorCount(msgspec.Struct, frozen=True):
    """Batches of a processor with one outcome, their items, and the seconds they took in total."""

    kind: str
    processor: str
    outcome: str
    batches: int
    items: int
    seconds: float


def batch_metrics(counts: Iterable[ProcessorCount]) -> Iterator[Metric]:
    labels = ["kind", "processor", "outcome"]
    items = SummaryMetricFamily(
        "kairos_processor_batch_items", "Batches of processors, and their items", labels=labels
    )
    seconds = SummaryMetricFamily(
        "kairos_processor_seconds", "Batches of processors, and their duration", labels=labels
    )
    for each in counts:
        of = [each.kind, each.processor, each.outcome]
        items.add_metric(of, count_value=each.batches, sum_value=each.items)
        seconds.add_metric(of, count_value=each.batches, sum_value=each.seconds)
    yield items
    yield seconds

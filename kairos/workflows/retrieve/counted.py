"""Totals of the processors' work, for /metrics."""

from collections.abc import Iterable, Iterator

import msgspec
from prometheus_client.core import Metric, SummaryMetricFamily


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
        "kairos_processor_batch_items",
        "Batches of processors, and their items",
        labels=labels,
    )
    seconds = SummaryMetricFamily(
        "kairos_processor_seconds",
        "Batches of processors, and their duration",
        labels=labels,
    )
    for each in counts:
        of = [each.kind, each.processor, each.outcome]
        items.add_metric(of, count_value=each.batches, sum_value=each.items)
        seconds.add_metric(of, count_value=each.batches, sum_value=each.seconds)
    yield items
    yield seconds

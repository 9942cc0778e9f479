"""What processors did, summed up, in /metrics."""

from collections.abc import Iterable, Iterator

import msgspec
from prometheus_client.core import Metric, SummaryMetricFamily


class ProcessorCount(msgspec.Struct, frozen=True):
    """Batches that a processor was asked for and that ended so, their items, and seconds that they
    took together."""

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
        "Batches that processors were asked for, and their items",
        labels=labels,
    )
    seconds = SummaryMetricFamily(
        "kairos_processor_seconds",
        "Batches that processors were asked for, and the time that they took",
        labels=labels,
    )
    for each in counts:
        of = [each.kind, each.processor, each.outcome]
        items.add_metric(of, count_value=each.batches, sum_value=each.items)
        seconds.add_metric(of, count_value=each.batches, sum_value=each.seconds)
    yield items
    yield seconds

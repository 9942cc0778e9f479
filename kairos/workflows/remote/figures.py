"""Metrics of a processor: its work, and the values it holds."""

from collections.abc import Iterator

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    Metric,
)

from kairos.workflows.remote.performing import ProcessorWork
from kairos.workflows.retrieve.counted import ProcessorCount, batch_metrics
from kairos.workflows.retrieve.worked import Worked

_MOST_APART = 1_000  # entries (kind, engine, outcome) that are counted separately


class ProcessorFigures:
    """Counts of a processor's batches and of passed values.

    `note` counts a batch. `passed_bytes`: values that other processors fetched.
    """

    def __init__(self) -> None:
        self._batches: dict[tuple[str, str, str], list[float]] = {}  # how many, items, seconds
        self.passed_bytes = 0

    def note(self, worked: Worked) -> None:
        of = worked.kind, worked.processor, worked.outcome
        if of not in self._batches and len(self._batches) == _MOST_APART:
            return
        counts = self._batches.setdefault(of, [0, 0, 0.0])
        for at, more in enumerate((1, worked.items, worked.seconds)):
            counts[at] += more

    def collect(self, work: ProcessorWork) -> Iterator[Metric]:
        yield from batch_metrics(
            ProcessorCount(*of, int(count), int(number), took_s)
            for of, (count, number, took_s) in self._batches.items()
        )
        yield from self._of_values(work)

    def _of_values(self, work: ProcessorWork) -> Iterator[Metric]:
        store = work.store
        yield GaugeMetricFamily(
            "kairos_processor_held_values", "Values held by this processor", value=len(store)
        )
        yield GaugeMetricFamily(
            "kairos_processor_held_bytes",
            "Bytes of the values held by this processor",
            value=store.held_bytes,
        )
        passed = CounterMetricFamily(
            "kairos_processor_value_bytes",
            "Vectors and collections of rows: kept here, fetched from other processors, sent to "
            "other processors, and sent to the process that runs the flow",
            labels=["way"],
        )
        for way, value in (
            ("kept", store.figures.kept_bytes),
            ("fetched", work.peers.fetched_bytes),
            ("given", self.passed_bytes),
            ("answered", work.answered_bytes),
        ):
            passed.add_metric([way], value)
        yield passed
        yield CounterMetricFamily(
            "kairos_processor_evicted_values",
            "Values that were dropped for want of room, or by their age",
            value=store.figures.evicted,
        )
        yield CounterMetricFamily(
            "kairos_processor_lost_values",
            "Values that were needed and were nowhere any more",
            value=work.lost,
        )

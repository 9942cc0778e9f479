"""Fast counters and histograms, for metrics that change with every call.

The client library's own take a lock at each step, for threads that do not exist here. These are
plain numbers until /metrics is scraped.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar


class Count(Collector):
    """Counter, optionally with one label; the given values of the label are exported from 0 on."""

    def __init__(
        self,
        name: str,
        documentation: str,
        created_s: float,
        label: str | None = None,
        values: Sequence[str] = ("",),
    ) -> None:
        self._name, self._documentation, self._created_s = name, documentation, created_s
        self._labels = [] if label is None else [label]
        self._counts: dict[str, float] = dict.fromkeys(values, 0)

    def add(self, amount: float = 1, value: str = "") -> None:
        self._counts[value] += amount

    def counts(self) -> Mapping[str, float]:
        """Return the counts by value of the label."""
        return self._counts

    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily(self._name, self._documentation, labels=self._labels)
        for value, count in self._counts.items():
            family.add_metric([value][: len(self._labels)], count, created=self._created_s)
        yield family


class Times(Collector):
    """Histogram of seconds, in buckets with these ascending upper bounds.

    The exemplar of a bucket is its last traced call.
    """

    def __init__(
        self, name: str, documentation: str, created_s: float, bounds: Sequence[float]
    ) -> None:
        self._name, self._documentation, self._created_s = name, documentation, created_s
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0
        self._exemplars: dict[int, Exemplar] = {}  # by bucket

    def see(self, seconds: float, trace_id: str | None = None) -> None:
        bucket = bisect_left(self._bounds, seconds)
        self._counts[bucket] += 1
        self._sum += seconds
        if trace_id is not None:
            self._exemplars[bucket] = Exemplar({"trace_id": trace_id}, seconds)

    def collect(self) -> Iterator[Metric]:
        names = [*(str(float(each)) for each in self._bounds), "+Inf"]
        buckets: list[tuple[str, float] | tuple[str, float, Exemplar]] = []
        total = 0
        for place, (name, count) in enumerate(zip(names, self._counts, strict=True)):
            total += count
            exemplar = self._exemplars.get(place)
            buckets.append(
                (name, float(total)) if exemplar is None else (name, float(total), exemplar)
            )
        family = HistogramMetricFamily(self._name, self._documentation)
        family.add_metric([], buckets, self._sum)
        family.add_sample(f"{self._name}_created", {}, self._created_s)
        yield family

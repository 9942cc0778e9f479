"""Counters and histograms that cost little to count, for figures that change with every call.

The client library's own take a lock at each step, for threads of which there are none here. These
are plain numbers until /metrics is asked for.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector


class Count(Collector):
    """A counter; by the values of one label, if it has one. Those given are shown from 0 on."""

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
        """By the values of the label."""
        return self._counts

    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily(self._name, self._documentation, labels=self._labels)
        for value, count in self._counts.items():
            family.add_metric([value][: len(self._labels)], count, created=self._created_s)
        yield family


class Times(Collector):
    """A histogram of seconds, in buckets with these ascending upper bounds."""

    def __init__(
        self, name: str, documentation: str, created_s: float, bounds: Sequence[float]
    ) -> None:
        self._name, self._documentation, self._created_s = name, documentation, created_s
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def see(self, seconds: float) -> None:
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self._sum += seconds

    def collect(self) -> Iterator[Metric]:
        names = [*(str(float(each)) for each in self._bounds), "+Inf"]
        buckets, total = [], 0
        for name, count in zip(names, self._counts, strict=True):
            total += count
            buckets.append((name, float(total)))
        family = HistogramMetricFamily(self._name, self._documentation)
        family.add_metric([], buckets, self._sum)
        family.add_sample(f"{self._name}_created", {}, self._created_s)
        yield family

"""Metrics as Prometheus scrapes them, of figures that are at hand then."""

from collections.abc import Mapping
from typing import TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

_Family = TypeVar("_Family", CounterMetricFamily, GaugeMetricFamily)
Figure = float | Mapping[str, float]  # one, or one for each value of the label


def gauge(name: str, said: str, figure: Figure, label: str | None = None) -> GaugeMetricFamily:
    return _filled(GaugeMetricFamily(name, said, labels=[] if label is None else [label]), figure)


def counter(name: str, said: str, figure: Figure, label: str | None = None) -> CounterMetricFamily:
    return _filled(CounterMetricFamily(name, said, labels=[] if label is None else [label]), figure)


def _filled(family: _Family, figure: Figure) -> _Family:
    if not isinstance(figure, Mapping):
        family.add_metric([], figure)
    else:
        for value, number in figure.items():
            family.add_metric([value], number)
    return family

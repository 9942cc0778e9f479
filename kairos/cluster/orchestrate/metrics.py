"""Prometheus metrics of an orchestrator."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kairos.cluster.orchestrate.ends import Ends
from kairos.cluster.orchestrate.follower import Follower
from kairos.core import SECOND
from kairos.observe import bus_figures, learning_metrics


class OrchestratorMetrics(Collector):
    """Collector of an orchestrator's /metrics."""

    def __init__(self, follower: Follower, ends: Ends) -> None:
        self._follower = follower
        self._ends = ends

    def collect(self) -> Iterator[Metric]:
        follower, following = self._follower, self._follower.following
        yield from bus_figures()
        yield GaugeMetricFamily(
            "kairos_orchestrator_active",
            "1 if this process follows workflows, 0 on standby",
            value=int(following is not None),
        )
        yield GaugeMetricFamily(
            "kairos_orchestrator_behind_seconds",
            "Age of the newest event read, while more are waiting",
            value=follower.behind_us / SECOND,
        )
        yield CounterMetricFamily(
            "kairos_orchestrator_published", "Published profile updates", value=follower.published
        )
        yield CounterMetricFamily(
            "kairos_orchestrator_ends", "Published ends of workflows", value=self._ends.told
        )
        if following is None:
            return
        yield CounterMetricFamily(
            "kairos_orchestrator_records", "Events read and observed", value=following.records
        )
        yield from learning_metrics(following.orchestrator)
        tau = following.estimates.kendall_tau
        if tau is not None:
            yield GaugeMetricFamily(
                "kairos_rank_kendall_tau",
                "Agreement of agents' ranks with the order of their mean remaining work",
                value=tau,
            )

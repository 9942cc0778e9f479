"""Prometheus figures of an orchestrator."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kairos.cluster.orchestrate.ends import Ends
from kairos.cluster.orchestrate.follower import Follower
from kairos.core.model import SECOND
from kairos.observe.left_out import bus_figures
from kairos.observe.telemetry import learning


class OrchestratorMetrics(Collector):
    """What /metrics answers."""

    def __init__(self, follower: Follower, ends: Ends) -> None:
        self._follower = follower
        self._ends = ends

    def collect(self) -> Iterator[Metric]:
        follower, following = self._follower, self._follower.following
        yield from bus_figures()
        yield GaugeMetricFamily(
            "kairos_orchestrator_active",
            "1 where workflows are followed, 0 on standby",
            value=int(following is not None),
        )
        yield GaugeMetricFamily(
            "kairos_orchestrator_behind_seconds",
            "Age of the newest event that was read, while there are more",
            value=follower.behind_us / SECOND,
        )
        yield CounterMetricFamily(
            "kairos_orchestrator_published", "Facts on what was learnt", value=follower.published
        )
        yield CounterMetricFamily(
            "kairos_orchestrator_ends", "Ends of workflows that were told on", value=self._ends.told
        )
        if following is None:
            return
        yield CounterMetricFamily(
            "kairos_orchestrator_records", "Events that were taken in", value=following.records
        )
        yield from learning(following.orchestrator)
        tau = following.estimates.kendall_tau
        if tau is not None:
            yield GaugeMetricFamily(
                "kairos_rank_kendall_tau",
                "Agreement of agents' ranks with the order of their mean remaining work",
                value=tau,
            )

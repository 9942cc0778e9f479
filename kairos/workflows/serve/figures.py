"""Metrics of invocations and of the processors' work for them.

They are read from the flows' directory, so they include every process that serves these flows.
"""

import contextlib
from collections.abc import Coroutine, Iterator, Sequence
from typing import TYPE_CHECKING, Literal

from prometheus_client.core import CounterMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector

from kairos.observe import Telemetry
from kairos.settings import FlowSettings
from kairos.workflows.retrieve.worked import ProcessorCount, batch_metrics

if TYPE_CHECKING:
    from kairos.workflows.serve.flow_store import FlowStore

MOST_FLOWS = 200  # flows shown separately to operators: the ones with the most invocations

Ended = Literal["finished", "failed", "expired", "cancelled"]  # cancelled: the client left
ENDED: tuple[Ended, ...] = ("finished", "failed", "expired", "cancelled")


class InvocationFigures(Collector):
    """Metrics of invocations, as of the last read of the database."""

    def __init__(self, store: "FlowStore") -> None:
        self._store = store
        self._totals: dict[str, tuple[int, float]] = {}
        self._flows: Sequence[tuple[str, str, str, int, float]] = ()
        self._processed: Sequence[ProcessorCount] = ()

    def look(self) -> None:
        """Read the counts again. Raises sqlite3.Error."""
        self._totals = {outcome: (count, s) for outcome, count, s in self._store.totals()}
        self._flows = self._store.counts_by_flow(MOST_FLOWS)
        self._processed = [ProcessorCount(*row) for row in self._store.processed()]

    def collect(self) -> Iterator[Metric]:
        seconds = SummaryMetricFamily(
            "kairos_flow_seconds",
            "Invocations of flows that ended, and their duration",
            labels=["outcome"],
        )
        for outcome in ENDED:
            count, total_s = self._totals.get(outcome, (0, 0.0))
            seconds.add_metric([outcome], count_value=count, sum_value=total_s)
        yield seconds
        yield from batch_metrics(self._processed)

    def of_tenants(self) -> Iterator[Metric]:
        """Yield metrics by tenant and flow; only operators may see these names."""
        counted = CounterMetricFamily(
            "kairos_tenant_flow_invocations",
            "Invocations of the tenant's flow that ended",
            labels=["tenant", "flow", "outcome"],
        )
        for tenant, flow, outcome, count, _ in self._flows:
            counted.add_metric([tenant, flow, outcome], count)
        yield counted


@contextlib.contextmanager
def invocation_figures(
    settings: FlowSettings | None, telemetry: Telemetry
) -> Iterator[list[Coroutine[None, None, None]]]:
    """Show the figures in telemetry if flows are on; yield the coroutines to run concurrently.

    Raises:
        SetupError: the directory cannot hold flows.
    """
    if settings is None:
        yield []
        return
    from kairos.host import look_again
    from kairos.workflows.serve.flow_store import FlowStore

    with contextlib.closing(FlowStore(settings)) as store:
        figures = InvocationFigures(store)
        telemetry.show(figures)
        telemetry.show_to_operators(figures.of_tenants)
        yield [look_again(figures.look)]

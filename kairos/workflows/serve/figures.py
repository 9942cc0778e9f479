"""Metrics of invocations and of the processors' work for them.

They are read from the flows' directory, so they include every process that serves these flows.
"""

import contextlib
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Literal

import msgspec
from prometheus_client.core import CounterMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector

from kairos.observe import Telemetry
from kairos.settings import FlowSettings
from kairos.workflows.retrieve.worked import ProcessorCount, batch_metrics

MOST_FLOWS = 200  # flows shown separately to operators: the ones with the most invocations

Ended = Literal["finished", "failed", "expired", "cancelled"]  # cancelled: the client left
ENDED: tuple[Ended, ...] = ("finished", "failed", "expired", "cancelled")


class FlowCount(msgspec.Struct, frozen=True):
    """Invocations of a tenant's flow with one outcome, and the seconds they took in total."""

    tenant: str
    flow: str
    outcome: str
    count: int
    seconds: float


class InvocationFigures(Collector):
    """Metrics of invocations, as of the last read of the database."""

    def __init__(
        self,
        totals: Callable[[], Sequence[tuple[str, int, float]]],
        by_flow: Callable[[int], Sequence[FlowCount]],
        processed: Callable[[], Sequence[ProcessorCount]],
    ) -> None:
        """Take functions that read the counts; each waits for the disk.

        `totals`: outcome, count and seconds. `by_flow`: counts of at most N flows. `processed`:
        counts by processor.
        """
        self._read_totals, self._read_flows, self._read_processed = totals, by_flow, processed
        self._totals: dict[str, tuple[int, float]] = {}
        self._flows: Sequence[FlowCount] = ()
        self._processed: Sequence[ProcessorCount] = ()

    def look(self) -> None:
        """Read the counts again. Raises sqlite3.Error."""
        self._totals = {outcome: (count, s) for outcome, count, s in self._read_totals()}
        self._flows = self._read_flows(MOST_FLOWS)
        self._processed = self._read_processed()

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
        for each in self._flows:
            counted.add_metric([each.tenant, each.flow, each.outcome], each.count)
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

        def by_flow(most: int) -> list[FlowCount]:
            return [FlowCount(*row) for row in store.counts_by_flow(most)]

        def processed() -> list[ProcessorCount]:
            return [ProcessorCount(*row) for row in store.processed()]

        figures = InvocationFigures(store.totals, by_flow, processed)
        telemetry.show(figures)
        telemetry.show_to_operators(figures.of_tenants)
        yield [look_again(figures.look)]

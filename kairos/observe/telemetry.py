"""Prometheus metrics, from the same facts as everything else.

Labels are only instances and outcomes: agents' and tenants' names are chosen by clients, so they
would grow without bound, and disclose tenants to each other. The operators' port has metrics of
tenants and their apps, too (`TenantFigures`), within bounds: further apps count as `other`.

Metrics that change with every call are plain numbers until /metrics is scraped: the client
library's own take a lock at each step, for threads that do not exist here.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain

import msgspec
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar

from kairos.core import (
    SECOND,
    Balancer,
    Bounced,
    CallRow,
    CallTracker,
    InstanceLeft,
    InstanceStatus,
    KairosError,
    Orchestrator,
    Outcome,
    Record,
    highest_utilisation,
    load_of_pool,
    most_waiting_s,
)
from kairos.observe.families import counter, gauge
from kairos.observe.left_out import bus_figures

_STALE_US = 3 * SECOND  # age at which an engine's status is outdated
_TRUST = "Circuit breaker of the instance: 1 closed, 0 open, 0.5 half-open"
_TRUSTED = {"closed": 1.0, "half-open": 0.5, "open": 0.0}
_OUTCOMES = ("finished", "failed", "cancelled", "refused")
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)

MAX_TENANTS, MAX_APPS = 200, 16  # tenants, and apps per tenant, with their own series
OTHER = "other"

_Name = tuple[str, str]  # tenant, app; "" for calls without an app


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


class Telemetry(Collector):
    def __init__(
        self,
        balancer: Callable[[], Balancer],
        orchestrator: Orchestrator | None,
        now: Callable[[], int],
    ) -> None:
        """`orchestrator`: None if another process follows the workflows. `now`: µs."""
        self._balancer = balancer
        self._orchestrator = orchestrator
        self._now = now
        self._told: dict[str, tuple[int, InstanceStatus]] = {}  # time and last status by instance
        self._tracker = CallTracker()
        self._registry = CollectorRegistry()
        self.calls = self._count("kairos_calls", "LLM calls that ended", "outcome", _OUTCOMES)
        self._errors = Counter(
            "kairos_errors", "Error responses of Kairos", ["code"], registry=self._registry
        )
        self._queued = self._times("kairos_queue_seconds", "Time from arrival to dispatch")
        self._first = self._times("kairos_ttft_seconds", "Time from arrival to first token")
        self._whole = self._times("kairos_call_seconds", "Time from arrival to the last byte")
        self._prompts = self._count("kairos_prompt_tokens", "Prompt tokens, as engines report them")
        self._answers = self._count(
            "kairos_completion_tokens", "Generated tokens, as engines report them"
        )
        self._bounced = Counter(
            "kairos_calls_returned",
            "Calls that failed on an instance and were queued again for another",
            ["instance"],
            registry=self._registry,
        )
        self.tenants = TenantFigures(now() / SECOND)
        self._of_tenants: list[Callable[[], Iterable[Metric]]] = []
        self._registry.register(self)

    def show(self, collector: Collector) -> None:
        self._registry.register(collector)

    def show_to_operators(self, families: Callable[[], Iterable[Metric]]) -> None:
        """Export these metrics on the operators' port only."""
        self._of_tenants.append(families)

    def __call__(self, record: Record) -> None:
        event = record.event
        if type(event) is InstanceStatus:
            self._told[event.instance_id] = record.at, event
        elif type(event) is Bounced:
            self._note_bounce(event)
        elif type(event) is InstanceLeft:
            self._told.pop(event.instance_id, None)
        for row in self._tracker.observe(record):
            assert row.outcome is not None
            self.calls.add(1, row.outcome)
            self.tenants.count_call(row)
            if row.outcome == "finished" and row.ended_at is not None:
                self._note_times(row, row.ended_at)
                self._prompts.add(row.prompt_tokens or 0)
                self._answers.add(row.completion_tokens or 0)

    def _note_times(self, row: CallRow, ended_at: int) -> None:
        arrived_at, trace_id = row.request.arrived_at, row.request.trace_id
        self._queued.see(row.queued_us / SECOND, trace_id)
        self._whole.see((ended_at - arrived_at) / SECOND, trace_id)
        if row.first_token_at is not None:
            self._first.see((row.first_token_at - arrived_at) / SECOND, trace_id)

    def _note_bounce(self, bounced: Bounced) -> None:
        row = self._tracker.row(bounced.request_id)
        if row is not None and row.instance_id is not None:
            self._bounced.labels(row.instance_id).inc()

    def count_error(self, error: KairosError) -> None:
        """Count an error; refusals on arrival produce no facts, so errors are counted here."""
        self.count_errors(error.code, 1)

    def count_errors(self, code: str, count: int) -> None:
        self._errors.labels(code).inc(count)

    def errors(self) -> dict[str, int]:
        [family] = self._errors.collect()
        samples = [each for each in family.samples if each.name.endswith("_total")]
        return {each.labels["code"]: int(each.value) for each in samples}

    def families(self) -> Iterable[Metric]:
        return self._registry.collect()

    def families_for_operators(self) -> Iterable[Metric]:
        """Return the metrics of the operators' port, which include tenants."""
        of_tenants = (told() for told in self._of_tenants)
        return chain(self.families(), self.tenants.collect(), *of_tenants)

    def collect(self) -> Iterator[Metric]:
        balancer, ledger = self._balancer(), self._balancer().ledger
        ids, now = list(ledger.instances), self._now()
        running = {each: ledger.running(each) for each in ids}
        trusted = {each: _TRUSTED[balancer.faults.circuits.state(each, now)] for each in ids}
        booked = {each: ledger.held_tokens(each, balancer.at) for each in ids}
        yield from bus_figures()
        yield gauge("kairos_requests_waiting", "Requests in the queue", balancer.waiting)
        for name, said, figures in (
            ("requests_running", "Requests on the instance", running),
            ("kv_booked_tokens", "KV memory booked on the instance", booked),
            ("instance_trusted", _TRUST, trusted),
        ):
            yield gauge(f"kairos_{name}", said, figures, "instance")
        yield from load(balancer)
        yield from engines(self._statuses())
        if self._orchestrator is not None:
            yield from learning_metrics(self._orchestrator)
        if (tau := balancer.estimates.kendall_tau) is not None:
            said = "Correlation (Kendall's tau) of agents' ranks with their mean remaining work"
            yield gauge("kairos_rank_kendall_tau", said, tau)

    def _statuses(self) -> list[InstanceStatus]:
        told = (self._told.get(each) for each in self._balancer().ledger.instances)
        now = self._now()
        return [last[1] for last in told if last is not None and now - last[0] <= _STALE_US]

    def _count(
        self, name: str, documentation: str, label: str | None = None, values: Sequence[str] = ("",)
    ) -> Count:
        made = Count(name, documentation, self._now() / SECOND, label, values)
        self._registry.register(made)
        return made

    def _times(self, name: str, documentation: str) -> Times:
        made = Times(name, documentation, self._now() / SECOND, _SECONDS)
        self._registry.register(made)
        return made


def load(balancer: Balancer) -> Iterator[Metric]:
    """Yield metrics for autoscaling. Models are named only to operators (`/admin/scaling`)."""
    models = load_of_pool(balancer)
    yield gauge(
        "kairos_waiting_work_seconds",
        "Estimated seconds of queued work, of the model with most",
        most_waiting_s(models),
    )
    yield gauge(
        "kairos_pool_busy_ratio",
        "Share of the instances' capacity in use, of the busiest model",
        highest_utilisation(models),
    )


def engines(statuses: Iterable[InstanceStatus]) -> Iterator[Metric]:
    """Yield metrics that engines report; a metric that an engine does not report has no series."""
    known = {each.instance_id: each for each in statuses}
    for field, kind, name, said in (
        ("kv_used", gauge, "kv_used_ratio", "Share of the KV memory used by running calls"),
        ("running", gauge, "requests_running", "Running calls, from any client"),
        ("waiting", gauge, "requests_waiting", "Calls waiting inside the engine"),
        ("preemptions", counter, "preemptions", "Calls preempted by the engine"),
        ("queried_tokens", counter, "prefix_queried_tokens", "Prompt tokens looked up in a cache"),
        ("cached_tokens", counter, "prefix_cached_tokens", "Prompt tokens found in a cache"),
    ):
        told = {each: getattr(status, field) for each, status in known.items()}
        figures = {each: value for each, value in told.items() if value is not None}
        yield kind(f"kairos_engine_{name}", said, figures, "instance")


def learning_metrics(orchestrator: Orchestrator) -> Iterator[Metric]:
    yield gauge("kairos_workflows_open", "Open workflows", len(orchestrator))
    for name, count, said in (
        ("workflows_idle", orchestrator.expired, "Workflows ended by silence"),
        ("workflows_evicted", orchestrator.evicted, "Open workflows evicted from memory"),
        (
            "workflows_unlearnt",
            orchestrator.unlearnt,
            "Ended workflows dropped before they were learnt from",
        ),
        (
            "pooled_calls",
            orchestrator.profiles.pooled,
            "Calls of agents that are not tracked by name",
        ),
    ):
        yield counter(f"kairos_{name}", said, count)


class _Had(msgspec.Struct):
    calls: dict[Outcome, int] = {}
    prompt_tokens: int = 0
    cached_tokens: int = 0
    answer_tokens: int = 0
    queued_us: int = 0
    kv_token_us: float = 0.0


class TenantFigures(Collector):
    """Collector of metrics by tenant. `add` each ended call."""

    def __init__(self, created_s: float) -> None:
        self._created_s = created_s
        self._had: dict[_Name, _Had] = {}
        self._apps: dict[str, int] = {}  # number of apps with their own series, by tenant

    def count_call(self, row: CallRow) -> None:
        request, outcome = row.request, row.outcome
        name = request.tenant, request.app or ""
        had = self._had.get(name)
        if had is None:
            had = self._first(name)
        assert outcome is not None
        had.calls[outcome] = had.calls.get(outcome, 0) + 1
        had.queued_us += row.queued_us
        if row.dispatched_at is None or row.ended_at is None:
            return
        prompt, answer = row.prompt_tokens or request.prompt_tokens, row.completion_tokens or 0
        had.kv_token_us += (prompt + answer / 2) * (row.ended_at - row.dispatched_at)
        if outcome == "finished":
            had.prompt_tokens += prompt
            had.cached_tokens += row.cached_tokens or 0
            had.answer_tokens += answer

    def _first(self, name: _Name) -> _Had:
        """Return the figures of a new tenant and app; beyond the bounds, of `other`."""
        tenant, app = name
        if tenant not in self._apps and len(self._apps) >= MAX_TENANTS:
            tenant, app = OTHER, OTHER
        elif self._apps.get(tenant, 0) >= MAX_APPS:
            app = OTHER
        name = tenant, app
        if name not in self._had:
            self._had[name] = _Had()
            if app != OTHER:
                self._apps[tenant] = self._apps.get(tenant, 0) + 1
        return self._had[name]

    def collect(self) -> Iterator[Metric]:
        calls = CounterMetricFamily(
            "kairos_tenant_calls",
            "Ended calls of the tenant and app, by outcome",
            labels=["tenant", "app", "outcome"],
        )
        for (tenant, app), had in self._had.items():
            for outcome, count in had.calls.items():
                calls.add_metric([tenant, app, outcome], count, created=self._created_s)
        yield calls
        for figure, divisor, name, documentation in (
            ("prompt_tokens", 1, "prompt_tokens", "Prompt tokens of answered calls"),
            (
                "cached_tokens",
                1,
                "cached_tokens",
                "Prompt tokens found in an engine's prefix cache",
            ),
            ("answer_tokens", 1, "completion_tokens", "Tokens of answers"),
            ("queued_us", SECOND, "queue_seconds", "Time in the queue"),
            (
                "kv_token_us",
                SECOND,
                "kv_token_seconds",
                "KV tokens in use times seconds: the prompt, and half of the answer",
            ),
        ):
            family = CounterMetricFamily(
                f"kairos_tenant_{name}", documentation, labels=["tenant", "app"]
            )
            for key, had in self._had.items():
                value = getattr(had, figure) / divisor
                family.add_metric([*key], value, created=self._created_s)
            yield family

"""Prometheus metrics by tenant and app; only for operators, since they name tenants.

Apps' names are chosen by clients, so their number is bounded per tenant: further ones count as
`other`.
"""

from collections.abc import Iterator

import msgspec
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from kairos.core import SECOND, CallRow, Outcome

MAX_TENANTS, MAX_APPS = 200, 16  # tenants, and apps per tenant, with their own series
OTHER = "other"

_Name = tuple[str, str]  # tenant, app; "" for calls without an app


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

    def add(self, row: CallRow) -> None:
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

"""What each tenant and app has had, for Prometheus: for operators alone, as it names tenants.

Names of apps are the clients' to choose, so they are bounded, for each tenant apart: what comes
after the first so many counts as `other`.
"""

from collections.abc import Iterator

import msgspec
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from kairos.core.call_row import CallRow
from kairos.core.model import SECOND
from kairos.core.refusals import Outcome

MAX_TENANTS, MAX_APPS = 200, 16  # told apart; apps: of one tenant
OTHER = "other"

_Name = tuple[str, str]  # tenant, app; "" where calls name none


class _Had(msgspec.Struct):
    calls: dict[Outcome, int] = {}
    prompt_tokens: int = 0
    cached_tokens: int = 0
    answer_tokens: int = 0
    queued_us: int = 0
    kv_token_us: float = 0.0


class TenantFigures(Collector):
    """`add` each call that has ended."""

    def __init__(self, created_s: float) -> None:
        self._created_s = created_s
        self._had: dict[_Name, _Had] = {}
        self._apps: dict[str, int] = {}  # how many are told apart, by tenant

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
        """Of one that was not told apart until now, or that it counts as."""
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
            "Calls of the tenant and app that ended, however they did",
            labels=["tenant", "app", "outcome"],
        )
        for (tenant, app), had in self._had.items():
            for outcome, count in had.calls.items():
                calls.add_metric([tenant, app, outcome], count, created=self._created_s)
        yield calls
        for figure, divisor, name, documentation in (
            ("prompt_tokens", 1, "prompt_tokens", "Tokens of prompts that were answered"),
            ("cached_tokens", 1, "cached_tokens", "Of these, found in an engine's prefix cache"),
            ("answer_tokens", 1, "completion_tokens", "Tokens of answers"),
            ("queued_us", SECOND, "queue_seconds", "Time in the queue"),
            (
                "kv_token_us",
                SECOND,
                "kv_token_seconds",
                "Tokens held on instances, times seconds: the prompt, and half of the answer",
            ),
        ):
            family = CounterMetricFamily(
                f"kairos_tenant_{name}", documentation, labels=["tenant", "app"]
            )
            for key, had in self._had.items():
                value = getattr(had, figure) / divisor
                family.add_metric([*key], value, created=self._created_s)
            yield family

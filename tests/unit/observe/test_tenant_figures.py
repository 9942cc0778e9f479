"""What tenants have had, for Prometheus."""

import re

from kairos.core import SECOND, CallRow
from kairos.observe.telemetry import MAX_APPS, MAX_TENANTS, TenantFigures
from tests.support.exposed import exposed
from tests.support.simulate import build


def row(*, tenant="a", app=None, outcome="finished", queued_s=0, took_s=None, **fields):
    request = build.request("r", at=0, tenant=tenant, app=app, prompt=100)
    dispatched_at = None if took_s is None else queued_s * SECOND
    ended_at = (queued_s + (took_s or 0)) * SECOND
    return CallRow(
        request, dispatched_at=dispatched_at, ended_at=ended_at, outcome=outcome, **fields
    )


def shown(figures):
    text = exposed(figures.collect()).decode()
    lines = re.findall(r"^kairos_tenant_(\w+)\{(.*)\} (\S+)$", text, re.M)
    return {(name, labels): float(value) for name, labels, value in lines if "created" not in name}


def test_a_call_counts_for_its_tenant_and_app_with_all_that_it_had():
    figures = TenantFigures(0.0)
    figures.count_call(
        row(
            app="qa",
            queued_s=3,
            took_s=2,
            prompt_tokens=120,
            completion_tokens=40,
            cached_tokens=64,
        )
    )
    figures.count_call(row(app="qa", outcome="cancelled", took_s=1))
    figures.count_call(row(tenant="b", outcome="refused", queued_s=9))
    told, names = shown(figures), 'app="qa",tenant="a"'
    assert told["calls_total", 'app="qa",outcome="finished",tenant="a"'] == 1
    assert told["calls_total", 'app="qa",outcome="cancelled",tenant="a"'] == 1
    assert told["calls_total", 'app="",outcome="refused",tenant="b"'] == 1
    assert told["prompt_tokens_total", names] == 120
    assert told["cached_tokens_total", names] == 64
    assert told["completion_tokens_total", names] == 40
    assert told["queue_seconds_total", names] == 3
    assert told["kv_token_seconds_total", names] == (120 + 20) * 2 + 100
    assert told["queue_seconds_total", 'app="",tenant="b"'] == 9
    assert told["kv_token_seconds_total", 'app="",tenant="b"'] == 0


def test_names_are_bounded_for_each_tenant_apart_and_no_call_is_lost():
    figures = TenantFigures(0.0)
    for n in range(1_000):
        figures.count_call(row(tenant="greedy", app=f"app{n}"))
    for n in range(2 * MAX_TENANTS):
        figures.count_call(row(tenant=f"t{n}", app="qa"))
    calls = {labels: value for (name, labels), value in shown(figures).items() if "calls" in name}
    assert sum(calls.values()) == 1_000 + 2 * MAX_TENANTS
    greedy = [labels for labels in calls if 'tenant="greedy"' in labels]
    assert len(greedy) == MAX_APPS + 1
    assert calls['app="other",outcome="finished",tenant="greedy"'] == 1_000 - MAX_APPS
    assert calls['app="qa",outcome="finished",tenant="t0"'] == 1
    assert calls['app="other",outcome="finished",tenant="other"'] == MAX_TENANTS + 1
    assert len(calls) == MAX_APPS + 1 + MAX_TENANTS - 1 + 1

"""Invocations of flows in /metrics."""

import asyncio
import re

from tests.e2e.batch_files import key
from tests.e2e.flows import answers, invoke, kept_in, put
from tests.support.observe.figures import look_often

ACME = {"authorization": "Bearer acme"}


def counted(text, name):
    """By labels."""
    found = re.findall(rf"^{name}{{(.*)}} (\S+)$", text, re.M)
    return {labels: float(value) for labels, value in found}


async def shown(ask, name, until):
    """Once a look at the disk has seen it so."""
    async with asyncio.timeout(60):
        while True:
            found = counted((await ask()).body.decode(), name)
            if until(found):
                return found
            await asyncio.sleep(0.02)


async def test_invocations_are_counted_by_how_they_ended(kairos, engine, tmp_path, monkeypatch):
    look_often(monkeypatch)
    answers(engine)
    served = await kairos(
        engine.url, flows=kept_in(tmp_path / "flows"), key=(key("acme"), key("bolt"))
    )
    await put(served, headers=ACME)
    for _ in range(2):
        assert (await invoke(served, {"text": "x"}, headers=ACME)).status == 200
    spent = ACME | {"X-Kairos-Budget-Calls": "1"}
    assert (await invoke(served, {"text": "y"}, headers=spent)).status == 403
    engine.answer = engine.when_released
    late = ACME | {"X-Kairos-Deadline-Ms": "100"}
    assert (await invoke(served, {"text": "z"}, headers=late)).status == 504
    wire = await served.connect()
    calls = len(engine.calls)
    body = {"inputs": {"text": "left"}}
    await wire.post("/v1/flows/reports/invoke", body, "Authorization: Bearer acme")
    await engine.called(calls + 1)
    await wire.close()

    def ask():
        return served.ask("GET", "/metrics")

    def operator():
        return served._ask("GET", f"{served.service.admin_url}/metrics")

    name, of_tenants = "kairos_flow_seconds_count", "kairos_tenant_flow_invocations_total"
    found = await shown(ask, name, lambda found: sum(found.values()) == 5)
    assert found == {
        'outcome="finished"': 2,
        'outcome="failed"': 1,
        'outcome="expired"': 1,
        'outcome="cancelled"': 1,
    }
    public = (await ask()).body.decode()
    assert counted(public, "kairos_flow_seconds_sum")['outcome="expired"'] > 0
    assert "acme" not in public
    told = await shown(operator, of_tenants, lambda found: sum(found.values()) == 5)
    assert told['flow="reports",outcome="finished",tenant="acme"'] == 2

    await served.ask("DELETE", "/v1/flows/reports", headers=ACME)
    await shown(operator, of_tenants, lambda found: not found)
    assert sum(counted((await ask()).body.decode(), name).values()) == 5


async def test_without_flows_there_are_no_figures_of_them(served):
    assert "kairos_flow_seconds" not in (await served.ask("GET", "/metrics")).body.decode()

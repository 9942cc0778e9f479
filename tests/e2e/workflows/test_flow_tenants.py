"""What flows of one tenant leave to another, in the threads that all share."""

import asyncio
import threading

import pytest

from kairos.workflows.serve import plans
from tests.e2e.batch_files import key
from tests.e2e.client import LIMIT_S
from tests.e2e.flows import REPORTS, answers, invoke, kept_in, put
from tests.support.waiting import until

ACME, BOLT = ({"authorization": f"Bearer {name}"} for name in ("acme", "bolt"))


class Held:
    """Plans of flows of that name wait in their thread until they are released."""

    def __init__(self, name):
        self._name, self._compile = name, plans.compile_plan
        self.begun, self.released = 0, threading.Event()

    def __call__(self, declaration, *given, **how):
        if declaration.name.startswith(self._name):
            self.begun += 1
            assert self.released.wait(LIMIT_S)
        return self._compile(declaration, *given, **how)


@pytest.fixture
def held(monkeypatch):
    held = Held("large")
    monkeypatch.setattr(plans, "compile_plan", held)
    yield held
    held.released.set()


async def test_a_tenant_whose_flows_take_long_to_plan_keeps_no_other_waiting(
    kairos, engine, held, tmp_path
):
    answers(engine)
    served = await kairos(
        engine.url, flows=kept_in(tmp_path / "flows"), key=(key("acme"), key("bolt"))
    )
    names = [f"large{n}" for n in range(6)]
    large = [
        asyncio.create_task(put(served, REPORTS.replace("reports", name), name, headers=ACME))
        for name in names
    ]
    await until(lambda: held.begun)

    assert (await put(served, headers=BOLT)).status == 200
    assert (await invoke(served, {"text": "x"}, headers=BOLT)).status == 200
    assert held.begun == 1
    assert not any(each.done() for each in large)
    held.released.set()
    assert [answer.status for answer in await asyncio.gather(*large)] == [200] * 6
    listed = (await served.ask("GET", "/v1/flows", headers=ACME)).json()["data"]
    assert [each["id"] for each in listed] == names

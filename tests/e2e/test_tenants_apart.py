"""Over HTTP nothing of one tenant is seen by another: names, ids, sessions, answers, figures."""

import pytest

from kairos.core import Arrived
from tests.e2e.batch_files import key
from tests.e2e.served import serving
from tests.support.simulate import standin as standins

SECRET = "payroll"  # in each name that the honest tenant uses
MINE = {
    "Authorization": "Bearer honest",
    "X-Kairos-Workflow-Id": f"{SECRET}-run",
    "X-Kairos-App": f"{SECRET}-app",
    "X-Kairos-Agent": f"{SECRET}-agent",
}
SPY = {"Authorization": "Bearer spy"}


def keys():
    return tuple(key(name, f"{name}-tenant") for name in ("honest", "spy"))


@pytest.fixture
async def kairos():
    settings = standins.StandInSettings(model="tiny", max_num_seqs=8)
    async with standins.serve(settings) as engine, serving(engine.url, key=keys()) as served:
        yield served


async def test_a_call_that_names_anothers_workflow_is_of_one_of_its_own(kairos):
    await kairos.chat(headers=MINE)
    await kairos.chat(headers=MINE | SPY)

    mine, spys = (fact.request for fact in kairos.facts.all(Arrived))
    assert (mine.tenant, spys.tenant) == ("honest-tenant", "spy-tenant")
    view = (await kairos.ask("GET", f"/v1/workflows/{SECRET}-run", headers=MINE)).json()
    assert [each["id"] for each in view["calls"]] == [mine.id]


async def test_a_session_of_another_tenant_leads_to_no_workflow_of_its(kairos):
    child = {"X-Session-Id": "child", "X-Parent-Session-Id": f"{SECRET}-root"}
    await kairos.chat(headers=child | {"Authorization": "Bearer honest"})
    await kairos.chat(headers=SPY | {"X-Session-Id": "child"})

    mine, spys = (fact.request.workflow_id for fact in kairos.facts.all(Arrived))
    assert (mine, spys) == (f"{SECRET}-root", "child")


async def test_what_was_answered_to_another_tenant_is_no_conversation_to_go_on_with(kairos):
    messages = [{"role": "user", "content": f"What does {SECRET} cost, by department and month?"}]
    answer = await kairos.chat(headers={"Authorization": "Bearer honest"}, messages=messages)
    said = answer.json()["choices"][0]["message"]
    messages += [said, {"role": "user", "content": "And then?"}]
    for name in ("spy", "honest"):
        await kairos.chat(headers={"Authorization": f"Bearer {name}"}, messages=messages)

    first, spys, mine = (fact.request for fact in kairos.facts.all(Arrived))
    assert mine.workflow_id == first.workflow_id
    assert mine.parent_ids == (first.id,)
    assert spys.workflow_id != first.workflow_id
    assert spys.parent_ids == ()


async def test_a_response_of_another_tenant_is_nothing_that_a_call_follows_from(kairos):
    asked = {"model": "tiny", "input": "Plan."}
    first = await kairos.ask(
        "POST", "/v1/responses", json=asked, headers={"Authorization": "Bearer honest"}
    )
    assert first.status == 200
    body = asked | {"input": "And then?", "previous_response_id": first.json()["id"]}
    for name in ("spy", "honest"):
        await kairos.ask(
            "POST", "/v1/responses", json=body, headers={"Authorization": f"Bearer {name}"}
        )

    planned, spys, mine = (fact.request for fact in kairos.facts.all(Arrived))
    assert mine.workflow_id == planned.workflow_id
    assert spys.workflow_id != planned.workflow_id


async def test_figures_errors_and_the_operators_status_name_nobody(kairos):
    await kairos.chat(headers=MINE)
    told = [
        await kairos.ask("GET", "/metrics"),
        await kairos.operate("GET", "status"),
        await kairos.operate("GET", "instances"),
        await kairos.chat(headers=SPY, model=f"{SECRET[:-1]}"),
        await kairos.ask("GET", f"/v1/workflows/{SECRET}-other", headers=SPY),
    ]
    for answer in told[:4]:
        assert SECRET not in answer.body.decode()
        assert "honest-tenant" not in answer.body.decode()
    assert f"{SECRET}-run" not in told[4].body.decode()

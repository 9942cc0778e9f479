"""Looking in from outside: workflows and agents over HTTP."""

import asyncio
from urllib.parse import quote

import pytest

from kairos.core import (
    AgentProfile,
    AgentRank,
    Arrived,
    Distribution,
    Finished,
    FirstToken,
    ProfilesLearnt,
    WorkflowEnded,
)
from kairos.observe import views
from tests.e2e.test_identity import KEYS

AS_ACME, AS_BELL = ({"Authorization": f"Bearer {name}"} for name in ("acme", "bell"))


def said(agent, *, workflow="w-1", upstream=None, parents=None, request_id=None, **more):
    headers = {
        "X-Kairos-Workflow-Id": workflow,
        "X-Kairos-App": "qa",
        "X-Kairos-Agent": agent,
        "X-Kairos-Upstream": upstream,
        "X-Kairos-Parent-Id": parents,
        "X-Request-Id": request_id,
    }
    return {name: value for name, value in headers.items() if value is not None} | more


async def see(served, workflow="w-1", query="", **headers):
    answer = await served.ask("GET", f"/v1/workflows/{quote(workflow)}{query}", headers=headers)
    assert answer.status == 200, answer.body
    return answer.json()


async def test_a_workflow_is_seen_while_it_is_open_and_after_it_ended(kairos, standin):
    served = await kairos(standin.url)
    for agent, upstream in (("router", "user"), ("expert", "router")):
        await served.chat(headers=said(agent, upstream=upstream, request_id=f"{agent}-1"))
    await served.facts.seen(Finished, 2)
    opened = await see(served)
    ended = await served.ask("POST", "/v1/workflows/w-1/end")
    closed = await see(served)

    finished = [r.at for r in served.facts.records if isinstance(r.event, Finished)]
    assert opened["ended_at"] is None
    assert opened["ended_by"] is None
    assert (opened["id"], opened["tenant"], opened["app"]) == ("w-1", "default", "qa")
    assert opened["stages"] == [["router-1"]]
    router, expert = opened["calls"]
    assert (router["agent"], router["upstream"], router["parents"]) == ("router", "user", [])
    assert (expert["agent"], expert["upstream"], expert["parents"]) == (
        "expert", "router", ["router-1"],
    )  # fmt: skip
    assert (router["stages"], expert["stages"]) == ([["expert-1"]], [])
    arrived = served.facts.all(Arrived)[0].request.arrived_at
    assert (router["arrived_at"], router["ended_at"]) == (arrived, finished[0])
    assert router["execution_s"] == pytest.approx(
        (router["ended_at"] - router["dispatched_at"]) / 1e6
    )
    assert router["wait_s"] == (router["dispatched_at"] - router["arrived_at"]) / 1e6
    assert (router["outcome"], router["attempts"], router["ambiguous"]) == ("finished", 1, False)
    assert router["dispatch"]["instance"] == standin.url.removeprefix("http://")
    assert (router["dispatch"]["reason"], router["dispatch"]["left_waiting"]) == ("first", 0)
    assert router["dispatch"]["expected_remaining_s"] > 0
    assert router["dispatch"]["rank"] is None
    assert router["remaining_s"] is None

    (end,) = served.facts.all(WorkflowEnded)
    assert (end.tenant, end.workflow_id) == ("default", "w-1")
    assert ended.json() == {"id": "w-1", "object": "workflow", "ended_at": closed["ended_at"]}
    assert closed["ended_by"] == "told"
    router, expert = closed["calls"]
    assert expert["remaining_s"] == expert["execution_s"]
    assert router["remaining_s"] == pytest.approx(router["execution_s"] + expert["execution_s"])


async def test_to_end_a_workflow_again_changes_nothing(served):
    await served.chat(headers=said("router"))
    first, second = [await served.ask("POST", "/v1/workflows/w-1/end") for _ in range(2)]

    assert first.status == 200
    assert first.json() == second.json()
    assert len(served.facts.all(WorkflowEnded)) == 1


async def test_a_call_that_runs_or_waits_has_its_place_already(kairos, engine):
    engine.answer = engine.when_released
    served = await kairos(engine.url, max_num_seqs=1)
    calls = [asyncio.create_task(served.chat(headers=said("a", request_id="a-1")))]
    await engine.called()
    calls.append(
        asyncio.create_task(
            served.chat(headers=said("b", upstream="a", parents="a-1", request_id="b-1"))
        )
    )
    await served.facts.seen(Arrived, 2)
    running, waiting = (await see(served))["calls"]
    engine.release(2)
    await asyncio.gather(*calls)

    assert (running["outcome"], running["ended_at"], running["execution_s"]) == (None, None, None)
    assert running["dispatch"]["instance"] == engine.url.removeprefix("http://")
    assert running["stages"] == [["b-1"]]
    assert (waiting["dispatch"], waiting["dispatched_at"], waiting["parents"]) == (
        None, None, ["a-1"],
    )  # fmt: skip
    assert waiting["wait_s"] > 0


async def test_a_call_that_is_tried_again_is_one_call(served):
    for attempt in ("1", "2"):
        headers = said("a", request_id="a-1") | {"X-Kairos-Attempt": attempt}
        await served.chat(headers=headers)
    (call,) = (await see(served))["calls"]

    assert call["attempts"] == 2


async def test_calls_come_in_pages(served):
    for n in range(5):
        await served.chat(headers=said("a", request_id=f"a-{n}"))
    page = await see(served, query="?offset=1&limit=2")
    past = await see(served, query="?offset=9")

    assert [call["id"] for call in page["calls"]] == ["a-1", "a-2"]
    assert (page["calls_total"], page["calls_left_out"]) == (5, 0)
    assert past["calls"] == []


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=10001", "limit=-1", "limit=many", "offset=-1", "limit=", "limit=٣"]
)
async def test_a_page_that_makes_no_sense_is_refused(served, query):
    await served.chat(headers=said("a"))
    answer = await served.ask("GET", f"/v1/workflows/w-1?{query}")

    assert (answer.status, answer.error()["code"]) == (400, "invalid_request")


@pytest.mark.parametrize("workflow", ["team/7", "a/end", "end", "x%2Fy", "a=b+c@d.e:f"])
async def test_any_id_of_a_workflow_can_be_asked_for(served, workflow):
    workflow = workflow.replace("%2F", "/")
    await served.chat(headers=said("a", workflow=workflow))
    ended = await served.ask("POST", f"/v1/workflows/{quote(workflow, safe='')}/end")

    assert ended.json()["id"] == workflow
    assert (await see(served, workflow))["id"] == workflow


async def test_a_workflow_that_is_not_known_is_said_in_openais_way(served):
    for method, path in (("GET", "/v1/workflows/no"), ("POST", "/v1/workflows/no/end")):
        answer = await served.ask(method, path)
        assert (answer.status, answer.error()["code"]) == (404, "workflow_not_found")
        assert "'no' is not known here" in answer.error()["message"]
    assert served.facts.all(WorkflowEnded) == []


async def test_nobody_sees_or_ends_another_tenants_workflows_or_agents(kairos, engine):
    served = await kairos(engine.url, key=KEYS)
    await served.chat(headers=said("router") | AS_ACME)
    for headers, status in ((AS_ACME, 200), (AS_BELL, 404), ({}, 401)):
        seen = await served.ask("GET", "/v1/workflows/w-1", headers=headers)
        assert seen.status == status
    cancelled = await served.ask("DELETE", "/v1/workflows/w-1", headers=AS_BELL)
    assert cancelled.status == 404
    for headers, status in ((AS_BELL, 404), ({}, 401), (AS_ACME, 200)):
        ended = await served.ask("POST", "/v1/workflows/w-1/end", headers=headers)
        assert ended.status == status
    await served.facts.seen(ProfilesLearnt)
    assert (await served.ask("GET", "/v1/agents")).status == 401
    theirs, others = [
        (await served.ask("GET", "/v1/agents", headers=headers)).json()
        for headers in (AS_ACME, AS_BELL)
    ]

    assert [agent["agent"] for agent in theirs["data"]] == ["*", "router"]
    assert others["data"] == []
    assert engine.calls[0].path.endswith("/chat/completions")
    assert len(engine.calls) == 1


def profile(agent, mean_s):
    """Evenly spread from nothing to twice the mean."""
    spread = Distribution(mean_s * 1e6, tuple(2e6 * mean_s * (i + 0.5) / 64 for i in range(64)))
    return AgentProfile(
        tenant="default",
        app="qa",
        agent=agent,
        samples=8,
        converged=True,
        call_us=spread,
        completion_tokens=None,
        remaining_us=spread,
        remaining_stages=2.0,
    )


async def test_agents_are_shown_with_what_was_learnt_of_them(kairos, standin):
    served = await kairos(standin.url)
    for workflow in ("w-1", "w-2"):
        await served.chat(headers=said("router", workflow=workflow))
        await served.chat(headers=said("expert", workflow=workflow, upstream="router"))
        await served.ask("POST", f"/v1/workflows/{workflow}/end")
    await served.facts.until(
        lambda: (
            ("expert", 2)
            in [
                (each.agent, each.samples)
                for learnt in served.facts.all(ProfilesLearnt)
                for each in learnt.profiles
            ]
        )
    )
    learnt = ProfilesLearnt(
        (profile("router", 4.0),),
        (),
        (AgentRank("default", "qa", "router", 3.5e6),),
        kendall_tau=0.5,
    )
    served.service.brain.feed(learnt)
    answer = (await served.ask("GET", "/v1/agents")).json()
    page = (await served.ask("GET", "/v1/agents?offset=1&limit=1")).json()

    assert (answer["kendall_tau"], answer["agents_total"]) == (0.5, 3)
    pool, expert, router = answer["data"]
    assert [each["agent"] for each in (pool, expert, router)] == ["*", "expert", "router"]
    assert (router["samples"], expert["samples"], pool["samples"]) == (2, 2, 4)
    assert router["rank"] == 3.5
    assert 0 < expert["rank"] < 1  # the service\'s own
    assert expert["learnt"]["remaining_stages"] == 1.0
    assert router["learnt"]["remaining_stages"] == 2.0
    assert router["learnt"]["completion_tokens"] is None
    remaining = router["learnt"]["remaining_s"]
    assert remaining["mean"] == pytest.approx(4.0)
    assert remaining["p50"] == pytest.approx(4.0)
    assert remaining["p10"] == pytest.approx(0.8, abs=0.1)
    assert list(remaining) == ["mean", *(f"p{percent}" for percent in views._PERCENTS)]
    assert page["data"] == [expert]


async def test_other_methods_and_paths_of_these_names_are_not_passed_to_engines(served, engine):
    for method, path in (("DELETE", "/v1/workflows/w"), ("POST", "/v1/agents"),
                         ("POST", "/v1/workflows/w"), ("GET", "/v1/workflows")):  # fmt: skip
        answer = await served.ask(method, path)
        assert answer.status in (404, 405), (method, path)
        answer.error()
    assert engine.calls == []
    assert served.facts.all(Arrived, FirstToken) == []

"""Callers declare plans, over real sockets; calls go by what is left of them."""

import asyncio

import msgspec

from kairos.core import Arrived, Dispatch, PlanDeclared
from kairos.gateway.api.insight import MOST_BYTES
from kairos.workflows.run import flow_run
from tests.e2e.batch_files import key
from tests.e2e.cli.flow_runs import Runs, answer_to, answering, completion
from tests.e2e.flows import MANY, REPORTS, answers, invoke, kept_in, put
from tests.support.simulate import build


def plan(*agents):
    return {
        "operators": [
            {"agent": agent, "follows": [place - 1] if place else []}
            for place, agent in enumerate(agents)
        ]
    }


async def declare(served, app, said, **options):
    return await served.ask("PUT", f"/v1/plans/{app}", json=said, **options)


async def dispatched_after(served, engine, declared):
    """Two calls wait, that of the app `long` for longer; which goes first."""
    engine.answer = engine.when_released
    for app, agents in declared.items():
        assert (await declare(served, app, plan(*agents))).status == 200
    calls = [asyncio.create_task(served.chat())]
    await engine.called()
    for number, app in enumerate(("long", "short")):
        names = {"X-Kairos-Workflow-Id": app, "X-Kairos-App": app, "X-Kairos-Agent": "first"}
        calls.append(asyncio.create_task(served.chat(names)))
        await served.facts.seen(Arrived, number + 2)
    engine.release(3)
    await asyncio.gather(*calls)
    apps = {fact.request.id: fact.request.app for fact in served.facts.all(Arrived)}
    return [apps[each.request_id] for each in decided(served, Dispatch)][1:]


def decided(served, kind):
    commands = [each for record in served.facts.records for each in record.commands]
    return [each for each in commands if isinstance(each, kind)]


async def test_calls_of_two_workflows_go_by_what_their_declared_plans_have_left(kairos, engine):
    served = await kairos(engine.url, max_num_seqs=1)
    plans = {"long": ("first", "second", "third", "fourth"), "short": ("first", "second")}

    assert await dispatched_after(served, engine, plans) == ["short", "long"]
    log = served.facts.records
    fresh = build.balancer(policy="kairos", placement="kairos")
    assert [each.commands for each in build.replay(log, fresh)] == [e.commands for e in log]


async def test_without_plans_the_older_of_two_that_seem_alike_goes_first(kairos, engine):
    served = await kairos(engine.url, max_num_seqs=1)

    assert await dispatched_after(served, engine, {}) == ["long", "short"]


async def test_a_plan_is_of_its_callers_tenant_and_a_key_of_an_app_speaks_for_that(kairos, engine):
    keys = [key("acme"), msgspec.structs.replace(key("desk", app="desk"), tenant="acme")]
    served = await kairos(engine.url, key=keys)

    for secret, app in (("acme", "any"), ("desk", "desk")):
        headers = {"Authorization": f"Bearer {secret}"}
        answer = await declare(served, "any", plan("a", "b"), headers=headers)
        assert answer.json() == {"id": app, "object": "plan", "operators": 2}
    told = served.facts.all(PlanDeclared)
    assert [(each.tenant, each.app) for each in told] == [("acme", "any"), ("acme", "desk")]
    assert (await declare(served, "any", plan("a"))).status == 401


async def test_plans_that_cannot_be_are_refused_and_told_to_nobody(served):
    for said, says in (
        ({}, "operators"),
        (plan(), "1 to 256"),
        (plan("a", "a"), "name"),
        ({"operators": [{"agent": "a", "follows": [0]}]}, "below its own"),
        ({"operators": [{"agent": "a", "calls": -1}]}, "calls"),
    ):
        answer = await declare(served, "app", said)
        assert answer.status == 400, said
        assert says in answer.json()["error"]["message"]
    too_long = await served.ask("PUT", "/v1/plans/app", data=b" " * (MOST_BYTES + 1))
    assert too_long.status == 413
    assert (await declare(served, "no%20name", plan("a"))).status == 400
    assert not served.facts.all(PlanDeclared)


async def test_an_invoked_flow_declares_its_plan_once_in_a_while(kairos, engine, tmp_path):
    served = await kairos(answers(engine).url, flows=kept_in(tmp_path))
    await put(served)
    for most in (40, 50):
        assert (await invoke(served, {"text": "x"})).status == 200
        settings = {"summary.max_tokens": most}
        assert (await invoke(served, {"text": "y"}, settings=settings)).status == 200

    [told] = served.facts.all(PlanDeclared)
    assert (told.tenant, told.app) == ("default", "reports")
    assert [each.agent for each in told.plan.operators] == ["summary", "verdict"]

    await put(served, REPORTS.replace("Judge:", "Judge this:"))
    assert (await invoke(served, {"text": "x"})).status == 200
    assert len(served.facts.all(PlanDeclared)) == 2


async def test_a_run_declares_its_plan_to_the_kairos_that_it_asks(kairos, engine, tmp_path):
    served = await kairos(answering(engine).url)
    runs = Runs(tmp_path, engine)
    rows = [{"items": ["a", "b"]}]
    await runs.run(MANY, rows, url=served.url, engines=())

    [told] = served.facts.all(PlanDeclared)
    assert told.app == "many"
    assert [each.agent for each in told.plan.operators] == ["say"]
    assert served.facts.records.index(
        next(each for each in served.facts.records if isinstance(each.event, PlanDeclared))
    ) < served.facts.records.index(
        next(each for each in served.facts.records if isinstance(each.event, Arrived))
    )


async def test_a_run_says_its_plan_again_to_a_balancer_that_may_have_lost_it(
    kairos, engine, tmp_path, monkeypatch
):
    monkeypatch.setattr(flow_run, "_DECLARE_AGAIN_S", 0.01)
    served = await kairos(engine.url)

    async def answer(request):
        await served.facts.seen(PlanDeclared, 3)
        return completion(answer_to(await request.json()))

    engine.answer = answer
    await Runs(tmp_path, engine).run(MANY, [{"items": ["a"]}], url=served.url, engines=())
    assert {each.app for each in served.facts.all(PlanDeclared)} == {"many"}

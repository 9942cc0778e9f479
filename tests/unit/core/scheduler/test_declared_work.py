"""What is expected of workflows whose plan was declared."""

import pytest

from kairos.core import (
    MOST_OPERATORS,
    POLICIES,
    SECOND,
    InvalidRequest,
    PlanDeclared,
    PlannedOperator,
    PlannedWork,
    ProfilesLearnt,
    WorkEstimates,
    check_plan,
)
from kairos.core.scheduler import declared_work as module
from kairos.core.scheduler.declared_work import DeclaredPlans, DeclaredWork
from tests.support.core import learnt
from tests.support.simulate import build


def profile(agent, call_s, app="app", tenant="default"):
    call_us = learnt.distribution([call_s * SECOND])
    return learnt.profile(agent, [SECOND], app=app, tenant=tenant, call_us=call_us)


def declared(*operators, app="app", tenant="default"):
    return PlanDeclared(tenant, app, PlannedWork(operators))


def chain(*agents, **fields):
    return declared(
        *(
            PlannedOperator(agent, (place - 1,) if place else (), **fields)
            for place, agent in enumerate(agents)
        )
    )


def priced(event, *profiles, epoch=0):
    work = DeclaredWork(event)
    work.price(epoch, {each.key: each for each in profiles})
    return work


def arrived(estimates, name, **fields):
    fields = {"app": "app"} | fields
    request = build.request(name, **fields)
    estimates.add_call(request, 0)
    return request


def test_what_is_not_learnt_is_told_from_tokens_in_proportion_to_what_is():
    known = PlannedOperator("known", prompt_tokens=0, completion_tokens=100)
    longer = PlannedOperator("longer", (0,), prompt_tokens=0, completion_tokens=300)

    work = priced(declared(known, longer), profile("known", 2))

    assert work.open_us({"known": 1}) == pytest.approx(6 * SECOND)


def test_what_nothing_is_known_of_is_as_the_others_are():
    work = priced(chain("a", "b", "c"), profile("a", 2), profile("c", 4))

    assert work.open_us({"a": 1}) == pytest.approx((3 + 4) * SECOND)


def test_learnt_latencies_of_another_tenants_app_do_not_count():
    event = chain("a", "b")
    work = priced(event, profile("b", 9, tenant="other"), profile("b", 9, app="other"))

    assert work.open_us({"a": 1}) == priced(event).open_us({"a": 1})


def test_calls_of_a_loop_go_on_after_each_other_and_end_with_what_follows_it():
    draft = PlannedOperator("draft", (), repeats=0, calls=3)
    critic = PlannedOperator("critic", (0,), repeats=0, calls=3)
    final = PlannedOperator("final", (1,))
    work = priced(
        declared(draft, critic, final), *(profile(each, 1) for each in ("draft", "critic", "final"))
    )

    assert work.open_us({"draft": 1, "critic": 1}) == pytest.approx((2 + 2 + 1) * SECOND)
    assert work.open_us({"draft": 1, "critic": 1, "final": 1}) == 0


def test_how_often_an_operator_is_called_is_learnt_from_workflows_that_ended():
    """Whose counts come into use with the next epoch: who asks when does not matter."""
    work = priced(chain("ask", "check"), profile("ask", 1), profile("check", 4))
    assert work.open_us({"ask": 1}) == pytest.approx(4 * SECOND)

    work.learn_visits({"ask": 1, "check": 1}, 0)
    for _ in range(3):
        work.learn_visits({"ask": 1}, 0)
    work.price(0, {})
    assert work.open_us({"ask": 1}) == pytest.approx(4 * SECOND)

    work.price(1, {each.key: each for each in (profile("ask", 1), profile("check", 4))})
    assert work.open_us({"ask": 1}) == pytest.approx(SECOND)


def test_a_rows_workflow_has_none_of_the_operators_of_groups():
    row, group = PlannedOperator("row"), PlannedOperator("group", part=1)
    tail = PlannedOperator("tail", (0,))
    work = priced(
        declared(row, group, tail), *(profile(each, 1) for each in ("row", "group", "tail"))
    )

    assert work.open_us({"row": 1}) == pytest.approx(SECOND)
    assert work.open_us({"group": 1}) == 0


def test_a_workflow_keeps_the_plan_with_which_its_calls_came():
    estimates = WorkEstimates()
    estimates.learn(ProfilesLearnt((profile("a", 1), profile("b", 1), profile("c", 1))))
    estimates.declare(chain("a", "b"))
    first = arrived(estimates, "r1", workflow_id="w1", agent="a")
    estimates.declare(chain("a", "b", "c"))
    second = arrived(estimates, "r2", workflow_id="w2", agent="a")

    assert estimates.left_us(first) == pytest.approx(2 * SECOND)
    assert estimates.left_us(second) == pytest.approx(3 * SECOND)


def test_an_agent_that_no_plan_has_is_told_by_what_was_learnt():
    estimates = WorkEstimates()
    estimates.learn(ProfilesLearnt((profile("a", 1),)))
    alone = arrived(estimates, "r1", workflow_id="w1", agent="other")
    before = estimates.left_us(alone)
    estimates.declare(chain("a", "b"))

    again = arrived(estimates, "r2", workflow_id="w2", agent="other")
    assert estimates.left_us(again) == before
    assert not estimates.follows_plan(again)


def test_a_workflow_that_is_forgotten_while_a_call_runs_has_that_call_left():
    estimates = WorkEstimates()
    estimates.learn(ProfilesLearnt((profile("a", 3),)))
    estimates.declare(declared(PlannedOperator("a", part=7)))
    request = arrived(estimates, "r1", workflow_id="w1", agent="a")
    estimates.close_workflow(("default", "w1"))

    assert estimates.left_us(request) == pytest.approx(3 * SECOND)


def test_another_tenants_plan_of_the_same_app_does_not_count():
    estimates = WorkEstimates()
    estimates.declare(chain("a", "b"))

    assert not estimates.follows_plan(arrived(estimates, "r1", tenant="other", agent="a"))


def test_of_two_workflows_the_one_with_less_of_its_plan_left_goes_first():
    """What was learnt of the agents alone says the opposite."""
    estimates = WorkEstimates()
    estimates.declare(chain("a", "b", "c", "d"))
    seconds = {"a": 1, "b": 1, "c": 1, "d": 1, "z": 2}
    estimates.learn(ProfilesLearnt(tuple(profile(*each) for each in seconds.items())))
    long = arrived(estimates, "r1", workflow_id="w1", agent="a")
    short = arrived(estimates, "r2", workflow_id="w2", agent="z")
    policy = POLICIES["kairos"](estimates)

    assert policy.key(short, policy.state(short)) < policy.key(long, policy.state(long))


def test_plans_are_bounded_and_the_tenant_that_has_most_gives_way(monkeypatch):
    monkeypatch.setattr(module, "MOST_OPERATORS", 3 * (2 + module._PLAN))
    plans = DeclaredPlans()
    plans.declare(PlanDeclared("small", "app", chain("a", "b").plan))
    for number in range(5):
        plans.declare(PlanDeclared("big", f"app{number}", chain("a", "b").plan))

    assert len(plans) == 3
    assert plans.of("small", "app", "a") is not None
    assert plans.of("big", "app4", "a") is not None


def test_a_plan_that_is_said_again_forgets_nothing():
    plans = DeclaredPlans()
    plans.declare(chain("a", "b"))
    first = plans.of("default", "app", "a")
    plans.declare(chain("a", "b"))

    assert plans.of("default", "app", "a") is first


@pytest.mark.parametrize(
    "operators",
    [
        (),
        (PlannedOperator("a"),) * 2,
        (PlannedOperator("no name"),),
        (PlannedOperator("a", calls=float("nan")),),
        (PlannedOperator("a", calls=-1.0),),
        (PlannedOperator("a", completion_tokens=float("inf")),),
        (PlannedOperator("a", part=-1),),
        (PlannedOperator("a", repeats=10**9),),
        (PlannedOperator("a"), PlannedOperator("b", (0, 0))),
        tuple(PlannedOperator(f"a{n}") for n in range(MOST_OPERATORS + 1)),
    ],
)
def test_a_plan_that_cannot_be_is_refused(operators):
    with pytest.raises(InvalidRequest):
        check_plan(PlannedWork(operators))

"""What policies may know, where nothing, little or something is learnt."""

import math

import pytest

from kairos.core import (
    POLICIES,
    POOLED_AGENT,
    QUANTILES,
    SECOND,
    AgentRank,
    ProfilesLearnt,
    WorkEstimates,
)
from kairos.core.scheduler import work_estimates as module
from tests.support.core import learnt
from tests.support.simulate import build

SHORT = (-3.0,) * (QUANTILES // 2) + (3.0,) * (QUANTILES // 2)  # half of all end early


def profile(agent, remaining_s, *, app="a", tenant="default", call_s=1.0):
    call_us = learnt.distribution([call_s * SECOND])
    return learnt.profile(agent, [remaining_s * SECOND], app=app, tenant=tenant, call_us=call_us)


def model(remaining_s, *, app="a", tenant="default", agents=None, residuals=(0.0,)):
    """Every agent's calls have so much left, or what `agents` says."""
    agents = {agent: math.log(each / remaining_s) for agent, each in (agents or {}).items()}
    return learnt.model(
        app,
        tenant=tenant,
        intercept=math.log(remaining_s * SECOND),
        agents=agents,
        residuals=residuals,
    )


def arrived(estimates, name, *, at=0, app="a", agent="x", **fields):
    request = build.request(name, at=at, app=app, agent=agent, **fields)
    estimates.add_call(request, at)
    return request


def key_of(policy, request):
    return policy.key(request, policy.state(request))


def ran(estimates, name, took_s, *, app="a", **fields):
    """A call that came, was dispatched at once, and ended."""
    arrived(estimates, name, app=app, **fields)
    estimates.note_dispatch(name, 0)
    estimates.remove_call(name, int(took_s * SECOND), 10)


def remaining_s(estimates, request):
    return estimates.remaining_us(request) / SECOND


def test_what_is_known_of_an_agent_is_its_own_else_its_apps_else_that_of_all():
    estimates = WorkEstimates()
    keys = {
        "own": ("default", "a", "x"),
        "app": ("default", "a", POOLED_AGENT),
        "all": (POOLED_AGENT,) * 3,
    }
    asked = {
        "own": build.request("own", app="a", agent="x"),
        "app": build.request("app", app="a", agent="new"),
        "all": build.request("all", app="new", agent="x"),
    }
    assert estimates.rank(asked["own"]) is estimates.profile(asked["own"]) is None
    for n, (tenant, app, agent) in enumerate(keys.values()):
        each = profile(agent, n + 1, app=app, tenant=tenant)
        estimates.learn(ProfilesLearnt((each,), ranks=(AgentRank(tenant, app, agent, float(n)),)))

    assert {name: estimates.profile(request).key for name, request in asked.items()} == keys
    assert [estimates.rank(request) for request in asked.values()] == [0.0, 1.0, 2.0]


def test_an_agent_that_is_forgotten_stands_where_its_app_does_and_a_forgotten_app_where_all_do():
    estimates = WorkEstimates()
    for n, app in enumerate([POOLED_AGENT, "a"]):
        tenant = POOLED_AGENT if app == POOLED_AGENT else "default"
        agents = (POOLED_AGENT,) if app == POOLED_AGENT else ("x", POOLED_AGENT)
        ranks = tuple(AgentRank(tenant, app, agent, float(n)) for agent in agents)
        profiles = tuple(profile(agent, n + 1, app=app, tenant=tenant) for agent in agents)
        learning = ProfilesLearnt(profiles, (model(n + 1, app=app, tenant=tenant),), ranks)
        estimates.learn(learning)
    request = build.request("r", app="a", agent="x")

    def known():
        profile, model = estimates.profile(request), estimates.model(request)
        return profile.key, (model.tenant, model.app), estimates.rank(request)

    assert known() == (("default", "a", "x"), ("default", "a"), 1.0)
    estimates.learn(ProfilesLearnt(forgotten=(("default", "a", "x"),)))
    assert known() == (("default", "a", POOLED_AGENT), ("default", "a"), 1.0)
    assert estimates.published(("default", "a", "x")) == (None, None)
    estimates.learn(ProfilesLearnt(forgotten=(("default", "a", POOLED_AGENT),)))
    assert known() == ((POOLED_AGENT,) * 3, (POOLED_AGENT,) * 2, 0.0)


def test_before_there_is_a_model_the_profile_says_what_remains():
    estimates = WorkEstimates()
    estimates.learn(ProfilesLearnt((profile("x", 7),)))
    assert remaining_s(estimates, arrived(estimates, "r")) == 7


def test_before_anything_is_learnt_longer_calls_are_more_work():
    estimates = WorkEstimates()
    base = estimates.call_us(build.request("r", prompt=10, completion=10))
    assert estimates.call_us(build.request("r", prompt=10, completion=11)) > base
    assert estimates.call_us(build.request("r", prompt=11, completion=10)) > base


def test_what_is_left_is_told_from_the_call_with_most_remaining_not_from_the_longest_call():
    estimates = WorkEstimates()
    estimates.learn(
        ProfilesLearnt(
            (profile("first", 10, call_s=1), profile("slow", 6, call_s=5)),
            (model(1, agents={"first": 10, "slow": 6}),),
        )
    )
    slow = arrived(estimates, "slow", agent="slow", workflow_id="w")
    assert estimates.left_us(slow) == pytest.approx(6 * SECOND)
    first = arrived(estimates, "first", agent="first", workflow_id="w")
    assert estimates.left_us(slow) == estimates.left_us(first) == pytest.approx(15 * SECOND)
    estimates.remove_call("first", 1, 10)
    assert estimates.left_us(slow) == pytest.approx(6 * SECOND)


def test_what_the_workflows_of_an_unlearnt_app_have_had_is_the_most_that_any_had():
    estimates = WorkEstimates()
    ran(estimates, "much", 9)
    ran(estimates, "little", 2)
    assert remaining_s(estimates, arrived(estimates, "next")) == 9


def test_once_an_app_is_learnt_its_model_alone_says_what_remains():
    estimates = WorkEstimates()
    ran(estimates, "before", 9)
    estimates.learn(ProfilesLearnt(models=(model(3),)))
    ran(estimates, "after", 60)
    assert remaining_s(estimates, arrived(estimates, "next")) == pytest.approx(3)
    assert not estimates._attained_us


def test_very_many_unlearnt_apps_are_noted_up_to_a_bound_and_those_noted_go_on(monkeypatch):
    monkeypatch.setattr(module, "_MAX_APPS", 3)
    estimates = WorkEstimates()
    for n in range(5):
        ran(estimates, f"r{n}", 1, app=f"app{n}")
    ran(estimates, "again", 8, app="app0")

    assert len(estimates._attained_us) == 3
    assert remaining_s(estimates, arrived(estimates, "next", app="app0")) == 8


def test_how_far_the_ranks_are_from_the_means_is_the_last_that_was_told():
    estimates = WorkEstimates()
    estimates.learn(ProfilesLearnt(kendall_tau=0.5))
    estimates.learn(ProfilesLearnt((profile("x", 1),)))
    assert estimates.kendall_tau == 0.5


def test_a_balancer_forgets_workflows_that_are_idle_for_as_long_as_it_was_told():
    balancer = build.balancer(build.instance("i"), idle_us=100)
    for name, at in (("old", 0), ("new", 99)):
        balancer.handle(build.Arrived(build.request(name, at=at)), at)
        balancer.handle(build.Finished(name), at)
    assert len(balancer.estimates.positions) == 2
    balancer.handle(build.Arrived(build.request("newer", at=100)), 100)
    assert len(balancer.estimates.positions) == 2


@pytest.mark.parametrize("name", ["kairos"])
def test_before_there_is_a_model_policies_go_by_the_profiles(name):
    estimates = WorkEstimates()
    policy = POLICIES[name](estimates)
    estimates.learn(ProfilesLearnt((profile("long", 9), profile("short", 2))))
    long, short = (arrived(estimates, agent, agent=agent) for agent in ("long", "short"))
    assert key_of(policy, short) < key_of(policy, long)


@pytest.mark.parametrize("name", ["fcfs-app", "wasserstein-mds", "kairos"])
def test_of_equals_the_older_workflow_goes_first_and_of_its_calls_the_older(name):
    estimates = WorkEstimates()
    policy = POLICIES[name](estimates)
    estimates.learn(ProfilesLearnt((profile("x", 2),), (model(2),)))
    old = arrived(estimates, "old", at=9, workflow_started_at=1)
    older_call = arrived(estimates, "older call", at=7, workflow_started_at=5)
    young = arrived(estimates, "young", at=8, workflow_started_at=5)
    assert key_of(policy, old) < key_of(policy, older_call) < key_of(policy, young)


@pytest.mark.parametrize("name", ["kairos"])
def test_between_apps_the_one_that_is_likely_to_end_soon_goes_first(name):
    estimates = WorkEstimates()
    policy = POLICIES[name](estimates)
    estimates.learn(ProfilesLearnt(models=(model(5), model(5, app="gamble", residuals=SHORT))))
    sure = arrived(estimates, "sure")
    assert key_of(policy, arrived(estimates, "gamble", app="gamble")) < key_of(policy, sure)

    certain = model(5, app="gamble", residuals=(1.0,))  # longer than estimated, by far
    estimates.learn(ProfilesLearnt(models=(certain,)))
    assert key_of(policy, sure) < key_of(policy, arrived(estimates, "gamble again", app="gamble"))

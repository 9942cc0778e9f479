"""The order that each policy gives, on cases small enough to check by hand."""

import math
from itertools import count

import pytest

from experiments.oracle import Srpt
from kairos.events import ProfilesLearnt
from kairos.learnt import POOLED, QUANTILES, AgentProfile, AgentRank, Distribution, RemainingModel
from kairos.model import SECOND
from kairos.position import FEATURES
from kairos.scheduler.policies import POLICIES, gittins_index
from kairos.scheduler.queue import WaitQueue
from kairos.scheduler.work_estimates import WorkEstimates
from tests.support import build


def constant(value):
    return Distribution(float(value), (float(value),) * QUANTILES)


def profile(agent, *, app="a", tenant="default", remaining_s=1.0, call_s=1.0, stages=1.0):
    return AgentProfile(
        tenant=tenant,
        app=app,
        agent=agent,
        samples=100,
        converged=True,
        call_us=constant(call_s * SECOND),
        completion_tokens=constant(10),
        remaining_us=constant(remaining_s * SECOND),
        remaining_stages=stages,
    )


def model(app="a", *, tenant="default", logarithm=0.0, agents=None, weights=None, residuals=None):
    return RemainingModel(
        tenant=tenant,
        app=app,
        samples=100,
        intercept=logarithm,
        weights=weights or (0.0,) * FEATURES,
        lowest=(-100.0,) * FEATURES,
        highest=(100.0,) * FEATURES,
        agents=agents or {},
        residuals=residuals or (0.0,) * QUANTILES,
    )


class Bench:
    """A policy with what it knows, and requests told to it."""

    def __init__(self, name):
        self.estimates = WorkEstimates()
        self.policy = POLICIES[name](self.estimates)
        self.requests = {}

    def learn(self, *profiles, models=(), ranks=(), forgotten=()):
        self.estimates.learn(ProfilesLearnt(profiles, tuple(models), tuple(ranks), forgotten))

    def arrive(self, name, *, at=0, app="a", agent="x", **fields):
        request = build.request(name, at=at, app=app, agent=agent, **fields)
        self.estimates.arrived(request, at)
        self.requests[name] = request

    def order(self):
        return sorted(self.requests, key=lambda name: self.key(self.requests[name]))

    def key(self, request):
        return self.policy.key(request, self.policy.state(request))

    def run(self, name, *, dispatched_at, ended_at, tokens=10):
        self.estimates.dispatched(name, dispatched_at)
        self.estimates.ended(name, ended_at, tokens)
        del self.requests[name]


def test_fcfs_goes_by_the_arrival_of_the_call():
    bench = Bench("fcfs")
    bench.arrive("second", at=5, workflow_started_at=0)
    bench.arrive("first", at=4, workflow_started_at=4)
    assert bench.order() == ["first", "second"]


def test_fcfs_app_goes_by_the_start_of_the_workflow():
    bench = Bench("fcfs-app")
    bench.arrive("young", at=4, workflow_started_at=4)
    bench.arrive("old", at=9, workflow_started_at=0)
    assert bench.order() == ["old", "young"]


def test_wasserstein_mds_goes_by_rank_and_within_an_agent_by_the_start_of_the_workflow():
    bench = Bench("wasserstein-mds")
    ranks = (AgentRank("default", "a", "short", 1.0), AgentRank("default", "a", "long", 2.0))
    bench.learn(ranks=ranks)
    bench.arrive("long", agent="long", workflow_started_at=0)
    bench.arrive("young", at=9, agent="short", workflow_started_at=8)
    bench.arrive("old", at=9, agent="short", workflow_started_at=3)
    assert bench.order() == ["old", "young", "long"]


@pytest.mark.parametrize("name", ["wasserstein-mds", "kairos"])
def test_an_unknown_agent_stands_where_its_app_does_and_an_unknown_app_where_all_do(name):
    bench = Bench(name)
    known = [
        profile("low", remaining_s=1, stages=1),
        profile(POOLED, remaining_s=4, stages=4),
        profile("high", remaining_s=9, stages=9),
        profile(POOLED, app=POOLED, tenant=POOLED, remaining_s=6, stages=6),
    ]
    ranks = tuple(AgentRank(*each.key, each.remaining_stages) for each in known)
    models = [
        model(logarithm=4.0, agents={"low": -3.0, "high": 5.0}),
        model(POOLED, tenant=POOLED, logarithm=6.0),
    ]
    bench.learn(*known, models=models, ranks=ranks)
    for agent in ("low", "new", "high"):
        bench.arrive(agent, agent=agent)
    bench.arrive("elsewhere", app="new app")
    bench.arrive("other tenant", agent="low", tenant="other")  # learns nothing from this one's
    assert bench.order() == ["low", "new", "elsewhere", "other tenant", "high"]


@pytest.mark.parametrize("name", POLICIES)
def test_before_anything_is_learnt_every_policy_works(name):
    bench = Bench(name)
    bench.arrive("first", at=0)
    bench.arrive("second", at=1)
    assert bench.order() == ["first", "second"]


def test_kairos_prefers_the_gamble_that_is_likely_to_end_soon():
    bench = Bench("kairos")
    gamble = (-3.0,) * (QUANTILES // 2) + (3.0,) * (QUANTILES // 2)
    models = [model("sure", logarithm=10.0), model("gamble", logarithm=10.0, residuals=gamble)]
    bench.learn(models=models)
    bench.arrive("sure", app="sure")
    bench.arrive("gamble", app="gamble")
    assert bench.order() == ["gamble", "sure"]


def test_the_gittins_index_of_something_certain_is_its_size():
    assert gittins_index([5.0] * 8) == 5.0


def test_the_gittins_index_is_the_best_ratio_of_service_to_endings():
    # Stop at 1: 1 / 0.5 = 2. Stop at 100: (1 + 100) / 2 = 50.5.
    assert gittins_index([1.0, 100.0]) == 2.0
    # Stop at 3: 3 / 0.5 = 6. Stop at 4: (3 + 4) / 2 = 3.5.
    assert gittins_index([3.0, 4.0]) == 3.5


def test_kairos_goes_by_where_the_request_stands_and_not_only_by_its_agent():
    bench = Bench("kairos")
    weights = (-1.0,) + (0.0,) * (FEATURES - 1)  # the more stages are done, the less is left
    bench.learn(models=[model(logarithm=12.0, weights=weights)])
    bench.arrive("w1", workflow_id="w")
    bench.run("w1", dispatched_at=0, ended_at=1)
    bench.arrive("second call", at=3, workflow_id="w", workflow_started_at=3)
    bench.arrive("first call", at=2, workflow_id="v", workflow_started_at=2)
    assert bench.order() == ["second call", "first call"]


def test_kairos_takes_estimates_that_hardly_differ_for_equal_and_serves_the_older_workflow():
    bench = Bench("kairos")
    close = {"less": 0.2, "more": 0.8, "much more": 1.5}
    levels = {agent: part * math.log(bench.policy.LEVEL) for agent, part in close.items()}
    bench.learn(models=[model(agents=levels, logarithm=100 * math.log(bench.policy.LEVEL))])
    bench.arrive("less", at=5, agent="less", workflow_started_at=5)
    bench.arrive("more", at=5, agent="more", workflow_started_at=2)
    bench.arrive("much more", at=5, agent="much more", workflow_started_at=0)
    assert bench.order() == ["more", "less", "much more"]


def test_an_app_of_which_nothing_has_ended_is_expected_to_need_as_much_again():
    bench = Bench("kairos")
    bench.learn(models=[model(POOLED, tenant=POOLED, logarithm=math.log(3 * SECOND))])
    bench.arrive("first", app="new")
    assert bench.estimates.remaining_us(bench.requests["first"]) == pytest.approx(3 * SECOND)
    bench.run("first", dispatched_at=0, ended_at=20 * SECOND)
    bench.arrive("next", app="new", workflow_id="another")
    bench.arrive("other", app="other")
    assert bench.estimates.remaining_us(bench.requests["next"]) == 20 * SECOND
    assert bench.order() == ["other", "next"]

    bench.learn(models=[model("new", logarithm=math.log(SECOND))])
    assert bench.order() == ["next", "other"]


def fan_out():
    """A workflow with two calls in flight, of 2 s and 6 s, and another with 4 s to go."""
    bench = Bench("kairos")
    seconds = {"short": 2.0, "long": 6.0, "other": 7.0}
    agents = {agent: math.log(each * SECOND) for agent, each in seconds.items()}
    bench.learn(
        *(profile(agent, call_s=each) for agent, each in seconds.items()),
        models=[model(agents=agents)],
    )
    bench.arrive("short", agent="short", workflow_id="fan")
    bench.arrive("long", agent="long", workflow_id="fan")
    bench.arrive("other", agent="other", workflow_id="alone")
    return bench


def test_a_workflow_has_left_what_all_its_calls_in_flight_need():
    bench = fan_out()
    for name, left_s in (("short", 8), ("long", 8), ("other", 7)):
        left_us = bench.estimates.left_us(bench.requests[name])
        assert left_us == pytest.approx(left_s * SECOND), name


def test_a_call_with_slack_yields_to_the_one_that_the_join_waits_for():
    assert fan_out().order() == ["other", "long", "short"]


def test_the_last_straggler_of_a_fan_out_goes_before_what_has_more_left():
    bench = fan_out()
    before = bench.policy.state(bench.requests["short"])
    bench.run("long", dispatched_at=0, ended_at=1)
    assert bench.order() == ["short", "other"]
    assert bench.policy.state(bench.requests["short"]) != before  # so the queue asks again


def test_a_running_sibling_counts_as_well_as_a_waiting_one():
    bench = fan_out()
    bench.estimates.dispatched("long", 1)
    del bench.requests["long"]
    assert bench.order() == ["other", "short"]


def test_what_is_left_follows_what_is_learnt():
    bench = fan_out()
    assert bench.order()[0] == "other"
    bench.learn(models=[model(agents={"other": math.log(60 * SECOND)})])
    assert bench.order()[-1] == "other"


def test_the_queue_reorders_a_workflow_when_another_of_its_calls_ends():
    balancer = build.balancer(build.instance("i", seqs=2), policy="kairos")
    agents = {"short": math.log(2 * SECOND), "long": math.log(6 * SECOND)}
    agents |= {"other": math.log(4 * SECOND)}
    learnt = ProfilesLearnt((profile("long", call_s=6),), (model(agents=agents),))
    assert balancer.handle(learnt, 0) == []
    for name, agent, workflow in (
        ("long", "long", "fan"),
        ("filler", "other", "filler"),
        ("short", "short", "fan"),
        ("other", "other", "alone"),
    ):
        request = build.request(name, app="a", agent=agent, workflow_id=workflow)
        balancer.handle(build.Arrived(request), 1)

    [first] = balancer.handle(build.Finished("long"), 2)
    assert first.request_id == "short"  # and "other", had the long one still been running


def test_what_is_learnt_reorders_those_that_wait_already():
    balancer = build.balancer(build.instance("i", seqs=1), policy="kairos")
    for at, agent in enumerate(("running", "long", "short")):
        request = build.request(agent, at=at, app="a", agent=agent)
        balancer.handle(build.Arrived(request), at)
    assert (
        balancer.handle(
            ProfilesLearnt((profile("long", remaining_s=9), profile("short", remaining_s=1))), 5
        )
        == []
    )

    [first] = balancer.handle(build.Finished("running"), 6)
    assert first.request_id == "short"


def test_whoever_is_forgotten_is_not_known_any_more():
    bench = Bench("kairos")
    bench.learn(profile("gone", remaining_s=9), profile("here", remaining_s=5))
    bench.learn(forgotten=(("default", "a", "gone"),))
    bench.arrive("gone", agent="gone")
    bench.arrive("here", agent="here")
    assert bench.order() == ["gone", "here"]  # nothing is known of it: no expected work


def test_an_estimate_of_a_call_is_never_nothing():
    bench = Bench("fcfs")
    bench.learn(profile("x", call_s=0))
    bench.arrive("r")
    assert bench.estimates.call_us(bench.requests["r"]) == 1


def test_a_queue_that_is_told_of_one_request_again_keeps_one_entry():
    estimates = WorkEstimates()
    queue = WaitQueue(POLICIES["kairos"](estimates), estimates, count())
    request = build.request("r")
    estimates.arrived(request, 0)
    queue.push(request, 0)
    queue.rekey(request)
    assert len(queue.by_key) == 1


def test_the_order_that_knows_the_future_goes_by_what_truly_remains_then_by_the_older_workflow():
    remaining_us = {"long": 9.0, "short": 2.0, "older": 2.0, "later call": 2.0}
    policy = Srpt(remaining_us)
    waiting = [
        build.request("long"),
        build.request("short", at=3, workflow_started_at=3),
        build.request("later call", at=5, workflow_started_at=1),
        build.request("older", at=4, workflow_started_at=1),
    ]
    order = [request.id for request in sorted(waiting, key=lambda each: policy.key(each, None))]
    assert order == ["older", "later call", "short", "long"]


def test_calls_of_one_workflow_may_name_different_apps_and_are_all_reordered():
    bench = Bench("kairos")
    gamble = (-3.0,) * (QUANTILES // 2) + (3.0,) * (QUANTILES // 2)
    models = [
        model("sure", logarithm=math.log(SECOND)),
        model("gamble", logarithm=math.log(SECOND), residuals=gamble),
    ]
    bench.learn(models=models)
    bench.arrive("sure", app="sure", workflow_id="w")
    bench.arrive("gamble", app="gamble", workflow_id="w")
    states = {bench.policy.state(request) for request in bench.requests.values()}
    assert len(states) == 1  # so one of them tells for all whether their keys have moved
    assert bench.order() == ["gamble", "sure"]

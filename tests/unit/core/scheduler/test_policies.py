"""The order that each policy gives, on cases small enough to check by hand."""

import math
from itertools import count

import pytest

from experiments.oracle import Srpt
from kairos.core import (
    POLICIES,
    POOLED_AGENT,
    SECOND,
    AgentRank,
    ProfilesLearnt,
    WorkEstimates,
)
from kairos.core.scheduler.policies import gittins_index
from kairos.core.scheduler.queue import WaitQueue
from tests.support.core import learnt
from tests.support.simulate import build


def profile(agent, *, app="a", tenant="default", remaining_s=1.0, call_s=1.0, stages=1.0):
    return learnt.profile(
        agent,
        [remaining_s * SECOND],
        app=app,
        tenant=tenant,
        samples=100,
        call_us=learnt.always(call_s * SECOND),
        completion_tokens=learnt.always(10),
        remaining_stages=stages,
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
        self.estimates.add_call(request, at)
        self.requests[name] = request

    def order(self):
        return sorted(self.requests, key=lambda name: self.key(self.requests[name]))

    def key(self, request):
        return self.policy.key(request, self.policy.state(request))

    def run(self, name, *, dispatched_at, ended_at, tokens=10):
        self.estimates.note_dispatch(name, dispatched_at)
        self.estimates.remove_call(name, ended_at, tokens)
        del self.requests[name]


def test_fcfs_app_goes_by_the_start_of_the_workflow():
    bench = Bench("fcfs-app")
    bench.arrive("young", at=4, workflow_started_at=4)
    bench.arrive("old", at=9, workflow_started_at=0)
    assert bench.order() == ["old", "young"]


@pytest.mark.parametrize("name", ["wasserstein-mds", "kairos"])
def test_an_unknown_agent_stands_where_its_app_does_and_an_unknown_app_where_all_do(name):
    bench = Bench(name)
    known = [
        profile("low", remaining_s=1, stages=1),
        profile(POOLED_AGENT, remaining_s=4, stages=4),
        profile("high", remaining_s=9, stages=9),
        profile(POOLED_AGENT, app=POOLED_AGENT, tenant=POOLED_AGENT, remaining_s=6, stages=6),
    ]
    ranks = tuple(AgentRank(*each.key, each.remaining_stages) for each in known)
    models = [
        learnt.model(intercept=4.0, agents={"low": -3.0, "high": 5.0}),
        learnt.model(POOLED_AGENT, tenant=POOLED_AGENT, intercept=6.0),
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


def test_the_gittins_index_of_something_certain_is_its_size():
    assert gittins_index([5.0] * 8) == 5.0


def fan_out():
    """A workflow with two calls in flight, of 2 s and 6 s, and another with 4 s to go."""
    bench = Bench("kairos")
    seconds = {"short": 2.0, "long": 6.0, "other": 7.0}
    agents = {agent: math.log(each * SECOND) for agent, each in seconds.items()}
    bench.learn(
        *(profile(agent, call_s=each) for agent, each in seconds.items()),
        models=[learnt.model(agents=agents)],
    )
    bench.arrive("short", agent="short", workflow_id="fan")
    bench.arrive("long", agent="long", workflow_id="fan")
    bench.arrive("other", agent="other", workflow_id="alone")
    return bench


def test_a_call_with_slack_yields_to_the_one_that_the_join_waits_for():
    assert fan_out().order() == ["other", "long", "short"]


def test_the_queue_reorders_a_workflow_when_another_of_its_calls_ends():
    balancer = build.balancer(build.instance("i", seqs=2), policy="kairos")
    agents = {"short": math.log(2 * SECOND), "long": math.log(6 * SECOND)}
    agents |= {"other": math.log(4 * SECOND)}
    known = ProfilesLearnt((profile("long", call_s=6),), (learnt.model(agents=agents),))
    assert balancer.handle(known, 0) == []
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


def test_a_queue_that_is_told_of_one_request_again_keeps_one_entry():
    estimates = WorkEstimates()
    queue = WaitQueue(POLICIES["kairos"](estimates), estimates, count())
    request = build.request("r")
    estimates.add_call(request, 0)
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

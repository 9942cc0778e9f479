"""Baselines by the names that `--policy` and `--placement` take, as a user's own are given."""

import pytest

from kairos.core import (
    SECOND,
    Arrived,
    Finished,
    ProfilesLearnt,
)
from kairos.core.core_names import MOVED
from tests.support.core import learnt
from tests.support.simulate import build


def profile(agent, *, remaining_s, stages):
    remaining_us = [remaining_s * SECOND]
    return learnt.profile(
        agent, remaining_us, app="a", tenant="default", samples=100, remaining_stages=stages
    )


def test_ayo_as_published_takes_the_deepest_call_of_each_workflow():
    # Figure 7 of the paper: A and H bring both queries on, while B's follower waits for another
    # branch anyway.
    instances = [build.instance("i", seqs=2)]
    balancer = build.balancer(*instances, policy="experiments.baselines:AyoPublished")
    stages = {"A": 3, "B": 2, "G": 1, "H": 2, "x": 1}
    known = tuple(profile(each, remaining_s=1, stages=left) for each, left in stages.items())
    balancer.handle(ProfilesLearnt(known), 0)
    for at, (name, workflow) in enumerate(
        [("x", "before"), ("x2", "before"), *zip("ABGH", ("q1", "q1", "q2", "q2"), strict=True)]
    ):
        request = build.request(name, at=at, agent=name[0], app="a", workflow_id=workflow)
        balancer.handle(Arrived(request), at)
    placed = [
        *build.placed(balancer.handle(Finished("x"), 9 * SECOND)),
        *build.placed(balancer.handle(Finished("x2"), 9 * SECOND)),
    ]
    assert placed == [("A", "i"), ("H", "i")]


@pytest.mark.parametrize("old", MOVED)
def test_a_baseline_serves_by_its_new_name(old):
    what = "policy" if "policies" in MOVED[old] else "placement"
    instances = [build.instance(name, kv=200, seqs=1) for name in "abc"]
    balancer = build.balancer(*instances, **{what: MOVED[old]})
    running = {}
    for n in range(9):
        request = build.request(f"r{n}", at=n, workflow_id=f"w{n % 2}", prefix=(1,), prefix_units=9)
        running |= dict(build.placed(balancer.handle(Arrived(request), n)))
    for at in range(10, 100):
        if running:
            name = min(running)
            del running[name]
            running |= dict(build.placed(balancer.handle(Finished(name), at * SECOND)))
    assert balancer.waiting == 0
    assert not balancer.ledger


@pytest.mark.parametrize(("old", "first"), [("ayo", "near"), ("mean", "near"), ("las", "far")])
def test_each_order_is_that_of_its_paper(old, first):
    balancer = build.balancer(build.instance("i", seqs=1), policy=MOVED[old])
    profiles = (profile("far", remaining_s=9, stages=3), profile("near", remaining_s=1, stages=2))
    balancer.handle(ProfilesLearnt(profiles), 0)
    for at, (name, agent, workflow) in enumerate(
        [("served", "near", "w"), ("near", "near", "w"), ("far", "far", "v")]
    ):
        request = build.request(name, at=at, agent=agent, app="a", workflow_id=workflow)
        balancer.handle(Arrived(request), at)

    assert build.placed(balancer.handle(Finished("served"), 9 * SECOND)) == [(first, "i")]

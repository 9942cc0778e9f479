"""Baselines by the names that `--policy` and `--placement` take, as a user's own are given."""

import pytest

from kairos.core_names import MOVED
from kairos.events import Arrived, Finished, ProfilesLearnt
from kairos.learnt import QUANTILES, AgentProfile, Distribution
from kairos.model import SECOND
from tests.support import build


def constant(value):
    return Distribution(float(value), (float(value),) * QUANTILES)


def profile(agent, *, remaining_s, stages):
    return AgentProfile(
        tenant="default",
        app="a",
        agent=agent,
        samples=100,
        converged=True,
        call_us=constant(SECOND),
        completion_tokens=constant(10),
        remaining_us=constant(remaining_s * SECOND),
        remaining_stages=stages,
    )


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

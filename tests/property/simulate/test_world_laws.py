"""Laws of the simulated world, for any workflows and whatever happens to instances."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kairos.core import (
    PLACEMENTS,
    Arrived,
    Dispatch,
    Failed,
    Finished,
    InstanceJoined,
    InstanceLeft,
    StepCost,
)
from kairos.simulate.simulation import alone_us
from kairos.simulate.world import WorldEvent
from tests.support.examples import examples
from tests.support.simulate import build
from tests.support.simulate.worlds import MS, call, profile, ran, submission

pytestmark = pytest.mark.both

COST = StepCost(fixed_us=700, prefill_token_us=3, decode_seq_us=41, kv_token_us=0.5)
CALLS = st.builds(
    call,
    st.integers(1, 400),
    prompt=st.integers(40, 300),
    agent=st.sampled_from("ab"),
    parallel_group=st.sampled_from([None, None, "g", "h"]),
    gap_ms=st.integers(0, 3) | st.none(),
    shared_prefix_tokens=st.integers(0, 40),
    cached_prefix_tokens=st.integers(0, 40),
)
CHAINS = st.lists(CALLS, min_size=1, max_size=5)
WORKFLOWS = st.lists(st.tuples(CHAINS, st.integers(0, 1500)), min_size=1, max_size=12)
HAPPENINGS = st.lists(
    st.builds(
        WorldEvent,
        at_us=st.integers(0, 3000).map(lambda ms: ms * MS),
        what=st.sampled_from(["join", "join", "leave", "fail", "slow"]),
        instance_id=st.sampled_from(["i", "j"]),
        factor=st.sampled_from([0.5, 3.0]),
    ),
    max_size=6,
)
FLEET = {
    "i": profile(seqs=3, kv=1200, step=COST),
    "j": profile(seqs=5, kv=2000, step=COST, scheduling="priority"),
}


def asked_for(workflows):
    return [submission(f"w{n}", *calls, at=at) for n, (calls, at) in enumerate(workflows)]


@given(WORKFLOWS, HAPPENINGS, st.sampled_from(["kairos", "fcfs"]), st.sampled_from([*PLACEMENTS]))
@examples(60)
def test_nothing_is_lost_and_every_decision_can_be_made_again(
    workflows, happenings, policy, placement
):
    submissions = asked_for(workflows)
    options = {"policy": policy, "placement": placement, "happenings": happenings}
    made, log = ran(submissions, instances=FLEET, **options)

    # Every workflow has all its calls answered once, or has failed.
    answered = [r.event.request_id for r in log if isinstance(r.event, Finished)]
    assert len(set(answered)) == len(answered)
    assert made.users.left == 0
    for each in submissions:
        calls = {f"{each.workflow.id}/{n}" for n in range(len(each.workflow.calls))}
        assert (each.workflow.id in made.users.failed) or calls <= set(answered)

    # A call goes after those that it waits for, and only to an instance that is there.
    ended_at = {r.event.request_id: r.at for r in log if isinstance(r.event, Finished)}
    here = set()
    for record in log:
        event = record.event
        if isinstance(event, InstanceJoined):
            here.add(event.instance.id)
        elif isinstance(event, InstanceLeft):
            here.discard(event.instance_id)
        elif isinstance(event, Arrived):
            assert all(ended_at[each] <= record.at for each in event.request.parent_ids)
        assert all(c.instance_id in here for c in record.commands if isinstance(c, Dispatch))

    # Each dispatch has one end, and each engine did what the facts say.
    dispatched = [c.request_id for r in log for c in r.commands if isinstance(c, Dispatch)]
    failed = [r.event.request_id for r in log if isinstance(r.event, Failed)]
    assert sorted(dispatched) == sorted(answered + failed)
    if not failed:
        preempted = sum(engine.stats.preemptions for engine in made.fleet.engines)
        assert sum(row.preemptions or 0 for row in made.metrics.rows) == preempted

    fresh = build.balancer(policy=policy, placement=placement)
    assert build.replay(log, fresh) == log
    again = ran(submissions, instances=FLEET, **options)[1]
    assert msgspec.json.encode(again) == msgspec.json.encode(log)


@given(WORKFLOWS)
@examples(60)
def test_alone_is_a_world_of_its_own(workflows):
    engine = profile(seqs=50, kv=10_000, step=COST)
    submissions = asked_for(workflows)

    expected = {}
    for each in submissions:
        made, _ = ran([msgspec.structs.replace(each, at_us=0)], instances={"i": engine})
        expected[each.workflow.id] = made.clock.now()

    assert alone_us([each.workflow for each in submissions], engine) == expected

from functools import cache

import msgspec
import pytest

from kairos.core import PLACEMENTS, Arrived, Dispatch, ProfilesLearnt
from tests.simulation.logs import DECIDERS
from tests.support.simulate import build

SEEDS = range(1, 3)


@cache
def ran(seed, *, policy="fcfs", placement="least-kv"):
    """The first run, which tests share."""
    return build.simulate(seed, policy=policy, placement=placement)


@pytest.mark.parametrize(("policy", "placement"), DECIDERS)
def test_the_same_seed_gives_the_same_log(policy, placement):
    first, _ = ran(1, policy=policy, placement=placement)
    second, _ = build.simulate(1, policy=policy, placement=placement)

    assert any(isinstance(record.event, ProfilesLearnt) for record in first)
    assert msgspec.json.encode(first) == msgspec.json.encode(second)


def test_another_seed_gives_another_log():
    logs = {msgspec.json.encode(ran(seed)[0]) for seed in SEEDS}

    assert len(logs) == len(SEEDS)


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("seed", SEEDS)
def test_every_request_that_was_taken_in_is_dispatched_or_refused_once(seed, placement):
    log, engine = ran(seed, placement=placement)

    arrived = [r.event.request.id for r in log if isinstance(r.event, Arrived)]
    sent = [request_id for request_id, _ in engine.dispatched]
    assert len(arrived) == 200
    assert sorted(sent + engine.refused) == sorted(arrived)


@pytest.mark.parametrize(("policy", "placement"), DECIDERS)
def test_a_log_replayed_through_a_fresh_balancer_gives_the_same_decisions(placement, policy):
    log, engine = ran(1, policy=policy, placement=placement)
    read_back = msgspec.json.decode(msgspec.json.encode(log), type=list[type(log[0])])

    replayed = build.replay(read_back, build.balancer(placement=placement, policy=policy))

    assert replayed == log
    decided = [
        (c.request_id, c.instance_id)
        for record in replayed
        for c in record.commands
        if isinstance(c, Dispatch)
    ]
    assert decided == engine.dispatched

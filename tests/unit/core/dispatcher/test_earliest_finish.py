"""Calls whose deadline cannot be met are refused when they arrive; who may make it is let in."""

import pytest

from kairos.core import (
    SECOND,
    Arrived,
    Finished,
    FirstToken,
    InstanceJoined,
    Orchestrator,
    ProfilesLearnt,
    Record,
    Refuse,
)
from kairos.core.dispatcher.earliest_finish import OPTIMISM
from kairos.core.scheduler.drain import DrainRate
from tests.support.core import learnt
from tests.support.simulate import build


def arrive(balancer, name, at=0, **fields):
    return balancer.handle(Arrived(build.request(name, at=at, **fields)), at)


def backlog(*, waiting=60):
    """Under fcfs, one call after the other, a second each; so many wait."""
    balancer = build.balancer(build.instance("a", seqs=1))
    for n in range(40 + waiting):
        arrive(balancer, f"r{n}")
    for n in range(40):
        balancer.handle(Finished(f"r{n}"), (n + 1) * SECOND)
    return balancer, 40 * SECOND


def told(commands):
    return [each for each in commands if isinstance(each, Refuse)]


def test_what_waits_before_it_counts_half():
    balancer, at = backlog()
    ahead_us = (59 - 8 - 1) * SECOND
    near = arrive(balancer, "near", at, deadline_at=at + ahead_us // OPTIMISM - 2 * SECOND)
    [refused] = told(near)
    assert (refused.request_id, refused.reason) == ("near", "too_late")
    assert refused.needs_us == pytest.approx(ahead_us / OPTIMISM, rel=0.05)
    assert arrive(balancer, "far", at, deadline_at=at + ahead_us // OPTIMISM + 2 * SECOND) == []
    assert arrive(balancer, "patient", at) == []
    assert "near" not in balancer._workflow_of


def test_of_a_pool_that_has_changed_nothing_is_known():
    balancer, at = backlog()
    balancer.handle(InstanceJoined(build.instance("b", models=("n",))), at)
    assert arrive(balancer, "near", at, deadline_at=at + 1) == []


def test_where_nothing_is_known_whoever_has_time_left_is_let_in():
    balancer = build.balancer(build.instance("a", seqs=1))
    arrive(balancer, "first", deadline_at=1, prompt=100_000)
    assert balancer.handle(Finished("first"), 1) == []


def test_none_is_quicker_than_half_of_the_quickest_of_its_agent():
    balancer = build.balancer(build.instance("a", seqs=1))
    profile = learnt.profile("x", [10 * SECOND, 20 * SECOND], app="app", tenant="default")
    balancer.handle(ProfilesLearnt((profile,)), 0)
    fields = {"agent": "x", "app": "app"}
    [refused] = arrive(balancer, "near", deadline_at=4 * SECOND, **fields)
    assert refused == Refuse("near", "m", "too_late", needs_us=5 * SECOND)
    assert build.placed(arrive(balancer, "far", deadline_at=6 * SECOND, **fields)) == [("far", "a")]
    others = {"agent": "y", "app": "app"}
    assert arrive(balancer, "other", deadline_at=4 * SECOND, **others) == []
    short = fields | {"completion_limit": 1}
    assert told(arrive(balancer, "short", deadline_at=4 * SECOND, **short)) == []


def test_a_prompt_takes_half_of_what_it_takes_by_the_pace_that_was_measured():
    balancer = build.balancer(build.instance("a", seqs=1))
    at = 0
    for n in range(60):  # 1 ms a token
        prompt = 100 + 10 * n
        arrive(balancer, f"r{n}", at, prompt=prompt)
        at += prompt * 1000
        balancer.handle(FirstToken(f"r{n}"), at)
        balancer.handle(Finished(f"r{n}", prompt, 1, 0), at)
    assert told(arrive(balancer, "near", at, prompt=2000, deadline_at=at + SECOND // 2)) != []
    assert told(arrive(balancer, "far", at, prompt=2000, deadline_at=at + 2 * SECOND)) == []


def test_a_call_that_was_refused_as_it_arrived_is_one_of_its_workflow():
    orchestrator, request = Orchestrator(), build.request("r")
    orchestrator.observe(Record(0, Arrived(request), (Refuse("r", "m", "too_late"),)))
    workflow = orchestrator.workflow("default", "w-r")
    assert [call.row.outcome for call in workflow.calls] == ["refused"]
    assert not workflow.in_flight


class TestDrain:
    def test_time_in_which_nothing_waits_is_left_out(self):
        drain, at = DrainRate(), 0
        for _ in range(40):
            drain.note_waiting(at)
            drain.count_departure(at + 7, is_empty=True)
            at += 1_000
        assert drain.each_us(at) == 7

    def test_of_a_queue_that_is_stuck_it_tells(self):
        drain = DrainRate()
        drain.note_waiting(0)
        for at in range(1, 42):
            drain.count_departure(at, is_empty=False)
        assert drain.each_us(41) == 1
        assert drain.each_us(81) == 2

    def test_what_has_not_waited_says_nothing_nor_what_was_turned_away(self):
        drain = DrainRate()
        for at in range(40):
            drain.note_waiting(at)
            drain.count_departure(at, is_empty=True)
        drain.note_waiting(50)
        for at in range(51, 99):
            drain.count_departure(at, is_empty=False, counts=False)
        assert drain.each_us(99) is None
        assert not drain.is_known

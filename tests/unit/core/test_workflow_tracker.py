"""Where a request stands in its workflow."""

import math

from kairos.core import FEATURES
from kairos.core.position import Position, features
from kairos.core.workflow_tracker import WorkflowTracker
from tests.support.simulate import build


def call(name, *, workflow="w", **fields):
    return build.request(name, workflow_id=workflow, **fields)


def test_the_first_call_of_a_workflow_stands_at_its_start():
    positions = WorkflowTracker()
    assert positions.record_arrival(call("r", prompt=50), 7) == Position(prompt_tokens=50)


def test_a_later_call_knows_what_came_before_it():
    positions = WorkflowTracker()
    positions.record_arrival(call("r1", agent="a", prompt=50), 0)
    positions.record_dispatch("r1", 100)
    positions.record_call_end("r1", 400, 30)
    positions.record_arrival(call("r2", agent="b", prompt=60), 500)
    positions.record_dispatch("r2", 500)

    third = positions.record_arrival(call("r3", agent="a", prompt=90), 600)
    assert third == Position(
        stage=2,
        visit=2,
        prompt_tokens=90,
        grown_tokens=40,
        added_tokens=30,
        agents=2,
        served_us=300,  # of r1; r2 runs
        last_completion_tokens=30,
    )


def test_waiting_is_not_service():
    positions = WorkflowTracker()
    positions.record_arrival(call("r1"), 0)
    positions.record_dispatch("r1", 900)
    positions.record_call_end("r1", 1_000, 5)
    positions.record_arrival(call("r2"), 1_000)
    positions.record_call_end("r2", 1_500, None)  # cancelled in the queue

    assert positions.attained(("default", "w")) == (100, 1_400)


def test_an_end_without_tokens_leaves_the_last_length_as_it_was():
    positions = WorkflowTracker()
    positions.record_arrival(call("r1"), 0)
    positions.record_call_end("r1", 1, 40)
    positions.record_arrival(call("r2"), 2)
    positions.record_call_end("r2", 3, None)

    assert positions.record_arrival(call("r3"), 4).last_completion_tokens == 40


def test_an_answer_of_no_tokens_is_the_last_one_all_the_same():
    positions = WorkflowTracker()
    positions.record_arrival(call("r1"), 0)
    positions.record_call_end("r1", 1, 40)
    positions.record_arrival(call("r2"), 2)
    positions.record_call_end("r2", 3, 0)

    assert positions.record_arrival(call("r3"), 4).last_completion_tokens == 0


def test_an_end_that_is_told_twice_counts_once():
    positions = WorkflowTracker()
    positions.record_arrival(call("r1"), 0)
    positions.record_dispatch("r1", 100)
    positions.record_call_end("r1", 400, 30)
    positions.record_call_end("r1", 900, 30)

    assert positions.attained(("default", "w")) == (300, 100)
    assert not positions._calls


def test_workflows_of_two_tenants_are_two_though_they_share_an_id():
    positions = WorkflowTracker()
    positions.record_arrival(call("r1", tenant="x"), 0)
    assert positions.record_arrival(call("r2", tenant="y"), 1).stage == 0
    assert positions.attained(("z", "w")) == (0, 0)


def test_a_workflow_that_ended_begins_anew():
    positions = WorkflowTracker()
    positions.record_arrival(call("r1"), 0)
    positions.end_workflow(("default", "w"))
    positions.record_call_end("r1", 5, 10)  # late news change nothing

    assert positions.record_arrival(call("r2"), 6) == Position(prompt_tokens=10)


def test_news_of_a_stranger_change_nothing():
    positions = WorkflowTracker()
    positions.record_dispatch("stranger", 1)
    positions.record_call_end("stranger", 2, 3)
    assert len(positions) == 0


def test_the_longest_idle_workflow_makes_room():
    positions = WorkflowTracker(max_workflows=2)
    positions.record_arrival(call("a1", workflow="a"), 0)
    positions.record_arrival(call("b1", workflow="b"), 1)
    positions.record_call_end("a1", 2, 1)  # a is heard of again
    positions.record_arrival(call("c1", workflow="c"), 3)

    assert positions.record_arrival(call("a2", workflow="a"), 4).stage == 1
    assert positions.record_arrival(call("b2", workflow="b"), 5).stage == 0
    assert len(positions) == 2


def test_a_workflow_of_which_nothing_is_heard_is_forgotten():
    positions = WorkflowTracker(idle_us=100)
    for name, at in (("a", 0), ("b", 50)):
        positions.record_arrival(call(f"{name}1", workflow=name), at)
        positions.record_call_end(f"{name}1", at, 1)
    positions.record_arrival(call("c1", workflow="c"), 100)

    assert len(positions) == 2
    assert positions.record_arrival(call("b2", workflow="b"), 101).stage == 1


def test_a_call_that_takes_long_is_no_silence():
    positions = WorkflowTracker(idle_us=100)
    positions.record_arrival(call("a1", workflow="a"), 0)
    positions.record_arrival(call("b1", workflow="b"), 500)
    positions.record_call_end("a1", 600, 1)

    assert positions.record_arrival(call("a2", workflow="a"), 650).stage == 1
    positions.record_call_end("a2", 660, 1)
    assert positions.record_arrival(call("a3", workflow="a"), 800).stage == 0


def test_features_are_numbers_of_size_about_one_for_anything_that_can_happen():
    small = Position(prompt_tokens=1, grown_tokens=-5, added_tokens=-5)
    large = Position(
        stage=10_000,
        visit=10_000,
        prompt_tokens=10_000_000,
        grown_tokens=10_000_000,
        added_tokens=10_000_000,
        agents=10_000,
        served_us=10**11,
        last_completion_tokens=1_000_000,
    )
    for position in (small, large):
        numbers = features(position)
        assert len(numbers) == FEATURES
        assert all(math.isfinite(number) and abs(number) < 20 for number in numbers)


def test_each_part_of_a_position_moves_some_feature():
    base = Position(stage=2, visit=2, prompt_tokens=9, grown_tokens=3, served_us=5_000)
    for change in (
        {"stage": 3},
        {"visit": 3},
        {"prompt_tokens": 10},
        {"grown_tokens": 4},
        {"added_tokens": 4},
        {"agents": 2},
        {"served_us": 6_000},
        {"last_completion_tokens": 1},
    ):
        fields = {name: getattr(base, name) for name in base.__struct_fields__}
        assert features(Position(**{**fields, **change})) != features(base), change

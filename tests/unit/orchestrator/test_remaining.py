"""Calls are written as (id, ids of those that led to it, start, end); names play no part here."""

import pytest

from kairos.orchestrator.graph import CallGraph
from kairos.orchestrator.remaining import remaining
from kairos.orchestrator.spans import Span


def graph(*rows, **fields):
    """`fields` are more of a call's, by its id."""
    made = CallGraph()
    for call, led_by, started_at, finished_at in rows:
        made.add(
            Span(
                id=call,
                agent="a",
                parent_ids=tuple(led_by),
                started_at=started_at,
                finished_at=finished_at,
                **fields.get(call, {}),
            )
        )
    return made


def figures(*rows, **fields):
    """work, stages and gap from each call on."""
    return {
        call: (left.work_us, left.stages, left.gap_us)
        for call, left in remaining(graph(*rows, **fields)).items()
    }


def test_nothing_remains_of_no_calls():
    assert remaining(CallGraph()) == {}


def test_in_a_chain_everything_that_follows_remains():
    assert figures(("a", "", 0, 10), ("b", "a", 15, 20), ("c", "b", 22, 42)) == {
        "a": (35, 3, 7),
        "b": (25, 2, 2),
        "c": (20, 1, 0),
    }


def test_of_parallel_calls_the_longest_counts_and_none_counts_into_another():
    assert figures(("a", "", 0, 10), ("b", "a", 11, 20), ("c", "a", 13, 33)) == {
        "a": (30, 2, 3),
        "b": (9, 1, 0),
        "c": (20, 1, 0),
    }


def test_sequential_calls_of_one_caller_count_into_those_before():
    assert figures(("a", "", 0, 10), ("b", "a", 10, 20), ("c", "a", 23, 30)) == {
        "a": (27, 3, 3),
        "b": (17, 2, 3),
        "c": (7, 1, 0),
    }


FAN_OUT = (("a", "", 0, 10), ("b", "a", 10, 15), ("c", "a", 10, 30))


def test_a_join_counts_into_all_that_it_waits_for():
    assert figures(*FAN_OUT, ("d", "bc", 32, 40), ("e", "d", 40, 41)) == {
        "a": (10 + 20 + 8 + 1, 4, 2),
        "b": (5 + 8 + 1, 3, 2),
        "c": (20 + 8 + 1, 3, 2),
        "d": (9, 2, 0),
        "e": (1, 1, 0),
    }


def test_waiting_for_a_slower_sibling_is_no_gap():
    assert figures(*FAN_OUT, ("d", "bc", 30, 40))["b"] == (15, 2, 0)


def test_a_join_of_some_calls_does_not_count_into_their_siblings():
    found = figures(*FAN_OUT, ("x", "a", 12, 99), ("d", "bc", 31, 41))

    assert found["b"] == (15, 2, 1)
    assert found["c"] == (30, 2, 1)
    assert found["x"] == (87, 1, 0)
    assert found["a"] == (97, 2, 2)


def test_a_stage_follows_the_whole_branches_of_the_stage_before_it():
    found = figures(*FAN_OUT, ("f", "b", 15, 31), ("g", "f", 31, 32), ("d", "a", 35, 45))

    assert found == {
        "a": (10 + 5 + 16 + 1 + 10, 5, 3),
        "b": (5 + 16 + 1 + 10, 4, 3),
        "f": (16 + 1 + 10, 3, 3),
        "g": (11, 2, 3),
        "c": (30, 2, 3),
        "d": (10, 1, 0),
    }


def test_the_path_is_of_most_work_even_if_another_is_longer_in_time():
    found = figures(("a", "", 0, 10), ("b", "a", 10, 20), ("f", "b", 90, 100), ("c", "a", 10, 40))

    assert found["a"] == (40, 2, 0)
    assert found["b"] == (20, 2, 70)


def test_time_in_the_queue_is_neither_work_nor_gap():
    rows = ("a", "", 0, 10), ("b", "a", 60, 70)

    assert figures(*rows, b={"queued_us": 45})["a"] == (20, 2, 5)


def test_of_a_call_that_was_tried_again_the_last_attempt_is_work():
    made = graph(("a", "", 0, 10), ("b", "a", 12, 20))
    made.add(Span(id="b", agent="a", parent_ids=("a",), attempt=2, started_at=22, finished_at=25))

    left = remaining(made)["a"]
    assert (left.work_us, left.stages, left.gap_us) == (13, 2, 12)


def test_calls_of_the_user_follow_each_other():
    assert figures(("a", "", 0, 10), ("b", "", 5, 8), ("c", "", 20, 25)) == {
        "a": (15, 2, 10),
        "b": (8, 2, 10),
        "c": (5, 1, 0),
    }


@pytest.mark.parametrize("outcome", ["failed", "cancelled"])
def test_what_remained_before_a_call_without_an_answer_is_censored(outcome):
    rows = (*FAN_OUT, ("f", "b", 15, 20), ("d", "a", 40, 50))
    found = remaining(graph(*rows, f={"outcome": outcome}))

    assert {call for call, left in found.items() if left.censored} == {"a", "b", "f"}
    assert found["a"].work_us == 10 + 20 + 10  # f is not even on the path


def test_a_later_attempt_that_succeeded_makes_up_for_one_that_failed():
    failed = {"b": {"outcome": "failed"}}
    made = graph(("a", "", 0, 10), ("b", "a", 12, 20), **failed)
    assert remaining(made)["a"].censored

    made.add(Span(id="b", agent="a", parent_ids=("a",), attempt=2, started_at=22, finished_at=25))
    assert not remaining(made)["a"].censored


def test_a_guessed_join_counts_into_the_call_that_its_name_led_to():
    """It is in one stage with the calls that it may have joined, since y goes on beside them."""
    names = [("a", None, 0, 10), ("x", "a", 10, 12), ("y", "x", 13, 99)]
    names += [("b", "a", 14, 20), ("c", "a", 15, 30), ("d", "c", 31, 40)]
    made = CallGraph()
    for call, upstream, begin, end in names:
        made.add(Span(id=call, agent=call, upstream=upstream, started_at=begin, finished_at=end))

    assert made.nodes["d"].parents == ("b", "c")
    assert made.stages("a") == [["x", "b", "c", "d"]]
    assert remaining(made)["c"].work_us == 15 + 9
    assert remaining(made)["b"].work_us == 6


def test_ten_thousand_calls_in_a_chain_are_no_trouble():
    n = 10_000
    rows = [(f"c{k}", [f"c{k - 1}"] if k else [], 3 * k, 3 * k + 2) for k in range(n)]

    found = figures(*rows)
    assert [found[f"c{k}"] for k in range(n)] == [(2 * (n - k), n - k, n - k - 1) for k in range(n)]


def test_thousands_of_calls_that_join_one_fan_out_by_name_are_no_trouble():
    half = 2_000
    made = CallGraph()
    for k in range(half):
        made.add(Span(id=f"b{k}", agent="b", started_at=0, finished_at=10 + k))
        made.add(Span(id=f"c{k}", agent="c", upstream="b", started_at=half + 10, finished_at=9_999))

    found = remaining(made)
    assert {found[f"b{k}"].work_us for k in range(half)} == {
        10 + k + 9_999 - half - 10 for k in range(half)
    }

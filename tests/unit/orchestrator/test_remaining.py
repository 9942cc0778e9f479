"""Calls are written as (id, ids of those that led to it, start, end); names play no part here."""

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


FAN_OUT = (("a", "", 0, 10), ("b", "a", 10, 15), ("c", "a", 10, 30))


def test_waiting_for_a_slower_sibling_is_no_gap():
    assert figures(*FAN_OUT, ("d", "bc", 30, 40))["b"] == (15, 2, 0)


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

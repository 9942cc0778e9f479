"""Calls are written as (id, ids of those that led to it, start, end); names play no part here."""

import math

from kairos.core import CallGraph, remaining_work
from kairos.core.orchestrator.learnt_joins import Verdict
from kairos.core.orchestrator.spans import Span


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
        for call, left in remaining_work(graph(*rows, **fields)).items()
    }


def test_nothing_remains_of_no_calls():
    assert remaining_work(CallGraph()) == {}


FAN_OUT = (("a", "", 0, 10), ("b", "a", 10, 15), ("c", "a", 10, 30))


def test_waiting_for_a_slower_sibling_is_no_gap():
    assert figures(*FAN_OUT, ("d", "bc", 30, 40))["b"] == (15, 2, 0)


class AllJoin:
    """Takes each call for a join that may be a join."""

    def verdict(self, agent, caller):
        return Verdict(math.inf)


# d starts when b and c have ended, in one stage with them, since y goes on beside them.
NAMED = [("a", None, 0, 10), ("x", "a", 10, 12), ("y", "x", 13, 99)]
NAMED += [("b", "a", 14, 20), ("c", "a", 15, 30), ("d", "c", 31, 40)]


def by_name(rows, known=None):
    made = CallGraph(known=known)
    for call, upstream, begin, end in rows:
        made.add(Span(id=call, agent=call, upstream=upstream, started_at=begin, finished_at=end))
    return made


def test_a_call_counts_into_the_one_that_its_name_led_to_while_it_may_be_a_join():
    made = by_name(NAMED)

    assert made.nodes["d"].parents == ("c",)
    assert made.nodes["d"].ambiguous
    assert remaining_work(made)["c"].work_us == 15 + 9
    assert remaining_work(made)["b"].work_us == 6


def test_a_known_join_counts_into_all_that_it_joins():
    made = by_name(NAMED, AllJoin())

    assert set(made.nodes["d"].parents) == {"b", "c"}
    assert made.nodes["d"].caller == "a"
    assert not made.nodes["d"].ambiguous
    assert remaining_work(made)["c"].work_us == 15 + 9
    assert remaining_work(made)["b"].work_us == 6 + 9


class Partly(AllJoin):
    def verdict(self, agent, caller):
        return Verdict(math.inf, beside=frozenset("e"))


def test_what_is_no_part_of_a_known_join_does_not_lead_to_it_though_it_ended_before():
    rows = [("a", None, 0, 10), ("b", "a", 10, 20), ("c", "a", 11, 30), ("e", "a", 12, 18)]
    made = by_name([*rows, ("d", "c", 31, 40)], Partly())

    assert made.stages("a") == [["b", "c", "e", "d"]]
    assert {call: left.work_us for call, left in remaining_work(made).items()} == {
        "a": 10 + 19 + 9,
        "b": 10 + 9,
        "c": 19 + 9,
        "e": 6,
        "d": 9,
    }


def test_thousands_of_calls_that_join_one_fan_out_by_name_are_no_trouble():
    half = 2_000
    made = CallGraph(known=AllJoin())
    for k in range(half):
        made.add(Span(id=f"b{k}", agent="b", started_at=0, finished_at=10 + k))
        made.add(Span(id=f"c{k}", agent="c", upstream="b", started_at=half + 10, finished_at=9_999))

    found = remaining_work(made)
    assert {found[f"b{k}"].work_us for k in range(half)} == {
        10 + k + 9_999 - half - 10 for k in range(half)
    }

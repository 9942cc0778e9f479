"""The order of a flow's calls."""

from experiments.order_problems import best_effort, expanded, of_rows
from experiments.token_steps import token_steps
from kairos import flow
from kairos.workflows.compile.call_shapes import (
    COLUMN_TOKENS,
    PromptSegment,
    ScheduledCall,
    call_shapes,
    llm_needs,
)
from kairos.workflows.compile.order import cache_aware_order
from kairos.workflows.compile.passes.order import AS_DECLARED, nestings, of_sequences
from tests.unit.workflows.compile.test_tree import figure_four

KV = 1_000


def call(prompt, out=10, after=()):
    """`prompt`: names of segments of 100 tokens each."""
    return ScheduledCall(tuple(PromptSegment(each, 100) for each in prompt), out, after)


def operators(f):
    return f.compile(flow.Passes(cse=False)).declaration.operators


def test_e7_heliums_figure_4_is_ordered_one_two_three():
    shapes = call_shapes(operators(figure_four()))

    assert cache_aware_order(shapes.calls, KV) == ("one", "two", "three")
    ways = nestings(("one", "two", "three"), shapes.static)
    assert ways["nested"] == (("one",), ("two", "three"))


def test_e7_it_does_not_go_to_the_longest_prefix_that_is_ready_but_to_what_most_depends_on():
    # 2 and 3 begin alike, but 3 needs 1: 2-1-3 would have agent 2's prompt evicted between.
    calls = {"two": call("AQ"), "one": call("BQ"), "three": call("AQR", after=("one",))}

    assert cache_aware_order(calls, KV) == ("one", "two", "three")


def test_a_call_waits_for_the_delay_while_others_may_begin_and_where_none_may_is_forced():
    calls = {
        "a": call("A", out=50), "b": call("AB", after=("a",)), "c": call("C", out=20)
    }  # fmt: skip
    # b shares most with a, but may begin 50 token steps after it only.
    assert cache_aware_order(calls, KV) == ("a", "c", "b")
    alone = {name: calls[name] for name in ("a", "b")}
    assert cache_aware_order(alone, KV) == ("a", "b")


def test_operators_that_begin_alike_follow_each_other_wherever_they_were_declared():
    calls = {"a1": call("AX"), "b1": call("BX"), "a2": call("AY"), "b2": call("BY")}

    assert cache_aware_order(calls, KV) == ("a1", "a2", "b1", "b2")


def test_best_effort_takes_the_first_that_may_begin_and_an_impossible_order_is_carried_out():
    calls = {"a": call("A", out=50), "b": call("AB", after=("a",)), "c": call("C", out=20)}

    assert best_effort(("b", "a", "c"), calls, KV) == ("a", "c", "b")
    assert best_effort(("c", "b", "a"), calls, KV) == ("c", "a", "b")


def test_nestings_are_row_major_by_static_beginning_and_operator_major_each_once():
    ways = nestings(("a1", "a2", "b"), {"a1": "A", "a2": "A", "b": "B"})

    assert ways == {
        "row-major": (("a1", "a2", "b"),),
        "nested": (("a1", "a2"), ("b",)),
        "operator-major": (("a1",), ("a2",), ("b",)),
    }
    assert [*nestings(("a", "b"), {"a": 1, "b": 2})] == ["row-major", "nested"]
    assert [*nestings(("a",), {"a": 1})] == ["row-major"]
    assert expanded(ways["nested"], 2) == ("0/a1", "0/a2", "1/a1", "1/a2", "0/b", "1/b")


def test_rows_have_what_does_not_differ_between_them_in_common():
    calls = of_rows({"a": call("SX"), "b": call("SX", after=("a",))}, {"a": 1, "b": 1}, 2)

    assert [each.name for each in calls["1/a"].prompt] == ["S", "1/X"]
    assert calls["1/b"].after == ("1/a",)


def test_what_waits_for_others_between_is_a_sequence_of_its_own():
    order, static = ("a1", "b1", "b2", "a2"), {"a1": "A", "b1": "B", "b2": "B", "a2": "A"}

    ways = nestings(order, static)
    assert ways["nested"] == (("a1", "a2"), ("b1", "b2"))
    assert ways["in stretches"] == (("a1",), ("b1", "b2"), ("a2",))


def test_calls_of_a_flow_have_lengths_as_far_as_they_are_known_and_wait_for_whom_they_need():
    f = flow.Flow("f", max_tokens=30)
    row = f.input("row")
    a = f.llm("a", "{{ row.text }}", row=row, max_tokens=50)
    upper = f.format("upper", "{{ a }}.", a=a)
    loop = f.loop(
        "l", upper, lambda state, n: f.llm("inner", "{{ s }}{{ t }}", s=state, t=row["text"]),
        max_rounds=2,
    )  # fmt: skip
    f.output("z", f.llm("z", "four{{ u }}{{ l }}", u=upper, l=loop))

    shapes = call_shapes(operators(f))

    assert llm_needs(operators(f)) == {"a": (), "inner": ("a",), "z": ("a", "inner")}
    z = shapes.calls["z"]
    assert sum(each.tokens for each in z.prompt) == 1 + 50 + COLUMN_TOKENS
    assert (z.completion_tokens, shapes.calls["a"].completion_tokens) == (30, 50)
    assert [(each.tokens, at >= shapes.varies["z"]) for at, each in enumerate(z.prompt)] == [
        (0, False), (1, False), (50 + COLUMN_TOKENS, True)
    ]  # fmt: skip


def test_turns_are_by_sequence_and_place_and_what_has_none_goes_with_the_first():
    order = of_sequences("nested", (("one",), ("two", "three")))

    assert order.key("three", 7) == (0, 1, 7, 1)
    assert order.key("function", 7) == AS_DECLARED.key("three", 7) == (0, 0, 7, 0)


def test_many_calls_that_begin_alike_follow_each_other_too():
    calls = {f"c{n}": call("A" if n % 2 else "B") for n in range(1_000)}

    order = cache_aware_order(calls, KV)
    assert order == tuple(f"c{n}" for n in (*range(0, 1_000, 2), *range(1, 1_000, 2)))


def test_e7_88_operators_are_ordered_each_after_what_it_needs():
    from experiments.flow_workloads import trading

    f = trading().flow
    shapes = call_shapes(operators(f))
    order = cache_aware_order(shapes.calls, KV)

    assert len(order) == 88
    assert sorted(order) == sorted(shapes.calls)
    assert token_steps([order], shapes.calls, [KV]) > 0  # it does not contradict what is needed

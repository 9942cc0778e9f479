"""Invariant 5 of the design: orders are permutations that respect what calls need."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.helium_order import helium_order
from experiments.order_optimum import least_steps
from experiments.order_problems import KV_TOKENS, best_effort, drawn_tree, expanded, of_rows
from experiments.token_steps import token_steps
from kairos.workflows.compile.call_shapes import PromptSegment, ScheduledCall
from kairos.workflows.compile.order import cache_aware_order
from kairos.workflows.compile.passes.order import nestings

KV = st.sampled_from([10, 1_000, 100_000])


@st.composite
def problems(draw):
    calls = {}
    for at in range(draw(st.integers(1, 10))):
        texts = draw(st.lists(st.sampled_from("ABC"), min_size=1, max_size=4))
        sizes = draw(st.lists(st.integers(0, 300), min_size=3, max_size=3))
        prompt = tuple(PromptSegment(each, sizes["ABC".index(each)]) for each in texts)
        after = draw(st.sets(st.integers(0, at - 1), max_size=3)) if at else set()
        needed = tuple(f"c{n}" for n in sorted(after))
        calls[f"c{at}"] = ScheduledCall(prompt, draw(st.integers(1, 200)), needed)
    return calls


@given(problems(), KV)
def test_orders_are_permutations_that_respect_what_calls_need(calls, kv_tokens):
    order = cache_aware_order(calls, kv_tokens)

    assert sorted(order) == sorted(calls)
    token_steps([order], calls, [kv_tokens])  # breaks where the order contradicts
    assert cache_aware_order(calls, kv_tokens) == order


@given(problems(), KV, st.integers(1, 3), st.randoms())
def test_whatever_is_asked_for_is_carried_out_with_each_call_once_after_what_it_needs(
    calls, kv_tokens, rows, drawn
):
    varies = {name: drawn.randint(0, len(each.prompt)) for name, each in calls.items()}
    static = {name: each.prompt[: varies[name]] for name, each in calls.items()}
    of_all = of_rows(calls, varies, rows)
    order = [*calls]
    drawn.shuffle(order)
    for sequences in nestings(order, static).values():
        asked = expanded(sequences, rows)
        assert sorted(asked) == sorted(of_all)
        carried_out = best_effort(asked, of_all, kv_tokens)
        assert sorted(carried_out) == sorted(of_all)
        token_steps([carried_out], of_all, [kv_tokens])


ANSWERS = st.sampled_from([(20,), (5, 20, 60), (1, 300), (100, 101), (3, 30, 300)])


@given(st.integers(0, 10**9), st.integers(1, 7), ANSWERS, st.booleans(), KV)
def test_no_order_of_a_few_calls_takes_less(seed, count, answers, needs, kv_tokens):
    calls = drawn_tree(Random(seed), count, answers, needs=needs)
    planned = token_steps([cache_aware_order(calls, kv_tokens)], calls, [kv_tokens])

    assert planned == pytest.approx(least_steps(calls, kv_tokens, planned))


@given(problems(), KV)
def test_nor_of_prompts_that_say_the_same_again(calls, kv_tokens):
    few = {name: calls[name] for name in [*calls][:6]}
    planned = token_steps([cache_aware_order(few, kv_tokens)], few, [kv_tokens])

    assert planned == pytest.approx(least_steps(few, kv_tokens, planned))


@given(st.integers(0, 10**9), st.integers(2, 60), ANSWERS)
def test_without_needs_each_node_is_computed_once_by_the_least_answer_below_it(
    seed, count, answers
):
    """Any number of calls: nothing takes less than that."""
    calls = drawn_tree(Random(seed), count, answers, needs=False)
    below: dict[tuple[PromptSegment, ...], list[int]] = {}
    for call in calls.values():
        for depth in range(1, len(call.prompt) + 1):
            below.setdefault(call.prompt[:depth], []).append(call.completion_tokens)
    least = sum(path[-1].tokens * min(of) for path, of in below.items())
    least += sum(c.completion_tokens * (c.completion_tokens + 1) / 2 for c in calls.values())

    planned = token_steps([cache_aware_order(calls, KV_TOKENS)], calls, [KV_TOKENS])
    assert planned * KV_TOKENS == pytest.approx(least)


@pytest.mark.parametrize("count", [200, 450])
def test_many_calls_take_no_longer_than_by_the_published_algorithm(count):
    ratios = []
    for seed in range(3):
        calls = drawn_tree(Random(seed), count, (5, 20, 60), needs=True)
        orders = cache_aware_order(calls, KV_TOKENS), helium_order(calls, KV_TOKENS)
        ours, theirs = (token_steps([each], calls, [KV_TOKENS]) for each in orders)
        ratios.append(ours / theirs)
    assert max(ratios) < 1

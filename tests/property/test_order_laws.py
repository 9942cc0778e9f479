"""Invariant 5 of the design: orders are permutations that respect what calls need."""

from hypothesis import given
from hypothesis import strategies as st

from kairos.plan.costs.token_steps import PromptSegment, ScheduledCall, token_steps
from kairos.plan.nesting import expanded, nestings, of_rows
from kairos.plan.order import best_effort, cache_aware_order

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

import math

from hypothesis import given
from hypothesis import strategies as st

from kairos.core.dispatcher.prompts_under_way import PromptsUnderWay

NAMES = st.sampled_from("abcde")
FACTS = st.lists(
    st.tuples(st.just("begin"), NAMES, st.integers(0, 9), st.integers(0, 4))
    | st.tuples(st.sampled_from(["end", "hide", "pass"]), NAMES, st.just(0), st.integers(0, 3)),
    max_size=200,
)


@given(FACTS)
def test_what_is_computed_is_told_as_by_a_look_at_each_prompt(facts):
    prompts, known, at = PromptsUnderWay(), {}, 0
    for kind, name, tokens, us in facts:
        if kind == "begin" and name not in known:
            known[name] = tokens, at + us
            prompts.add_prompt("i", name, *known[name])
        elif kind == "end":
            known.pop(name, None)
            prompts.remove_prompt("i", name)
        elif kind == "hide" and name in known:
            known[name] = 0, known[name][1]
            assert prompts.hide_prompt("i", name) == known[name][1]
        elif kind == "pass":
            at += us
            now = [each for each in known.values() if each[1] > at]
            until = min((until for _, until in now), default=math.inf)
            assert prompts.computing("i", at) == (sum(tokens for tokens, _ in now), until)
        assert prompts.tokens("i") == sum(tokens for tokens, _ in known.values())
        assert {*prompts.requests("i")} == {*known}


def test_prompts_that_begin_and_end_leave_nothing_behind():
    prompts = PromptsUnderWay()
    for number in range(10_000):
        prompts.add_prompt("i", str(number), 1, until=1_000_000 + number)
        prompts.remove_prompt("i", str(number))

    there = prompts._prompts["i"]
    assert not there.by_id
    assert not there.now
    assert len(there.ends) < 100
    assert prompts.computing("i", at=0) == (0, math.inf)


def test_of_an_instance_that_is_forgotten_nothing_is_known():
    prompts = PromptsUnderWay()
    prompts.add_prompt("i", "a", 5, until=9)
    prompts.forget_instance("i")

    assert prompts.computing("i", at=0) == (0, math.inf)
    assert prompts.tokens("i") == 0
    assert not prompts.requests("i")
    prompts.remove_prompt("i", "a")

"""Cases small enough to be worked out by hand. Where nothing else is said, a step takes 10 µs and a
block has four tokens."""

import msgspec
import pytest

from kairos.core import EngineProfile, InvalidRequest, SetupError, StepCost
from kairos.simulate.engine.engine import ModelledEngine
from kairos.simulate.engine.sequence import EngineCall, EngineStats
from kairos.simulate.workload.prompt import PromptPiece


def make(cost=None, **changes):
    settings = {"kv_tokens": 400, "block_size": 4, "max_model_len": 400} | changes
    cost = cost or StepCost(fixed_us=10)
    return ModelledEngine(
        EngineProfile(name="test", source="", measured=False, step=cost, **settings)
    )


def call(name, prompt, completion, priority=0):
    """`prompt`: its tokens, which no other call has, or its pieces as (name, tokens)."""
    pieces = [(name, prompt)] if isinstance(prompt, int) else prompt
    return EngineCall(
        id=name,
        prompt=tuple(PromptPiece(*piece) for piece in pieces),
        completion_tokens=completion,
        priority=priority,
    )


def add(engine, at, *calls):
    for each in calls:
        engine.add(each, at)


def seen(engine):
    """All that is seen until nothing is left to see: when, what, of which call."""
    found = []
    while (at := engine.next_at()) is not None:
        found += engine.advance(at)
    return found


def brief(progress):
    return [(each.call_id, each.what, each.at) for each in progress]


def ends(engine):
    return {each.call_id: each.at for each in seen(engine) if each.what == "finished"}


def firsts(engine):
    return {each.call_id: each.at for each in seen(engine) if each.what == "first_token"}


class TestTime:
    def test_a_call_alone_gets_a_token_at_the_end_of_each_step(self):
        engine = make()
        add(engine, 5, call("a", 6, 3))

        assert brief(seen(engine)) == [("a", "first_token", 15), ("a", "finished", 35)]
        assert engine.stats == EngineStats(
            steps=3, prefill_tokens=6, decode_tokens=2, queried_tokens=6
        )

    def test_an_answer_of_one_token_is_first_and_last_at_once(self):
        engine = make()
        add(engine, 0, call("a", 6, 1))

        assert brief(seen(engine)) == [("a", "first_token", 10), ("a", "finished", 10)]


class TestAdmission:
    def test_no_more_run_than_the_budget_has_tokens(self):
        engine = make(max_num_batched_tokens=2)
        add(engine, 0, call("a", 1, 3), call("b", 1, 3))
        add(engine, 5, call("c", 1, 2))

        # a and b take all of it until they end.
        assert brief(seen(engine))[2:] == [
            ("a", "finished", 30),
            ("b", "finished", 30),
            ("c", "first_token", 40),
            ("c", "finished", 50),
        ]

    @pytest.mark.parametrize(
        ("profile", "prompt", "completion"),
        [({"kv_tokens": 43}, 30, 11), ({"max_model_len": 40}, 30, 11), ({}, 0, 1), ({}, 4, 0)],
    )
    def test_a_call_that_can_never_be_served_is_refused_with_the_numbers(
        self, profile, prompt, completion
    ):
        engine = make(**profile)
        with pytest.raises(InvalidRequest, match=f"{prompt} prompt.* {completion} completion"):
            add(engine, 0, call("a", prompt, completion))

        assert engine.next_at() is None


class TestPreemption:
    """Four blocks for two calls that need three each in the end.

    Both have computed 8 tokens at 50, and want a third block; each has 5 tokens of its answer then.
    """

    def two(self, *, priorities=(0, 0), **changes):
        engine = make(kv_tokens=16, max_model_len=16, **changes)
        add(engine, 0, call("a", 4, 9, priorities[0]), call("b", 4, 9, priorities[1]))
        return engine

    def test_by_priority_who_had_its_token_in_this_step_gives_it_back(self):
        cost = StepCost(fixed_us=10, decode_seq_us=1)
        engine = make(cost, kv_tokens=16, max_model_len=16, scheduling="priority")
        add(engine, 0, call("a", 3, 10, 1), call("b", 4, 9, 0))

        # At 58 a computes its 8th token, for which it has a block, until b wants one for its 9th.
        # When b has ended, a finds its first block; of its 4 other tokens it had had 3.
        found = seen(engine)
        b_ends = 10 + 4 * (10 + 2) + 4 * (10 + 1)
        assert brief(found)[2:] == [
            ("b", "finished", b_ends),
            ("a", "finished", b_ends + 10 + 4 * (10 + 1)),
        ]
        assert (found[-1].preemptions, found[-1].recomputed_tokens) == (1, 3)

    def starving(self):
        """Six blocks. At 50, x and y have two each, and a wants a third one besides its two: it
        makes way itself, and y, which comes after it, gets nothing in that step."""
        engine = make(kv_tokens=24, max_model_len=24, scheduling="priority")
        add(engine, 0, call("x", 1, 8, 0), call("a", 4, 9, 2))
        add(engine, 5, call("y", 2, 8, 1))
        return engine

    def test_where_one_made_way_itself_those_after_it_wait_for_a_step(self):
        found = seen(self.starving())

        # y has one token less than it had steps; a goes on when x is gone.
        assert brief(found)[3:] == [
            ("x", "finished", 80),
            ("y", "finished", 100),
            ("a", "finished", 120),
        ]
        assert found[-1].recomputed_tokens == 0

    def test_who_waits_for_a_step_can_be_aborted_in_it(self):
        engine = self.starving()
        engine.abort("y", 55)

        assert [each.call_id for each in seen(engine)] == ["x", "a", "y", "x", "a"]

    def test_what_was_given_back_of_the_budget_goes_to_those_behind(self):
        engine = make(
            kv_tokens=32, max_model_len=32, max_num_batched_tokens=4, scheduling="priority"
        )
        add(engine, 0, call("a", 3, 20, 1))
        add(engine, 5, call("b", 4, 20, 0))
        add(engine, 15, call("p", 13, 3, 0))

        # p gets 2 tokens a step beside a and b, and has 10 at 70. Then b wants the ninth block; a
        # has had its token already, and gives it back: p gets the 3 that it lacks.
        assert firsts(engine) == {"a": 10, "b": 30, "p": 80}


class TestPrefixCache:
    def cached(self, engine, *calls):
        """What each finds, where one comes after the other."""
        found = {}
        for number, each in enumerate(calls):
            add(engine, 1000 * (number + 1), each)
            found |= {last.call_id: last.cached_tokens for last in seen(engine)}
        return found

    def test_the_same_tokens_later_in_another_prompt_are_not_the_same(self):
        calls = call("a", [("system", 8)], 1), call("b", [("x", 4), ("system", 8)], 1)

        assert self.cached(make(), *calls) == {"a": 0, "b": 0}

    def test_an_answer_is_in_nobody_elses_prompt(self):
        calls = call("a", [("x", 8)], 9), call("b", [("x", 8), ("a", 8), ("y", 1)], 1)

        assert self.cached(make(), *calls) == {"a": 0, "b": 8}

    def test_an_answer_is_found_by_a_prompt_that_goes_on_with_it_where_it_is_known(self):
        asked, answered = [("a", 6)], [("a", 6), ("answer", 7)]
        more = [*answered, ("more", 3)]
        calls = call("a", asked, 7), call("b", more, 1)
        assert self.cached(make(), *calls) == {"a": 0, "b": 4}

        # Its 13th token was never computed, so 12 are there.
        known = [
            msgspec.structs.replace(each, whole=tuple(PromptPiece(*p) for p in whole))
            for each, whole in zip(calls, (answered, [*more, ("b", 1)]), strict=True)
        ]
        assert self.cached(make(), *known) == {"a": 0, "b": 12}


class TestAbort:
    def test_what_is_on_its_way_never_arrives(self):
        engine = make(call_us=5)
        add(engine, 0, call("a", 4, 1))
        engine.abort("a", 4)

        assert seen(engine) == []
        assert engine.stats == EngineStats()

    def test_what_runs_keeps_its_blocks_until_the_step_ends_and_is_not_seen_any_more(self):
        engine = make(max_num_seqs=1)
        add(engine, 0, call("a", 7, 2), call("b", 4, 1))
        engine.abort("a", 15)  # in the step that would have been its last
        engine.advance(19)
        assert (engine.running, engine.used_blocks) == (1, 2)

        found = seen(engine)
        assert brief(found) == [("b", "first_token", 30), ("b", "finished", 30)]
        assert engine.stats.aborted_tokens == 2

    def test_at_the_instant_of_its_last_token_it_has_ended(self):
        engine = make()
        add(engine, 0, call("a", 7, 2))
        engine.abort("a", 20)

        assert ends(engine) == {"a": 20}
        assert engine.stats.aborted_tokens == 0

    def test_between_two_steps_it_takes_effect_at_once(self):
        engine = make(max_num_seqs=1)
        add(engine, 0, call("a", 7, 9), call("b", 4, 1))
        engine.abort("a", 20)

        assert firsts(engine) == {"a": 10, "b": 30}
        assert engine.stats.aborted_tokens == 2

    def test_its_blocks_can_still_be_found(self):
        engine = make()
        add(engine, 0, call("a", [("x", 9)], 9))
        engine.abort("a", 15)
        add(engine, 30, call("b", [("x", 9)], 1))

        assert seen(engine)[-1].cached_tokens == 8


class TestProfile:
    def test_an_engine_needs_a_block(self):
        with pytest.raises(SetupError, match="3 KV tokens"):
            make(kv_tokens=3)

    @pytest.mark.parametrize("factor", [0, -1, float("inf"), float("nan")])
    def test_an_engine_slows_down_by_a_number_above_zero(self, factor):
        with pytest.raises(SetupError, match="step"):
            make().slow_down(factor, 0)


class TestHeldBeginnings:
    BEGINNING = (PromptPiece("role", 8),)

    def test_a_beginning_that_is_held_is_found_by_the_first_call(self):
        engine = make()
        engine.hold_prompt(self.BEGINNING)
        engine.hold_prompt(self.BEGINNING)  # no more for it
        assert engine.used_blocks == 2
        add(engine, 0, call("a", [("role", 8), ("a", 8)], 1))

        assert [each.cached_tokens for each in seen(engine) if each.what == "finished"] == [8]

    def test_it_is_there_after_prompts_that_fill_the_memory_and_nothing_else_is(self):
        engine = make(kv_tokens=40)
        engine.hold_prompt(self.BEGINNING)
        add(engine, 0, call("a", [("role", 8), ("a", 8)], 1))
        seen(engine)
        add(engine, 1_000, call("b", 28, 4))
        seen(engine)
        add(engine, 2_000, call("c", [("role", 8), ("a", 8), ("c", 4)], 1))

        assert [each.cached_tokens for each in seen(engine) if each.what == "finished"] == [8]

    def test_no_more_is_held_than_there_is_room_for(self):
        engine = make(kv_tokens=16)
        with pytest.raises(SetupError, match="5 blocks are to be held, and 4 are free"):
            engine.hold_prompt((PromptPiece("long", 20),))

    def test_without_a_prefix_cache_nothing_is_held(self):
        engine = make(prefix_caching=False)
        engine.hold_prompt(self.BEGINNING)
        assert engine.used_blocks == 0

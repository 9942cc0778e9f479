"""Cases small enough to be worked out by hand. Where nothing else is said, a step takes 10 µs and a
block has four tokens."""

import msgspec
import pytest

from kairos.engine_profile import EngineProfile, StepCost
from kairos.errors import InvalidRequest, SetupError
from kairos.sim.engine.engine import ModelledEngine
from kairos.sim.engine.engine_calls import EngineCall, EngineStats
from kairos.workload.prompt import PromptPiece


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

    def test_a_step_costs_what_the_profile_says(self):
        engine = make(
            StepCost(
                fixed_us=10,
                weights_us=3,
                prefill_token_us=1,
                prefill_seq_us=100,
                decode_seq_us=2,
                kv_token_us=0.25,
                attention_us=0.5,
            )
        )
        add(engine, 0, call("a", 5, 3))

        # The prompt: 10 + max(3, 5 x 1) + 100 + (1 + 2 + 3 + 4 + 5) x 0.5 = 122.5, seen at 123.
        # Then 10 + max(3, 2) + 6 x 0.25 = 14.5, and 10 + 3 + 7 x 0.25 = 14.75: 151.75.
        assert brief(seen(engine)) == [("a", "first_token", 123), ("a", "finished", 152)]

    def test_prompts_and_decodes_of_one_step_share_the_time_of_the_weights(self):
        cost = StepCost(weights_us=10, prefill_token_us=1, decode_seq_us=2)
        engine = make(cost)
        add(engine, 0, call("a", 4, 3), call("b", 4, 3))
        add(engine, 1, call("c", 8, 3))

        # 10, which hides 8 tokens; 2 x 2 + 8 x 1 = 12; and 10 twice, which hide 3 x 2 and 1 x 2.
        assert brief(seen(engine)) == [
            ("a", "first_token", 10),
            ("b", "first_token", 10),
            ("c", "first_token", 22),
            ("a", "finished", 32),
            ("b", "finished", 32),
            ("c", "finished", 42),
        ]

    def test_many_steps_at_once_take_exactly_what_they_take_one_by_one(self):
        engine = make(
            StepCost(fixed_us=1.000_001, decode_seq_us=0.3, kv_token_us=0.017_003),
            kv_tokens=100_000,
            max_model_len=100_000,
        )
        add(engine, 0, call("a", 7, 40_001))
        ps = 1_000_001 + sum(1_000_001 + 300_000 + 17_003 * (8 + n) for n in range(40_000))

        assert ends(engine) == {"a": -(-ps // 1_000_000)}

    def test_a_call_reaches_the_queue_after_the_time_that_calls_take_to_it(self):
        engine = make(call_us=2.5)
        add(engine, 0, call("a", 4, 1))

        assert engine.waiting == 1
        assert brief(seen(engine)) == [("a", "first_token", 13), ("a", "finished", 13)]

    def test_what_arrives_during_a_step_runs_in_the_next_one(self):
        engine = make(call_us=3)
        add(engine, 0, call("a", 4, 3))
        add(engine, 10, call("b", 4, 1))  # at 13 µs, when a's first step ends
        add(engine, 11, call("c", 4, 1))  # at 14 µs, when its second has begun

        assert firsts(engine) == {"a": 13, "b": 23, "c": 33}

    def test_what_arrives_between_two_steps_of_many_is_in_the_second(self):
        engine = make(call_us=5)
        add(engine, 0, call("a", 4, 9))
        add(engine, 20, call("b", 4, 1))  # at 25, when a's second step ends

        assert firsts(engine) == {"a": 15, "b": 35}

    def test_what_is_on_its_way_is_in_the_next_step_although_others_ended_meanwhile(self):
        engine = make(call_us=25)
        add(engine, 0, call("a", 4, 9))
        add(engine, 21, call("b", 4, 1))  # at 46; a's first step is from 25 to 35

        assert firsts(engine) == {"a": 35, "b": 65}

    def test_what_arrives_at_the_same_instant_shares_a_step_although_the_engine_was_asked(self):
        engine = make()
        add(engine, 0, call("a", 4, 2))
        assert engine.next_at() == 1  # more may be told of the instant 0
        assert engine.advance(0) == []
        add(engine, 0, call("b", 4, 2))

        assert ends(engine) == {"a": 20, "b": 20}

    def test_a_call_that_arrives_as_a_step_ends_is_in_the_next_one_although_more_were_planned(self):
        engine = make()
        add(engine, 0, call("a", 4, 9))
        assert brief(engine.advance(30)) == [("a", "first_token", 10)]
        add(engine, 30, call("b", 4, 1))

        assert firsts(engine) == {"b": 40}

    def test_a_slow_engine_finishes_its_step_first_and_factors_do_not_add_up(self):
        engine = make()
        add(engine, 0, call("a", 4, 4))
        engine.slow_down(3, 15)
        engine.slow_down(2, 25)  # during a step of 30 µs, from 20 µs on

        assert ends(engine) == {"a": 10 + 10 + 30 + 20}

    def test_an_engine_with_nothing_to_do_will_not_be_seen_doing_it(self):
        engine = make()
        assert engine.next_at() is None
        add(engine, 7, call("a", 4, 1))
        seen(engine)

        assert engine.next_at() is None
        assert (engine.running, engine.waiting, engine.used_blocks) == (0, 0, 0)


class TestAdmission:
    def test_no_more_than_max_num_seqs_run(self):
        engine = make(max_num_seqs=2)
        add(engine, 0, call("a", 4, 2), call("b", 4, 3), call("c", 4, 1))
        engine.advance(1)
        assert (engine.running, engine.waiting) == (2, 1)

        assert firsts(engine) == {"a": 10, "b": 10, "c": 30}

    def test_prompts_share_the_budget_of_a_step_in_order(self):
        engine = make(max_num_batched_tokens=6)
        add(engine, 0, call("a", 4, 2), call("b", 4, 1), call("c", 4, 1))

        # 4 + 2, then 1 + 2 + 3, then the last one of c.
        assert firsts(engine) == {"a": 10, "b": 20, "c": 30}

    def test_a_long_prompt_is_computed_beside_what_decodes(self):
        engine = make(StepCost(prefill_token_us=1, decode_seq_us=10), max_num_batched_tokens=5)
        add(engine, 0, call("a", 5, 5), call("b", 13, 1))

        # a: 5. Then 10 + 4, three times; the last token of b comes with the last one of a: 11.
        assert brief(seen(engine)) == [
            ("a", "first_token", 5),
            ("a", "finished", 5 + 3 * 14 + 11),
            ("b", "first_token", 5 + 3 * 14 + 11),
            ("b", "finished", 5 + 3 * 14 + 11),
        ]
        assert (engine.stats.prefill_tokens, engine.stats.decode_tokens) == (18, 4)

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

    def test_a_prompt_must_fit_whole_although_its_first_part_would(self):
        engine = make(kv_tokens=16, max_num_batched_tokens=8)
        add(engine, 0, call("a", 7, 3), call("b", 12, 1))
        engine.advance(11)
        assert (engine.running, engine.waiting, engine.used_blocks) == (1, 1, 2)

        # a ends at 30; then 8 and 4 tokens of b.
        assert firsts(engine) == {"b": 50}

    def test_who_has_no_room_holds_back_those_behind(self):
        engine = make(kv_tokens=16)
        add(engine, 0, call("a", 7, 3), call("b", 12, 1), call("c", 1, 1))

        assert firsts(engine) == {"a": 10, "b": 40, "c": 40}

    def test_by_priority_the_lower_number_goes_first_then_the_older(self):
        engine = make(max_num_seqs=1, scheduling="priority")
        add(engine, 0, call("a", 4, 1, 5), call("b", 4, 1, 5), call("c", 4, 1, -1))
        add(engine, 15, call("d", 4, 1, 0))

        assert firsts(engine) == {"c": 10, "a": 20, "d": 30, "b": 40}

    def test_an_fcfs_engine_takes_no_notice_of_priority(self):
        engine = make(max_num_seqs=1)
        add(engine, 0, call("a", 4, 1, 5), call("b", 4, 1, -5))

        assert firsts(engine) == {"a": 10, "b": 20}

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

    def test_a_call_that_just_fits_is_served(self):
        engine = make(kv_tokens=43, max_model_len=40)
        add(engine, 0, call("a", 30, 10))

        assert ends(engine) == {"a": 100}


class TestPreemption:
    """Four blocks for two calls that need three each in the end.

    Both have computed 8 tokens at 50, and want a third block; each has 5 tokens of its answer then.
    """

    def two(self, *, priorities=(0, 0), **changes):
        engine = make(kv_tokens=16, max_model_len=16, **changes)
        add(engine, 0, call("a", 4, 9, priorities[0]), call("b", 4, 9, priorities[1]))
        return engine

    def test_the_newest_makes_room_and_computes_again_what_it_does_not_find(self):
        engine = self.two()
        found = seen(engine)

        # b's first block is still there: of its 9 tokens, 5 are computed, and 4 of them again.
        assert brief(found)[2:] == [("a", "finished", 90), ("b", "finished", 130)]
        assert (found[-1].preemptions, found[-1].recomputed_tokens) == (1, 4)
        assert (found[-2].preemptions, found[-2].recomputed_tokens) == (0, 0)
        assert engine.stats == EngineStats(
            steps=13,
            prefill_tokens=4 + 4 + 5,
            decode_tokens=8 + 4 + 3,
            queried_tokens=8,
            cached_tokens=0,  # at first admissions
            preemptions=1,
            recomputed_tokens=4,
        )

    def test_without_a_prefix_cache_all_is_computed_again(self):
        engine = self.two(prefix_caching=False)
        found = seen(engine)

        assert found[-1].recomputed_tokens == 8
        assert engine.stats.queried_tokens == 0

    def test_nothing_is_admitted_in_a_step_that_preempts(self):
        engine = self.two()
        add(engine, 45, call("c", 1, 1))

        engine.advance(51)
        assert (engine.running, engine.waiting, engine.used_blocks) == (1, 2, 3)

    def test_who_was_preempted_comes_before_those_who_never_ran(self):
        engine = self.two()
        add(engine, 45, call("c", 13, 1))  # at 60 there is room for neither
        found = brief(seen(engine))

        assert found[2:] == [
            ("a", "finished", 90),
            ("b", "finished", 130),
            ("c", "first_token", 140),
            ("c", "finished", 140),
        ]

    def test_by_priority_the_least_important_makes_room_though_it_is_older(self):
        engine = self.two(priorities=(1, 0), scheduling="priority")

        # a's turn comes first, so it makes way itself, and nothing is left of that step but b.
        found = seen(engine)
        assert brief(found)[2:] == [("b", "finished", 90), ("a", "finished", 130)]
        assert found[-1].preemptions == 1

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

    def test_among_equals_the_newest_makes_room(self):
        engine = self.two(scheduling="priority")

        assert seen(engine)[-1].call_id == "b"

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

    def test_a_prompt_under_way_makes_room_too(self):
        engine = make(kv_tokens=16, max_model_len=16, max_num_batched_tokens=5)
        add(engine, 0, call("a", 4, 6), call("b", 12, 1))

        # b has computed 1 + 4 tokens when it wants its third block, and a has two. When a has
        # ended, b finds its first block, and has 5 + 3 tokens to compute: one of them again.
        found = seen(engine)
        assert brief(found)[1:] == [
            ("a", "finished", 60),
            ("b", "first_token", 80),
            ("b", "finished", 80),
        ]
        assert (found[-1].preemptions, found[-1].recomputed_tokens) == (1, 1)


class TestBegun:
    def test_a_prompt_is_begun_once_however_often_it_is_computed(self):
        cost = StepCost(fixed_us=10, prefill_seq_us=100)
        engine = make(cost, kv_tokens=16, max_model_len=16, max_num_batched_tokens=3)
        add(engine, 0, call("a", 4, 9), call("b", 4, 9))
        found = seen(engine)

        assert engine.stats.preemptions == 1
        assert found[-1].at == 10 * engine.stats.steps + 2 * 100


class TestPrefixCache:
    def cached(self, engine, *calls):
        """What each finds, where one comes after the other."""
        found = {}
        for number, each in enumerate(calls):
            add(engine, 1000 * (number + 1), each)
            found |= {last.call_id: last.cached_tokens for last in seen(engine)}
        return found

    def test_full_blocks_of_a_common_beginning_are_not_computed_again(self):
        engine = make(StepCost(prefill_token_us=1, decode_seq_us=1))
        add(engine, 0, call("a", [("system", 10), ("a", 5)], 1))
        add(engine, 100, call("b", [("system", 10), ("b", 5)], 1))
        found = seen(engine)

        assert [(each.at, each.cached_tokens) for each in found[::2]] == [(15, 0), (107, 8)]
        assert engine.stats.cached_tokens == 8
        assert engine.stats.queried_tokens == 30

    def test_the_same_tokens_later_in_another_prompt_are_not_the_same(self):
        calls = call("a", [("system", 8)], 1), call("b", [("x", 4), ("system", 8)], 1)

        assert self.cached(make(), *calls) == {"a": 0, "b": 0}

    def test_a_longer_prompt_finds_what_a_shorter_one_left(self):
        calls = (
            call("a", [("chat", 9)], 1),
            call("b", [("chat", 21)], 1),
            call("c", [("chat", 21), ("more", 9)], 1),
        )

        assert self.cached(make(), *calls) == {"a": 0, "b": 8, "c": 20}

    def test_of_a_prompt_that_is_all_there_the_last_block_is_computed_again(self):
        calls = call("a", [("x", 8)], 1), call("b", [("x", 8)], 1), call("c", [("x", 9)], 1)

        assert self.cached(make(), *calls) == {"a": 0, "b": 4, "c": 8}

    def test_an_answer_is_in_nobody_elses_prompt(self):
        calls = call("a", [("x", 8)], 9), call("b", [("x", 8), ("a", 8), ("y", 1)], 1)

        assert self.cached(make(), *calls) == {"a": 0, "b": 8}

    def test_calls_of_one_step_share_what_the_first_of_them_will_have_computed(self):
        engine = make(StepCost(prefill_token_us=1, decode_seq_us=1))
        add(engine, 0, call("a", [("x", 8), ("a", 1)], 1), call("b", [("x", 8), ("b", 1)], 1))

        assert [(each.at, each.cached_tokens) for each in seen(engine)[::2]] == [(10, 0), (10, 8)]

    def test_a_shared_block_is_there_once(self):
        engine = make()
        add(engine, 0, call("a", [("x", 8), ("a", 1)], 5), call("b", [("x", 8), ("b", 1)], 9))
        engine.advance(1)
        assert engine.used_blocks == 4

        engine.advance(51)  # a has ended
        assert engine.used_blocks == 4 - 1 + 1  # and b has grown

    def test_the_longest_unused_is_forgotten_first_and_of_it_the_end(self):
        engine = make(kv_tokens=24, max_model_len=24)
        calls = (
            call("a", [("a", 9)], 1),  # leaves 2 blocks
            call("b", [("b", 9)], 1),  # 2 blocks
            call("a again", [("a", 9)], 1),  # uses its blocks: b's are the older ones now
            call("c", [("c", 13)], 1),  # takes the 2 that are blank, and 2 of b
            call("a once more", [("a", 9)], 1),
            call("b again", [("b", 9)], 1),
        )

        assert self.cached(engine, *calls) == {
            "a": 0,
            "b": 0,
            "a again": 8,
            "c": 0,
            "a once more": 8,
            "b again": 0,
        }

    def test_of_a_forgotten_prompt_the_beginning_stays_longest(self):
        engine = make(kv_tokens=24, max_model_len=24)
        calls = (
            call("a", [("a", 17)], 1),  # leaves 4 blocks, and 2 are blank
            call("b", [("b", 16)], 1),  # takes 2 of them
            call("a again", [("a", 17)], 1),
        )

        assert self.cached(engine, *calls) == {"a": 0, "b": 0, "a again": 8}

    def test_what_is_found_but_in_nobodys_use_needs_room_as_well(self):
        engine = make(kv_tokens=24, max_model_len=24)
        add(engine, 0, call("a", [("x", 8), ("a", 1)], 1))
        seen(engine)
        add(engine, 100, call("b", 12, 9))
        add(engine, 105, call("c", [("x", 8), ("c", 9)], 1))
        # b has 3 blocks and gets 4; c finds 2, which are free, and needs 3 more.
        engine.advance(111)
        assert (engine.running, engine.waiting) == (1, 1)

        found = seen(engine)
        assert [each.at for each in found if each.call_id == "c"] == [200, 200]

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

    def test_of_two_that_are_answered_alike_at_once_one_answer_is_found(self):
        whole = (PromptPiece("a", 8), PromptPiece("answer", 9))
        engine = make()
        for name in "ab":
            add(engine, 0, msgspec.structs.replace(call(name, [("a", 8)], 9), whole=whole))
        assert len(seen(engine)) == 4
        later = (*whole, PromptPiece("more", 3))
        again = call("c", [*later], 1)
        again = msgspec.structs.replace(again, whole=(*later, PromptPiece("c", 1)))
        assert self.cached(engine, again) == {"c": 16}
        assert engine.used_blocks == 0

    def test_without_it_nothing_is_found(self):
        engine = make(prefix_caching=False)
        calls = call("a", [("x", 9)], 1), call("b", [("x", 9)], 1)

        assert self.cached(engine, *calls) == {"a": 0, "b": 0}
        assert engine.stats.queried_tokens == 0


class TestAbort:
    def test_what_is_on_its_way_never_arrives(self):
        engine = make(call_us=5)
        add(engine, 0, call("a", 4, 1))
        engine.abort("a", 4)

        assert seen(engine) == []
        assert engine.stats == EngineStats()

    def test_what_waits_makes_way_for_those_behind(self):
        engine = make(kv_tokens=16)
        add(engine, 0, call("a", 7, 5), call("b", 12, 1), call("c", 1, 1))
        engine.abort("b", 12)

        assert firsts(engine) == {"a": 10, "c": 30}
        assert engine.stats.aborted_tokens == 0

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

    def test_a_prompt_can_be_aborted_before_all_of_it_is_computed(self):
        engine = make(max_num_batched_tokens=4)
        add(engine, 0, call("a", 12, 1), call("b", 4, 1))
        engine.abort("a", 15)

        assert firsts(engine) == {"b": 30}
        assert engine.used_blocks == 0

    def test_its_blocks_can_still_be_found(self):
        engine = make()
        add(engine, 0, call("a", [("x", 9)], 9))
        engine.abort("a", 15)
        add(engine, 30, call("b", [("x", 9)], 1))

        assert seen(engine)[-1].cached_tokens == 8

    def test_what_ended_or_never_was_is_nothing_to_abort(self):
        engine = make()
        add(engine, 0, call("a", 4, 1))
        engine.advance(50)
        engine.abort("a", 60)
        engine.abort("b", 60)

        assert engine.next_at() is None
        assert engine.stats.aborted_tokens == 0

    def test_a_call_can_be_made_again_under_its_id(self):
        engine = make()
        add(engine, 0, call("a", 4, 3))
        engine.abort("a", 5)
        add(engine, 5, call("a", 4, 2))

        assert brief(seen(engine)) == [("a", "first_token", 20), ("a", "finished", 30)]


class TestProfile:
    def test_an_engine_needs_a_block(self):
        with pytest.raises(SetupError, match="3 KV tokens"):
            make(kv_tokens=3)

    @pytest.mark.parametrize(
        "cost",
        [StepCost(), StepCost(decode_seq_us=1), StepCost(fixed_us=-1), StepCost(kv_token_us=1)],
    )
    def test_a_step_must_take_time(self, cost):
        with pytest.raises(SetupError, match="step"):
            make(cost)

    @pytest.mark.parametrize("factor", [0, -1, float("inf"), float("nan")])
    def test_an_engine_slows_down_by_a_number_above_zero(self, factor):
        with pytest.raises(SetupError, match="step"):
            make().slow_down(factor, 0)


class TestHeldBeginnings:
    BEGINNING = (PromptPiece("role", 8),)

    def test_a_beginning_that_is_held_is_found_by_the_first_call(self):
        engine = make()
        engine.hold(self.BEGINNING)
        engine.hold(self.BEGINNING)  # no more for it
        assert engine.used_blocks == 2
        add(engine, 0, call("a", [("role", 8), ("a", 8)], 1))

        assert [each.cached_tokens for each in seen(engine) if each.what == "finished"] == [8]

    def test_it_is_there_after_prompts_that_fill_the_memory_and_nothing_else_is(self):
        engine = make(kv_tokens=40)
        engine.hold(self.BEGINNING)
        add(engine, 0, call("a", [("role", 8), ("a", 8)], 1))
        seen(engine)
        add(engine, 1_000, call("b", 28, 4))
        seen(engine)
        add(engine, 2_000, call("c", [("role", 8), ("a", 8), ("c", 4)], 1))

        assert [each.cached_tokens for each in seen(engine) if each.what == "finished"] == [8]

    def test_no_more_is_held_than_there_is_room_for(self):
        engine = make(kv_tokens=16)
        with pytest.raises(SetupError, match="5 blocks are to be held, and 4 are free"):
            engine.hold((PromptPiece("long", 20),))

    def test_without_a_prefix_cache_nothing_is_held(self):
        engine = make(prefix_caching=False)
        engine.hold(self.BEGINNING)
        assert engine.used_blocks == 0

"""From when tokens came to what the engine did meanwhile: on clocks that are scripted."""

import pytest

from kairos.core import StepCost
from kairos.simulate import calibrate
from kairos.simulate.engine.fitting import fit_step_cost, predicted_us
from kairos.simulate.measured_engine import Generated

BUDGET = 2048


def call(prompt_tokens, events_at, *, sent_at=0.0, tokens=None):
    made = Generated(prompt_tokens, tokens or len(events_at))
    made.sent_at, made.events_at, made.whole = sent_at, list(events_at), tokens is not None
    return made


def between(calls, pacer, window):
    return calibrate.steps_between("g", calls, pacer, window, max_num_batched_tokens=BUDGET)


def test_a_call_alone_is_seen_from_its_sending_to_its_first_token():
    seen = calibrate.steps_alone(
        call(100, [10.5, 10.6], sent_at=10.0), max_num_batched_tokens=BUDGET
    )
    assert seen.took_us == pytest.approx(500_000)
    assert (seen.calls, seen.steps, seen.prefill_steps) == (1, 1, 1)
    assert (seen.prefill_tokens, seen.prefill_seqs, seen.attention_pairs) == (100, 1, 5050)
    assert (seen.decode_seqs, seen.kv_tokens) == (0, 0)


def test_a_prompt_longer_than_the_budget_of_a_step_takes_several():
    seen = calibrate.steps_alone(call(100, [1.0]), max_num_batched_tokens=30)
    assert (seen.steps, seen.prefill_steps) == (4, 4)


def test_steps_are_the_tokens_of_the_pacer_and_every_call_counts_what_it_got_meanwhile():
    pacer = call(10, [1.0, 2.0, 3.0, 4.0, 5.0])
    other = call(20, [0.5, 2.0, 3.0, 4.5])
    seen = between([pacer, other], pacer, (2.0, 4.0))
    # The pacer's tokens 3 and 4 and the other's third came after 2.0, and by 4.0.
    assert (seen.took_us, seen.steps) == (2_000_000, 2)
    assert seen.decode_seqs == 3
    assert seen.kv_tokens == (10 + 2) + (10 + 3) + (20 + 2)
    assert (seen.prefill_steps, seen.prefill_tokens, seen.prefill_seqs) == (0, 0, 0)


def test_a_prompt_counts_where_its_first_token_came_and_that_token_is_no_decoding():
    pacer = call(10, [1.0, 2.0, 3.0, 4.0])
    begun = [call(50, [2.9, 4.0]), call(60, [2.8]), call(70, [3.5]), call(80, [9.0])]
    seen = between([pacer, *begun], pacer, (1.0, 4.0))
    assert seen.prefill_tokens == 50 + 60 + 70
    assert seen.prefill_seqs == 3
    assert seen.prefill_steps == 2  # two of them were in the same step
    assert seen.attention_pairs == (50 * 51 + 60 * 61 + 70 * 71) // 2
    assert seen.decode_seqs == 3 + 1


def test_prompts_count_for_as_many_steps_as_their_tokens_need():
    pacer = call(10, [float(at) for at in range(10)])
    seen = between([pacer, call(4 * BUDGET, [5.0])], pacer, (0.0, 9.0))
    assert seen.prefill_steps == 4


def test_a_step_is_from_one_token_of_the_pacer_to_the_next_and_none_has_more_than_its_prompts():
    pacer = call(10, [1.0, 2.0, 3.0])
    in_one = [call(50, [1.2]), call(60, [1.8])]
    assert between([pacer, *in_one], pacer, (1.0, 3.0)).prefill_steps == 1
    assert between([pacer, call(9 * BUDGET, [1.5])], pacer, (1.0, 3.0)).prefill_steps == 2


def test_tokens_that_came_in_one_event_are_counted_where_the_call_said_its_number():
    pacer = call(10, [1.0, 2.0, 3.0], tokens=5)  # three came at once, at 1.0
    assert pacer.tokens_at() == [(1.0, 3), (2.0, 4), (3.0, 5)]
    assert between([pacer], pacer, (1.0, 3.0)).steps == 2


def unstreamed(prompt_tokens, tokens, ended_at):
    made = Generated(prompt_tokens, tokens, streamed=False)
    made.events_at, made.whole = [ended_at], True
    return made


def test_a_call_that_is_not_streamed_had_a_token_in_each_step_until_it_ended():
    pacer = call(10, [1.0, 2.0, 3.0, 4.0, 5.0])
    for ended_at in (3.9, 4.0, 4.1):  # of one step answers come in any order
        other = unstreamed(20, 3, ended_at)
        calibrate.estimate_arrivals(other, pacer)
        assert other.tokens_at() == [(2.0, 1), (3.0, 2), (4.0, 3)]
    streamed = call(20, [2.0, 3.0, 4.0])
    window = (1.0, 5.0)
    assert between([pacer, other], pacer, window) == between([pacer, streamed], pacer, window)


def test_what_it_had_before_the_pacer_began_is_before_all_steps():
    pacer = call(10, [1.0, 2.0, 3.0])
    other = unstreamed(20, 9, 2.0)
    calibrate.estimate_arrivals(other, pacer)
    assert other.tokens_at() == [(1.0, 8), (2.0, 9)]
    seen = between([pacer, other], pacer, (1.0, 3.0))
    assert (seen.prefill_seqs, seen.decode_seqs) == (0, 2 + 1)


def test_tokens_of_the_pacer_that_came_in_one_event_are_steps_of_their_own():
    pacer = call(10, [1.0, 2.0], tokens=4)  # three came at 1.0
    other = unstreamed(20, 3, 2.0)
    calibrate.estimate_arrivals(other, pacer)
    assert other.events_at == [1.0, 1.0, 2.0]


@pytest.mark.parametrize("window", [(2.0, 2.0), (5.0, 9.0), (3.0, 9.0)])
def test_without_a_step_there_is_nothing_to_see(window):
    pacer = call(10, [1.0, 2.0, 3.0])
    assert between([pacer], pacer, window) is None


def test_without_time_there_is_nothing_to_see():
    pacer = call(10, [1.0, 1.0, 1.0])
    assert between([pacer], pacer, (0.0, 2.0)) is None


class Scripted:
    """An engine on a clock of its own: each step runs all that has been asked for and not ended."""

    def __init__(self, cost, call_us):
        self.cost, self.call_us = cost, call_us

    def run(self, asked):
        """Calls (from which step on, prompt, tokens), with the times of all their tokens."""
        calls = [Generated(prompt, tokens) for _, prompt, tokens in asked]
        got, now, number = [0] * len(calls), self.call_us, 0
        while any(n < each.completion_tokens for n, each in zip(got, calls, strict=True)):
            running = [
                i
                for i, (start, _, tokens) in enumerate(asked)
                if start <= number and got[i] < tokens
            ]
            now += self._step(calls, got, running)
            for i in running:
                got[i] += 1
                calls[i].events_at.append(now / calibrate.US)
            number += 1
        for each in calls:
            each.sent_at, each.whole = 0.0, True
        return calls

    def _step(self, calls, got, running):
        cost = self.cost
        prompts = [calls[i].prompt_tokens for i in running if got[i] == 0]
        reading = [calls[i].prompt_tokens + got[i] for i in running if got[i] > 0]
        return (
            cost.fixed_us
            + cost.prefill_token_us * sum(prompts)
            + cost.prefill_seq_us * len(prompts)
            + cost.decode_seq_us * len(reading)
            + cost.kv_token_us * sum(reading)
            + cost.attention_us * sum(p * (p + 1) // 2 for p in prompts)
        )


def test_what_is_seen_of_an_engine_gives_its_coefficients_back():
    cost = StepCost(
        fixed_us=3_000,
        prefill_token_us=20,
        prefill_seq_us=2_500,
        decode_seq_us=150,
        kv_token_us=0.2,
        attention_us=0.01,
    )
    engine = Scripted(cost, call_us=1_500)
    seen = [
        calibrate.steps_alone(engine.run([(0, prompt, 1)])[0], max_num_batched_tokens=BUDGET)
        for prompt in (20, 100, 250, 500, 1000, 1800)
    ]
    for at_once in (1, 4, 16, 64):
        for context in (20, 1000):
            calls = engine.run([(0, context, 50)] * at_once)
            window = (calls[0].events_at[0], calls[0].events_at[-1])
            seen.append(between(calls, calls[0], window))
    for at_once in (2, 6, 16):
        asked = [(start, 30 + 40 * i, 20) for i in range(at_once) for start in range(5, 180, 25)]
        calls = engine.run([(0, 20, 200), *asked])
        seen.append(between(calls, calls[0], (calls[0].events_at[0], calls[0].events_at[-1])))
    found = fit_step_cost(seen)
    assert found.call_us == pytest.approx(1_500, rel=0.01)
    for run in seen:
        assert predicted_us(run, cost, 1_500) == pytest.approx(run.took_us, rel=1e-6)
        assert predicted_us(run, found.step, found.call_us) == pytest.approx(run.took_us, rel=1e-3)

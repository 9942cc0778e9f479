"""Fitting: what a known engine would have shown gives its coefficients back."""

from random import Random

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kairos.core import StepCost
from kairos.simulate.engine.fitting import Steps, fit_step_cost, predicted_us
from tests.support.examples import examples


def alone(tokens):
    return Steps(
        group="prompts alone",
        took_us=0,
        calls=1,
        steps=1,
        prefill_steps=1,
        prefill_tokens=tokens,
        prefill_seqs=1,
        attention_pairs=tokens * (tokens + 1) // 2,
    )


def decode(at_once, context, steps=100):
    return Steps(
        group=f"decode at {context}",
        took_us=0,
        steps=steps,
        decode_seqs=at_once * steps,
        kv_tokens=at_once * steps * (context + steps / 2),
    )


def mixed(at_once, prompts, tokens, steps=500):
    return Steps(
        group="mixed",
        took_us=0,
        steps=steps,
        prefill_steps=prompts,
        prefill_tokens=prompts * tokens,
        prefill_seqs=prompts,
        decode_seqs=at_once * steps,
        kv_tokens=at_once * steps * 300,
        attention_pairs=prompts * tokens * (tokens + 1) // 2,
    )


RUNS = [
    *map(alone, (20, 120, 250, 500, 1000, 1800)),
    *(decode(n, context) for n in (1, 2, 4, 8, 16, 32, 64, 128) for context in (20, 1000)),
    *(mixed(n, prompts, 150) for n, prompts in ((3, 60), (7, 140), (17, 300))),
]


def shown(cost, call_us, errors):
    """What an engine of these costs shows; each time is off by its share in `errors`."""
    return [
        msgspec.structs.replace(run, took_us=predicted_us(run, cost, call_us) * (1 + error))
        for run, error in zip(RUNS, errors, strict=True)
    ]


COSTS = st.builds(
    StepCost,
    fixed_us=st.floats(500, 20_000),
    prefill_token_us=st.floats(5, 500),
    prefill_seq_us=st.floats(0, 5_000),
    decode_seq_us=st.floats(20, 2_000),
    kv_token_us=st.floats(0.01, 2),
    attention_us=st.floats(0, 0.05),
)
NOISE = st.lists(st.floats(-0.02, 0.02), min_size=len(RUNS), max_size=len(RUNS))
NONE = [0.0] * len(RUNS)


@examples(30)
@given(COSTS, st.floats(0, 10_000))
@example(  # weights as long as one answer's token fit as well as none, but for rounding
    StepCost(
        fixed_us=500.0,
        prefill_token_us=277.0,
        prefill_seq_us=1.0,
        decode_seq_us=513.0,
        kv_token_us=2.0,
        attention_us=0.001953125,
    ),
    0.0,
)
def test_without_noise_the_coefficients_come_back(cost, call_us):
    found = fit_step_cost(shown(cost, call_us, NONE))
    assert found.overall.worst < 1e-6
    assert found.r2 == pytest.approx(1)
    assert found.call_us == pytest.approx(call_us, abs=1)
    for name, value in msgspec.structs.asdict(cost).items():
        assert getattr(found.step, name) == pytest.approx(value, rel=1e-3, abs=1e-3)


@examples(30)
@given(COSTS, st.floats(0, 10_000), NOISE)
def test_with_noise_times_come_back_that_are_no_further_off_than_the_noise(cost, call_us, errors):
    found = fit_step_cost(shown(cost, call_us, errors))
    assert not found.bad
    for run in shown(cost, call_us, NONE):
        assert predicted_us(run, found.step, found.call_us) == pytest.approx(run.took_us, rel=0.08)


@examples(30)
@given(st.floats(5_000, 50_000), st.floats(10, 300), st.floats(100, 400), st.floats(500, 5_000))
def test_weights_that_hide_the_arithmetic_of_small_steps_are_found(weights, prefill, decode, fixed):
    """As on a GPU: 1 sequence takes as long as 8, and long prompts take what they compute."""
    cost = StepCost(
        fixed_us=fixed, weights_us=weights, prefill_token_us=prefill, decode_seq_us=decode
    )
    found = fit_step_cost(shown(cost, 0.0, NONE))
    for run in shown(cost, 0.0, NONE):
        assert predicted_us(run, found.step, found.call_us) == pytest.approx(run.took_us, rel=0.1)


def test_a_fit_says_how_far_each_group_is_off():
    cost = StepCost(fixed_us=1000, prefill_token_us=10, decode_seq_us=100, kv_token_us=0.1)
    errors = [0.5 if run.group == "mixed" else 0.0 for run in RUNS]
    found = fit_step_cost(shown(cost, 500.0, errors))
    assert set(found.groups) == {"prompts alone", "decode at 20", "decode at 1000", "mixed"}
    assert sum(of.observations for of in found.groups.values()) == len(RUNS)
    assert found.groups["mixed"].bias < 0
    assert found.overall.worst == max(of.worst for of in found.groups.values())


def test_the_worst_is_the_farthest_off_be_it_too_long_or_too_short():
    cost = StepCost(fixed_us=1000, prefill_token_us=10, decode_seq_us=100, kv_token_us=0.1)
    errors = [3.0 if number == 0 else 0.0 for number in range(len(RUNS))]
    found = fit_step_cost(shown(cost, 500.0, errors)).groups["prompts alone"]
    assert found.worst > 0.5  # it took four times as long as the model says


def test_each_group_weighs_the_same_however_many_observations_it_has():
    def took(group, us):
        return Steps(group=group, took_us=us, steps=1)

    found = fit_step_cost([took("many", 100.0)] * 50 + [took("one", 200.0)])
    assert predicted_us(took("any", 1.0), found.step) == pytest.approx(150, rel=1e-3)


def test_what_is_like_use_weighs_as_much_as_all_others_together():
    def took(group, us):
        return Steps(group=group, took_us=us, steps=1)

    found = fit_step_cost(
        [took("prompts alone", 100.0), took("decode", 100.0), took("mixed", 200.0)]
    )
    assert predicted_us(took("any", 1.0), found.step) == pytest.approx(150, rel=1e-3)


def test_runs_that_noise_made_slow_count_like_those_that_it_left_alone():
    found = fit_step_cost(
        [Steps(group="alone", took_us=us, steps=1) for us in [100.0] * 9 + [200.0]]
    )
    assert predicted_us(Steps(group="any", took_us=1.0, steps=1), found.step) == pytest.approx(110)


@pytest.mark.parametrize("seed", range(3))
def test_weights_that_noise_alone_would_explain_are_left_out(seed):
    cost = StepCost(
        fixed_us=3000,
        prefill_token_us=12,
        prefill_seq_us=4000,
        decode_seq_us=160,
        kv_token_us=0.2,
        attention_us=0.01,
    )
    random = Random(seed)
    found = fit_step_cost(shown(cost, 0.0, [random.uniform(-0.02, 0.02) for _ in RUNS]))
    assert found.step.weights_us == 0


def test_an_engine_that_the_formula_does_not_describe_gives_a_bad_fit():
    cost = StepCost(fixed_us=1000, prefill_token_us=10, decode_seq_us=100)
    errors = [2.0 if number % 4 < 2 else -0.5 for number in range(len(RUNS))]
    assert fit_step_cost(shown(cost, 500.0, errors)).bad

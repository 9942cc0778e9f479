"""The closed form of what n calls take, by hand, and beside the model of an engine."""

import msgspec
import pytest

from kairos.core import CallShape, EngineProfile, StepCost
from kairos.engines import load_profile
from kairos.engines.engine_profiles import profile_names
from kairos.workflows.compile.costs.fluid import largest_batch, makespan_us
from tests.support.simulate.model import EngineCall, ModelledEngine, PromptPiece

# Round figures: a step is 10 µs, and 100 for the weights or 2 a prompt token and 5 a sequence.
ROUND = EngineProfile(
    name="round",
    source="made up",
    measured=False,
    kv_tokens=10_000,
    max_num_seqs=4,
    max_num_batched_tokens=100,
    step=StepCost(
        fixed_us=10, weights_us=100, prefill_token_us=2, decode_seq_us=5, kv_token_us=0.1
    ),
)


def simulated_us(engine_profile, shape, calls):
    """Of prompts that share what is cached, and nothing else."""
    engine = ModelledEngine(engine_profile)
    shared = (PromptPiece("shared", int(shape.cached)),) if shape.cached else ()
    for number in range(calls):
        prompt = (*shared, PromptPiece(f"own {number}", int(shape.new)))
        call = EngineCall(id=str(number), prompt=prompt, completion_tokens=int(shape.answer))
        engine.add(call, 0)
    last = 0
    while (at := engine.next_at()) is not None:
        last = max([last, *(seen.at for seen in engine.advance(at))])
    return last


def test_h2_one_call_costs_its_prompt_and_a_step_for_each_token_after_the_first():
    prefill = 10 + max(100, 2 * 60)  # one chunk, no attention
    decode = 2 * (10 + 100 + 0.1 * (60 + 3 / 2))  # KV of the mean context
    found = makespan_us(ROUND, CallShape(prompt=60, answer=3), 1)
    assert found == pytest.approx(prefill + decode)


def test_h2_a_batch_shares_the_weights_and_pays_for_its_own_tokens():
    four = CallShape(prompt=25, answer=3)  # of 4 together one chunk of 100
    prefill = 10 + max(100, 2 * 100)
    decode = 2 * (10 + max(100, 5 * 4) + 0.1 * 4 * (25 + 3 / 2))
    assert makespan_us(ROUND, four, 4) == pytest.approx(prefill + decode)


def test_h2_a_second_wave_begins_its_prompts_where_the_first_ends():
    shape = CallShape(prompt=25, answer=3)
    chunk = 4 * 25 / (100 - 4)  # steps, with four that decode beside
    context = 25 + 3 / 2
    mixed = chunk * 10 + max(chunk * 100, 2 * 100 + 5 * 4 * chunk) + 0.1 * 4 * chunk * context
    alone = (3 - chunk) * (10 + 100 + 0.1 * 4 * context)
    first = makespan_us(ROUND, shape, 4)
    assert makespan_us(ROUND, shape, 8) == pytest.approx(first + mixed + alone)


def test_h2_what_runs_at_once_is_bound_by_sequences_and_by_memory_that_prefixes_share():
    shape = CallShape(prompt=1900, answer=200)
    assert largest_batch(msgspec.structs.replace(ROUND, max_num_seqs=100), shape) == 5
    assert largest_batch(ROUND, shape) == 4
    sharing = CallShape(prompt=1900, answer=200, cached=1000)
    assert largest_batch(msgspec.structs.replace(ROUND, max_num_seqs=100), sharing) == 9
    assert largest_batch(ROUND, CallShape(prompt=90_000, answer=2)) == 1


def test_no_calls_take_no_time():
    assert makespan_us(ROUND, CallShape(prompt=10, answer=5), 0) == 0


@pytest.mark.parametrize("name", profile_names())
@pytest.mark.parametrize(
    ("prompt", "answer", "cached"),
    [
        (60, 8, 0),
        (100, 20, 0),
        (500, 100, 0),
        (200, 400, 0),
        (1500, 50, 0),
        (1500, 4, 0),
        (1000, 100, 800),
    ],
)
def test_h2_fluid_is_within_15_percent_of_the_simulator(name, prompt, answer, cached):
    shape = CallShape(prompt=prompt, answer=answer, cached=cached)
    for calls in (1, 4, 16, 60, 250, 600):
        simulated = simulated_us(load_profile(name), shape, calls)
        assert makespan_us(load_profile(name), shape, calls) == pytest.approx(simulated, rel=0.15)

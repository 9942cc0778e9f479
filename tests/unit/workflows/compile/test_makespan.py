"""Calls on a pool as a fluid, by hand."""

import msgspec
import pytest

from kairos.core import CallShape, EngineProfile, StepCost
from kairos.workflows.compile.costs.fluid import makespan_us
from kairos.workflows.compile.fluid_engine import FluidCall
from kairos.workflows.compile.makespan import Makespan, makespan

# A step is 10 µs; a prompt token 1, a sequence 2.
ENGINE = EngineProfile(
    name="round",
    source="made up",
    measured=False,
    kv_tokens=1_000,
    block_size=4,
    max_num_seqs=2,
    max_num_batched_tokens=100,
    step=StepCost(fixed_us=10, prefill_token_us=1, decode_seq_us=2),
)


def call(row=0, prompt=20, answer=3, **more):
    return FluidCall(row=row, prompt_tokens=prompt, completion_tokens=answer, **more)


def test_a_call_takes_its_prompt_and_a_step_for_each_token_after_the_first():
    assert makespan([call()], ENGINE, 1).time_us == pytest.approx(30 + 2 * 12)
    later = msgspec.structs.replace(ENGINE, call_us=7)
    assert makespan([call()], later, 1).time_us == pytest.approx(7 + 30 + 2 * 12)
    assert makespan([], ENGINE, 1) == Makespan(0.0, 0.0)


def test_calls_at_once_share_steps_and_what_needs_an_answer_waits_for_it():
    assert makespan([call(), call(1)], ENGINE, 1).time_us == pytest.approx(50 + 2 * 14)
    chain = [call(), call(after=(0,))]
    assert makespan(chain, ENGINE, 1).time_us == pytest.approx(2 * 54)
    assert makespan(chain, ENGINE, 2).time_us == pytest.approx(2 * 54)
    assert makespan([call(), call(1)], ENGINE, 2).time_us == pytest.approx(54)


def test_what_has_no_place_waits_for_one():
    # Two of three run; the third begins when they have ended.
    three = [call(row) for row in range(3)]
    assert makespan(three, ENGINE, 1).time_us == pytest.approx(78 + 54)
    small = msgspec.structs.replace(ENGINE, kv_tokens=30)
    assert makespan(three, small, 1).time_us == pytest.approx(3 * 54)


def test_a_call_that_comes_while_others_decode_has_its_prompt_in_their_next_step():
    # first: 30, then 12 each. second: after `short` (ends at 30 on the other instance).
    short = call(1, answer=1)
    calls = [call(answer=10), short, call(2, prompt=20, after=(1,))]
    one = msgspec.structs.replace(ENGINE, max_num_seqs=3)
    # Both prompts 50; the third's beside the first: 10 + 2 + 20; 14 twice; 12 six times.
    assert makespan(calls, one, 1).time_us == pytest.approx(50 + 32 + 2 * 14 + 6 * 12)


def test_what_an_earlier_call_had_is_not_computed_again_in_whole_blocks():
    marks = ((1, 10.0), (2, 20.0))
    calls = [
        call(prefixes=marks, answered=9),
        call(1, prefixes=(marks[0], (3, 20.0)), after=(0,)),
        call(2, prompt=30, prefixes=(*marks, (9, 23.0), (4, 30.0)), after=(1,)),
    ]
    took = makespan(calls, ENGINE, 1)
    assert took.cached_tokens == 8 + 20  # of 10, and of 23
    assert took.time_us == pytest.approx(3 * 54 + 10 - 28)


def test_what_memory_has_no_room_for_any_more_is_computed_again():
    filling = [
        call(row, prompt=500, prefixes=((100 + row, 500.0),), after=(row - 1,))
        for row in range(1, 3)
    ]
    mine = ((1, 20.0),)
    calls = [call(prefixes=mine), *filling, call(3, prefixes=mine, after=(2,))]
    assert makespan(calls, ENGINE, 1).cached_tokens == 0
    assert makespan([calls[0], call(1, prefixes=mine, after=(0,))], ENGINE, 1).cached_tokens == 16


@pytest.mark.parametrize("calls", [1, 3, 40, 200])
def test_equal_calls_at_once_take_what_the_closed_form_says(calls):
    engine = EngineProfile(
        name="any",
        source="made up",
        measured=False,
        kv_tokens=100_000,
        max_num_seqs=64,
        step=StepCost(
            fixed_us=1000,
            weights_us=20_000,
            prefill_token_us=140,
            decode_seq_us=150,
            kv_token_us=0.2,
        ),
    )
    shape = CallShape(prompt=300, answer=80)
    took = makespan([call(row, 300, 80) for row in range(calls)], engine, 1)
    assert took.time_us == pytest.approx(makespan_us(engine, shape, calls), rel=0.05)

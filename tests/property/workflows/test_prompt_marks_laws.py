"""Marks that no prompt parts at do not matter, however the prompts are drawn."""

import random

from hypothesis import given
from hypothesis import strategies as st

from kairos.core import EngineProfile, StepCost
from kairos.workflows.compile.fluid_engine import FluidCall, drop_inner_marks
from kairos.workflows.compile.makespan import makespan

ENGINE = EngineProfile(
    name="round",
    source="made up",
    measured=False,
    kv_tokens=1_000_000,  # nothing is forgotten
    block_size=4,
    max_num_seqs=4,
    max_num_batched_tokens=200,
    step=StepCost(fixed_us=10, prefill_token_us=1, decode_seq_us=2, kv_token_us=0.01),
)


def drawn_calls(dice: random.Random) -> list[FluidCall]:
    """Chats of a few roles: each begins like earlier ones, or goes on after an earlier answer."""
    calls: list[FluidCall] = []
    for number in range(dice.randint(1, 25)):
        begun = dice.choice(calls) if calls and dice.random() < 0.8 else None
        marks = list(begun.prefixes) if begun else []
        if begun and dice.random() < 0.3:
            marks.append((begun.answered, begun.prompt_tokens + begun.completion_tokens))
            after = (calls.index(begun),)
        else:
            marks, after = marks[: dice.randint(0, len(marks))], ()
        tokens = marks[-1][1] if marks else 0.0
        for _ in range(dice.randint(1, 8)):
            tokens += dice.randint(1, 30)
            marks.append((dice.getrandbits(60), tokens))
        if calls and dice.random() < 0.4:
            after = tuple(sorted({*after, dice.randrange(len(calls))}))
        calls.append(
            FluidCall(
                row=number,
                prompt_tokens=tokens,
                completion_tokens=float(dice.randint(1, 20)),
                prefixes=tuple(marks),
                answered=dice.getrandbits(60),
                after=after,
            )
        )
    return calls


@given(seed=st.integers(0, 2**32), instances=st.integers(1, 3))
def test_a_pool_takes_as_long_and_finds_as_much_without_them(seed, instances):
    calls = drawn_calls(random.Random(seed))
    fewer = drop_inner_marks(calls)
    assert sum(len(each.prefixes) for each in fewer) <= sum(len(each.prefixes) for each in calls)
    assert makespan(fewer, ENGINE, instances) == makespan(calls, ENGINE, instances)


def test_only_ends_partings_and_answers_are_left():
    first = FluidCall(
        row=0, prompt_tokens=9, completion_tokens=2, prefixes=((1, 3), (2, 6), (3, 9)), answered=10
    )
    second = FluidCall(
        row=1,
        prompt_tokens=15,
        completion_tokens=2,
        prefixes=((1, 3), (2, 6), (3, 9), (10, 11), (4, 13), (5, 15)),
        answered=11,
    )
    third = FluidCall(
        row=2, prompt_tokens=8, completion_tokens=2, prefixes=((1, 3), (6, 8)), answered=12
    )
    kept = [
        [name for name, _ in each.prefixes] for each in drop_inner_marks([first, second, third])
    ]
    assert kept == [[1, 3], [1, 3, 10, 5], [1, 6]]

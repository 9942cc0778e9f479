"""A call's place in its workflow, and what a model of what is left makes of it."""

import math

import msgspec


class Position(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A call's place, as it stood when the call arrived."""

    stage: int = 0  # calls of the workflow that arrived before it
    visit: int = 1  # of this agent: its 1st, 2nd, ... call
    prompt_tokens: int  # as estimated then
    grown_tokens: int = 0  # longer than the workflow's first prompt
    added_tokens: int = 0  # longer than the prompt of the call before
    agents: int = 1  # different ones so far, its own included
    served_us: int = 0  # execution latency of the calls that ended before
    last_completion_tokens: int = 0  # of the call that ended last


FEATURES = 11
# Of these features agents have habits that no line follows: which visit it is, the prompt's length,
# the length of the answer before. A step is half a doubling; given are steps per unit.
STEPS = ((2, 2 / math.log(2)), (3, 20 / math.log(2)), (7, 10 / math.log(2)))


def features(position: Position) -> tuple[float, ...]:
    """`FEATURES` numbers of size about 1, for a model of what is left.

    Logarithms, because work multiplies: a context twice as long, a workflow twice as old. Squares
    let an app bend. Which ones pay was measured (experiments/e16_ordering.py); ours.
    """
    stage = math.log1p(position.stage)
    prompt = math.log(position.prompt_tokens) / 10
    served = math.log1p(position.served_us / 1000) / 10
    return (
        stage,
        stage * stage / 5,
        math.log(position.visit),
        prompt,
        prompt * prompt,
        served,
        served * served,
        math.log1p(position.last_completion_tokens) / 5,
        math.log1p(max(0, position.grown_tokens)) / 10,
        math.log1p(max(0, position.added_tokens)) / 10,
        math.log(position.agents),
    )

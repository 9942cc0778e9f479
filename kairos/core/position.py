"""Position of a call in its workflow, and its features for the model of remaining work."""

import math

import msgspec


class Position(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Position of a call in its workflow when it arrived."""

    stage: int = 0  # number of the workflow's calls before it
    visit: int = 1  # 1 for this agent's first call in the workflow, 2 for its second, ...
    prompt_tokens: int  # as estimated on arrival
    grown_tokens: int = 0  # prompt tokens in excess of the workflow's first prompt
    added_tokens: int = 0  # prompt tokens in excess of the previous call's prompt
    agents: int = 1  # number of agents so far, its own included
    served_us: int = 0  # execution latency of the calls that ended before
    last_completion_tokens: int = 0  # answer tokens of the call that ended last


FEATURES = 11
# Features with nonlinear habits per agent: visit, prompt length, and length of the previous answer.
# Each is (index, steps per unit); a step is half a doubling.
STEPS = ((2, 2 / math.log(2)), (3, 20 / math.log(2)), (7, 10 / math.log(2)))


def features(position: Position) -> tuple[float, ...]:
    """Return `FEATURES` numbers of magnitude about 1 for the model of remaining work.

    Logarithms, because work is multiplicative: a context twice as long, a workflow twice as old.
    Squares allow for curvature. The choice of features was measured (experiments/e16_ordering.py);
    not in the paper.
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

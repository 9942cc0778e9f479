"""The plan of an application's workflows, as its caller declares it: which calls follow which.

It comes from untrusted callers, so all of it is bounded and checked before it counts.
"""

import math
import re

import msgspec

from kairos.core.errors import InvalidRequest
from kairos.core.model import IDENTIFIER

MOST_OPERATORS = 256  # as many as names of agents that are told apart in one workflow
MOST_CALLS, MOST_TOKENS = 1_000_000, 10_000_000
_NAME = re.compile(IDENTIFIER)


class PlannedOperator(msgspec.Struct, frozen=True, omit_defaults=True):
    """Calls of one agent. What is None is learnt. Counts and tokens are means."""

    agent: str
    follows: tuple[int, ...] = ()  # places, in the plan, of those before it that it waits for
    part: int = 0  # a workflow has the operators of one part alone: a row's, or a group's
    # Operators of one loop or map have the same: their calls come again after each other's.
    repeats: int | None = None
    calls: float | None = None  # in a workflow
    prompt_tokens: float | None = None
    completion_tokens: float | None = None


class PlannedWork(msgspec.Struct, frozen=True):
    """Operators in an order in which each comes after all that it follows: so no circle can be
    said."""

    operators: tuple[PlannedOperator, ...]


def check_plan(plan: PlannedWork) -> None:
    """Raises InvalidRequest, which names the operator that cannot be."""
    if not 1 <= len(plan.operators) <= MOST_OPERATORS:
        raise InvalidRequest(f"a plan has 1 to {MOST_OPERATORS} operators")
    agents: set[str] = set()
    for place, each in enumerate(plan.operators):
        if not _NAME.match(each.agent) or each.agent in agents:
            raise InvalidRequest(f"operator {place} of the plan needs the name of an agent, once")
        agents.add(each.agent)
        _check_operator(place, each)


def _check_operator(place: int, operator: PlannedOperator) -> None:
    follows = operator.follows
    if len(set(follows)) < len(follows) or any(not 0 <= each < place for each in follows):
        raise InvalidRequest(f"{operator.agent}: `follows` names places before its own, each once")
    for value, most in (
        (operator.calls, MOST_CALLS),
        (operator.prompt_tokens, MOST_TOKENS),
        (operator.completion_tokens, MOST_TOKENS),
    ):
        if value is not None and not (math.isfinite(value) and 0 <= value <= most):
            raise InvalidRequest(f"{operator.agent}: calls and tokens are 0 to {most}")
    bounded = 0 if operator.repeats is None else operator.repeats
    if not (0 <= operator.part < MOST_OPERATORS and 0 <= bounded < MOST_OPERATORS):
        raise InvalidRequest(f"{operator.agent}: `part` and `repeats` are below {MOST_OPERATORS}")

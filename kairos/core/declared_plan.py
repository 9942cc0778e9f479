"""Declared plan of an application's workflows: which calls follow which.

It is declared by untrusted callers, so all of it is bounded and checked before use.
"""

import math
import re

import msgspec

from kairos.core.errors import InvalidRequest
from kairos.core.model import IDENTIFIER_PATTERN

MOST_OPERATORS = 256  # as many as agent names distinguished in one workflow
MOST_CALLS, MOST_TOKENS = 1_000_000, 10_000_000
_NAME = re.compile(IDENTIFIER_PATTERN)


class PlannedOperator(msgspec.Struct, frozen=True, omit_defaults=True):
    """Calls of one agent. Values of None are learnt. Counts and tokens are means."""

    agent: str
    follows: tuple[int, ...] = ()  # indices of the earlier operators that it waits for
    part: int = 0  # a workflow uses only the operators of one part: a row's, or a group's
    # The same for all operators of one loop or map, whose calls repeat together.
    repeats: int | None = None
    calls: float | None = None  # number of calls in a workflow
    prompt_tokens: float | None = None
    completion_tokens: float | None = None


class PlannedWork(msgspec.Struct, frozen=True):
    """Operators of a plan, each after all operators that it follows, so cycles are impossible."""

    operators: tuple[PlannedOperator, ...]


def check_plan(plan: PlannedWork) -> None:
    """Check a plan.

    Raises:
        InvalidRequest: the plan is invalid; the message names the operator.
    """
    if not 1 <= len(plan.operators) <= MOST_OPERATORS:
        raise InvalidRequest(f"a plan has 1 to {MOST_OPERATORS} operators")
    agents: set[str] = set()
    for place, each in enumerate(plan.operators):
        if not _NAME.match(each.agent) or each.agent in agents:
            raise InvalidRequest(f"operator {place} of the plan needs a valid, unique agent name")
        agents.add(each.agent)
        _check_operator(place, each)


def _check_operator(place: int, operator: PlannedOperator) -> None:
    follows = operator.follows
    if len(set(follows)) < len(follows) or any(not 0 <= each < place for each in follows):
        raise InvalidRequest(f"{operator.agent}: `follows` needs distinct indices below its own")
    for value, most in (
        (operator.calls, MOST_CALLS),
        (operator.prompt_tokens, MOST_TOKENS),
        (operator.completion_tokens, MOST_TOKENS),
    ):
        if value is not None and not (math.isfinite(value) and 0 <= value <= most):
            raise InvalidRequest(f"{operator.agent}: calls and tokens must be from 0 to {most}")
    bounded = 0 if operator.repeats is None else operator.repeats
    if not (0 <= operator.part < MOST_OPERATORS and 0 <= bounded < MOST_OPERATORS):
        raise InvalidRequest(
            f"{operator.agent}: `part` and `repeats` must be from 0 to {MOST_OPERATORS - 1}"
        )

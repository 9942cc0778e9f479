"""Declared plan for the balancer: the order of its LLM calls, and their lengths.

What the plan does not know (how often a branch is taken, which calls of a row another makes) is
left to learning.
"""

from collections.abc import Iterable

from kairos.core import EXPECTED_COMPLETION_TOKENS, MOST_OPERATORS, PlannedOperator, PlannedWork
from kairos.workflows.compile.gates import gates
from kairos.workflows.compile.graph import varying
from kairos.workflows.compile.operators import Generation, Group, Operator
from kairos.workflows.compile.pipeline import Plan
from kairos.workflows.compile.references import needs, placeholders

_Places = frozenset[int]
_NONE: _Places = frozenset()


def plan_work(plan: Plan) -> PlannedWork | None:
    """Return the declared plan; None without LLM calls, or with too many LLM operators."""
    found = _Planned(plan).operators
    return PlannedWork(tuple(found)) if 1 <= len(found) <= MOST_OPERATORS else None


class _Planned:
    def __init__(self, plan: Plan) -> None:
        self.operators: list[PlannedOperator] = []
        self._gates = gates(plan.declaration)
        # By operator, the nearest LLM calls that its value waits for.
        self._leads: dict[str, _Places] = {}
        operators = plan.declaration.operators
        differs = varying(operators)
        for each in operators:
            self._add(each, int(differs[each.name] == "group"), _NONE, None)

    def _add(self, operator: Operator, part: int, around: _Places, repeats: int | None) -> None:
        """Add an operator.

        `around`: calls that its body waits for; `repeats`: outermost repetition.
        """
        if isinstance(operator.params, Group):  # a group's workflow is not that of its rows
            self._leads[operator.name] = _NONE
            return
        before = around | self._all(needs(operator)) | self._all(self._gates[operator.name])
        if operator.body:
            self._leads[operator.name] = self._body(operator, part, before, repeats)
        elif isinstance(operator.params, Generation):
            self._leads[operator.name] = frozenset((len(self.operators),))
            limit = operator.params.max_tokens
            further = {each for place in before for each in self.operators[place].follows}
            planned = PlannedOperator(
                agent=operator.name,
                follows=tuple(sorted(before - further)),  # calls that no other directly follows
                part=part,
                repeats=repeats,
                completion_tokens=None if limit is None else min(limit, EXPECTED_COMPLETION_TOKENS),
            )
            self.operators.append(planned)
        else:
            self._leads[operator.name] = before

    def _all(self, names: Iterable[str]) -> _Places:
        return _NONE.union(*(self._leads.get(name, _NONE) for name in names))

    def _body(self, operator: Operator, part: int, before: _Places, repeats: int | None) -> _Places:
        first = len(self.operators)
        if repeats is None:
            repeats = first  # so bodies without LLM calls use up no number
        self._leads |= dict.fromkeys(placeholders(operator), before)
        for each in operator.body:
            self._add(each, part, before, repeats)
        return frozenset(range(first, len(self.operators))) or before

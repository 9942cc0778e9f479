"""What a plan tells the balancer: which of its LLM calls follow which, and what is known of them.

What the plan does not know (how often a branch is taken, which calls of a row another makes) is
left to be learnt.
"""

from collections.abc import Iterable, Sequence

from kairos.core.declared_plan import MOST_OPERATORS, PlannedOperator, PlannedWork
from kairos.core.model import EXPECTED_COMPLETION_TOKENS
from kairos.workflows.compile.gates import gates
from kairos.workflows.compile.graph import varying
from kairos.workflows.compile.operators import Generation, Group, Operator
from kairos.workflows.compile.pipeline import Plan
from kairos.workflows.compile.references import needs, placeholders

_Places = frozenset[int]
_NONE: _Places = frozenset()


def planned_work(plan: Plan) -> PlannedWork | None:
    """None: it makes no LLM call, or has more operators that do than a declared plan may have."""
    found = _Planned(plan).operators
    return PlannedWork(tuple(found)) if 1 <= len(found) <= MOST_OPERATORS else None


class _Planned:
    def __init__(self, plan: Plan) -> None:
        self.operators: list[PlannedOperator] = []
        self._gates = gates(plan.declaration)
        # By operator, the LLM calls that its value waits for, the nearest of each way.
        self._leads: dict[str, _Places] = {}
        operators = plan.declaration.operators
        differs = varying(operators)
        for each in operators:
            self._add(each, int(differs[each.name] == "group"), _NONE, None)

    def _add(self, operator: Operator, part: int, around: _Places, repeats: int | None) -> None:
        """`around`: what the body waits for that it is of; `repeats`: which, the outermost."""
        if isinstance(operator.params, Group):  # a group's workflow is another than its rows'
            self._leads[operator.name] = _NONE
            return
        before = around | self._all(needs(operator)) | self._all(self._gates[operator.name])
        if operator.body:
            self._leads[operator.name] = self._body(operator, part, before, repeats)
        elif isinstance(operator.params, Generation):
            self._leads[operator.name] = frozenset((len(self.operators),))
            self.operators.append(self._planned(operator, part, before, repeats))
        else:
            self._leads[operator.name] = before

    def _all(self, names: Iterable[str]) -> _Places:
        return _NONE.union(*(self._leads.get(name, _NONE) for name in names))

    def _body(self, operator: Operator, part: int, before: _Places, repeats: int | None) -> _Places:
        first = len(self.operators)
        if repeats is None:
            repeats = first  # so bodies without LLM calls, however many, use up no number
        self._leads |= dict.fromkeys(placeholders(operator), before)
        for each in operator.body:
            self._add(each, part, before, repeats)
        return frozenset(range(first, len(self.operators))) or before

    def _planned(
        self, operator: Operator, part: int, before: _Places, repeats: int | None
    ) -> PlannedOperator:
        return PlannedOperator(
            agent=operator.name,
            follows=_nearest(self.operators, before),
            part=part,
            repeats=repeats,
            completion_tokens=_at_most(operator),
        )


def _nearest(operators: Sequence[PlannedOperator], before: _Places) -> tuple[int, ...]:
    """Without those that others of them follow at once."""
    further = {each for place in before for each in operators[place].follows}
    return tuple(sorted(before - further))


def _at_most(operator: Operator) -> float | None:
    assert isinstance(operator.params, Generation)
    limit = operator.params.max_tokens
    return None if limit is None else min(limit, EXPECTED_COMPLETION_TOKENS)

"""Remaining work of workflows with a declared plan, from its graph instead of from history.

The remaining work of a workflow is the plan's calls that have not come yet, each as long as the
agent's calls usually take. An operator counts as finished once a call of an operator that follows
it has arrived: so a branch that was not taken does not count. The number of calls of operators in
loops, maps and branches is taken from the plan; where the plan gives none, from ended workflows of
the same plan.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from kairos.core.agent_key import AgentKey
from kairos.core.declared_plan import PlannedOperator, check_plan
from kairos.core.events import PlanDeclared
from kairos.core.learnt import AgentProfile
from kairos.core.model import EXPECTED_COMPLETION_TOKENS
from kairos.core.shared_lru import SharedLru

MOST_OPERATORS = 50_000  # of all plans together
_PLAN = 4  # fixed memory of a plan, in operators: some 2 KB
# Until anything is learnt, work is estimated from tokens; only its proportions matter then.
_US_PER_COMPLETION_TOKEN = 20_000
_US_PER_PROMPT_TOKEN = 200

Visits = Mapping[str | None, int]


def untaught_us(prompt_tokens: float, completion_tokens: float) -> float:
    """Return the assumed latency of a call whose agent nothing is known about."""
    return completion_tokens * _US_PER_COMPLETION_TOKEN + prompt_tokens * _US_PER_PROMPT_TOKEN


class DeclaredWork:
    """Work estimates for one plan, with latencies in µs.

    Call `price` before any query in an epoch. Within an epoch only what was learnt before it began
    is used, even by later queries, since decisions must not depend on when estimates are read.
    """

    def __init__(self, declared: PlanDeclared) -> None:
        self.declared = declared
        operators = self._operators = declared.plan.operators
        self._place: dict[str | None, int] = {each.agent: n for n, each in enumerate(operators)}
        # By operator: a bit mask of the operators that are finished once it is called.
        self._over = _over(operators)
        self._parts: dict[int, list[int]] = {}
        for place, each in enumerate(operators):
            self._parts.setdefault(each.part, []).append(place)
        self._made: Counter[str] = Counter()  # calls of workflows that ended in earlier epochs
        self._ended: Counter[int] = Counter()  # number of these workflows, by part of the plan
        # The same for the latest epoch in which workflows ended.
        self._lately_made: Counter[str] = Counter()
        self._lately_ended: Counter[int] = Counter()
        self._lately_epoch = -1
        self._epoch = -1
        self._calls: list[float] = []
        self._call_us: list[float] = []
        self._after_us: list[float] = []

    def __len__(self) -> int:
        return len(self._operators)

    def __contains__(self, agent: str | None) -> bool:
        return agent in self._place

    def price(self, epoch: int, profiles: Mapping[AgentKey, AgentProfile]) -> None:
        """Compute the latencies of calls and paths for an epoch; a no-op if done already."""
        if epoch == self._epoch:
            return
        self._epoch = epoch
        self._settle(epoch)
        self._calls = [self._expected(each) for each in self._operators]
        tenant, app = self.declared.tenant, self.declared.app
        known = [profiles.get((tenant, app, each.agent)) for each in self._operators]
        self._call_us = _call_us(
            self._operators, [None if each is None else each.call_us.mean for each in known]
        )
        self._after_us = self._paths()

    def after_us(self, agent: str | None) -> float:
        """Return the longest path of operators that follow the agent: the wait after its call ends.

        Each operator counts as one call, and as less if it may not be called at all.
        """
        place = self._place.get(agent)
        return 0.0 if place is None else self._after_us[place]

    def open_us(self, visits: Visits) -> float:
        """Return the expected latency of the calls that have not come yet. O(operators).

        `visits` has the calls so far, by agent; it is empty for a workflow that was forgotten.
        """
        over, part = 0, 0
        for agent in visits:
            place = self._place.get(agent)
            if place is not None:
                over |= self._over[place]
                part = self._operators[place].part
        total = 0.0
        for place in self._parts.get(part, ()):
            if not over >> place & 1:
                left = self._calls[place] - visits.get(self._operators[place].agent, 0)
                if left > 0:
                    total += left * self._call_us[place]
        return total

    def learn_visits(self, visits: Visits, epoch: int) -> None:
        """Learn the number of calls from a workflow that ended."""
        made = {agent: n for agent, n in visits.items() if agent is not None and agent in self}
        if made:
            self._settle(epoch)
            self._lately_epoch = epoch
            self._lately_made.update(made)
            self._lately_ended[self._operators[self._place[next(iter(made))]].part] += 1

    def _settle(self, epoch: int) -> None:
        if epoch != self._lately_epoch:
            self._made += self._lately_made
            self._ended += self._lately_ended
            self._lately_made, self._lately_ended = Counter(), Counter()

    def _expected(self, operator: PlannedOperator) -> float:
        """Return the expected number of the operator's calls in a workflow."""
        if operator.calls is not None:
            return operator.calls
        ended = self._ended[operator.part]
        return self._made[operator.agent] / ended if ended else 1.0

    def _paths(self) -> list[float]:
        after = [0.0] * len(self)
        for place in reversed(range(len(self))):
            begun = min(1.0, self._calls[place]) * self._call_us[place] + after[place]
            for each in self._operators[place].follows:
                after[each] = max(after[each], begun)
        return after


class DeclaredPlans:
    """Declared plans of all tenants' apps.

    Bounded: the tenant with most operators loses its least recently used plan. Workflows of that
    app are then estimated from what was learnt.
    """

    def __init__(self) -> None:
        self._plans: SharedLru[tuple[str, str], DeclaredWork] = SharedLru(MOST_OPERATORS)

    def __len__(self) -> int:
        return len(self._plans)

    def declare(self, event: PlanDeclared) -> None:
        """Set the plan of an app, for workflows without calls in flight; idempotent.

        Raises:
            InvalidRequest: the plan is invalid; the previous plan stays.
        """
        check_plan(event.plan)
        key = event.tenant, event.app
        before = self._plans.get(key)
        if before is None or before.declared != event:
            work = DeclaredWork(event)
            self._plans.put(event.tenant, key, work, len(work) + _PLAN)

    def of(self, tenant: str, app: str | None, agent: str | None) -> DeclaredWork | None:
        """Return the plan of the app, or None if it has none or the agent is not in it."""
        key = tenant, app or ""
        work = self._plans.get(key)
        if work is None or agent not in work:
            return None
        self._plans.touch(tenant, key)
        return work

    def learn_visits(self, tenant: str, app: str | None, visits: Visits, epoch: int) -> None:
        """Learn the number of calls from an ended workflow of the app."""
        work = self._plans.get((tenant, app or ""))
        if work is not None:
            work.learn_visits(visits, epoch)


def _over(operators: Sequence[PlannedOperator]) -> list[int]:
    """Return per operator a bit mask of all its direct and indirect predecessors.

    Predecessors that repeat together with it are left out: they are called again.
    """
    before: list[int] = []
    together: dict[int, int] = {}
    for place, each in enumerate(operators):
        found = 0
        for other in each.follows:
            found |= 1 << other | before[other]
        before.append(found)
        if each.repeats is not None:
            together[each.repeats] = together.get(each.repeats, 0) | 1 << place
    return [
        found if each.repeats is None else found & ~together[each.repeats]
        for each, found in zip(operators, before, strict=True)
    ]


def _call_us(operators: Sequence[PlannedOperator], known: Sequence[float | None]) -> list[float]:
    """Return the latency of a call of each operator.

    The learnt mean if there is one; else the estimate from tokens, scaled by the ratio of learnt to
    estimated latencies of the other operators; else the mean of the other operators.
    """
    told = [_told_us(each) for each in operators]
    both = [(us, by) for us, by in zip(known, told, strict=True) if us and by]
    scale = sum((us for us, _ in both), 0.0) / sum((by for _, by in both), 0.0) if both else 1.0
    learnt = [us for us in known if us is not None]
    usual = sum(learnt) / len(learnt) if learnt else untaught_us(0, EXPECTED_COMPLETION_TOKENS)
    return [
        us if us is not None else by * scale if by is not None else usual
        for us, by in zip(known, told, strict=True)
    ]


def _told_us(operator: PlannedOperator) -> float | None:
    if operator.completion_tokens is None:
        return None
    return untaught_us(operator.prompt_tokens or 0, operator.completion_tokens)

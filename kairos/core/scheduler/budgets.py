"""What a workflow may use at most: calls, tokens, time.

The operator's word is the most that any may; a call can ask for less, which then holds for its
workflow. A call that would go beyond it is refused when it arrives; of tokens, what engines counted
of the calls that have ended, and the prompts of those in flight, so answers under way may go beyond
it, and are not cut off. When its time is up, a workflow's calls end wherever they are, as at a
deadline: nobody is to wait for what comes after it.

What was used is kept with the workflow's position, and goes with it: one that has ended, or that is
forgotten as idle, begins anew.
"""

from typing import Any

from kairos.core.errors import BudgetExceeded
from kairos.core.model import SECOND, Budget, Request, least
from kairos.core.scheduler.heap import LazyHeap
from kairos.core.workflow_tracker import WorkflowKey, WorkflowTracker, workflow_key

UNLIMITED = Budget()
EndEntry = tuple[Any, ...]  # when its time is up, and the workflow's key


class Budgets:
    """Of all workflows that are known. Costs next to nothing where there never was one."""

    def __init__(self, positions: WorkflowTracker, most: Budget = UNLIMITED) -> None:
        self._positions = positions
        self._most = most
        self._has_any = most != UNLIMITED  # so far: mostly there is nothing to look up
        self._ends: LazyHeap[EndEntry] = LazyHeap(self._if_it_holds)

    @property
    def next_end_at(self) -> int | None:
        """When the time of a workflow is up, if it is still known by then."""
        entry = self._ends.top()
        return None if entry is None else entry[0]

    def check(self, request: Request, at: int) -> None:
        """Raises BudgetExceeded: with the request, which arrives, its workflow would use more."""
        if not self._has_any and request.budget is None:
            return
        workflow = workflow_key(request)
        used = self._positions.used(workflow)
        if used is not None and self._positions.is_idle(workflow, at):
            used = None  # it begins anew
        asked = used.budget if used is not None else None
        budget = least(least(self._most, request.budget), asked)
        if budget == UNLIMITED:
            return
        calls, tokens = (used.calls, used.tokens) if used is not None else (0, 0)
        if budget.calls is not None and calls >= budget.calls:
            raise BudgetExceeded("calls", f"has made {calls} calls, of {budget.calls}")
        prompt = request.least_prompt_tokens
        if budget.tokens is not None and tokens + max(1, prompt) > budget.tokens:
            more = f", and this prompt has {prompt}" if prompt else ""
            raise BudgetExceeded("tokens", f"has used {tokens} tokens, of {budget.tokens}{more}")
        if budget.wall_us is not None and used is not None:
            ran_us = at - used.began_at
            if ran_us >= budget.wall_us:
                raise BudgetExceeded("time", f"began {ran_us // SECOND} s ago")

    def arrived(self, request: Request) -> None:
        """The positions know it by now."""
        self._has_any |= request.budget is not None
        if not self._has_any:
            return
        workflow = workflow_key(request)
        used = self._positions.used(workflow)
        assert used is not None
        wall_us = least(self._most, used.budget).wall_us
        if wall_us is not None and used.ends_at != (ends_at := used.began_at + wall_us):
            used.ends_at = ends_at
            self._ends.push((ends_at, workflow), len(self._positions))

    def take_ended(self, at: int) -> list[WorkflowKey]:
        """The workflows whose time is up since it was last asked."""
        found = []
        while (entry := self._ends.top()) is not None and entry[0] <= at:
            self._ends.pop()
            found.append(entry[1])
        return found

    def _if_it_holds(self, entry: EndEntry) -> EndEntry | None:
        used = self._positions.used(entry[1])
        return entry if used is not None and used.ends_at == entry[0] else None

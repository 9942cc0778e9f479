"""Budget of a workflow: its maximum of calls, tokens and time.

The operator sets the maximum for all workflows; a call can ask for less, which then applies to its
workflow. A call that would exceed the budget is refused when it arrives. Tokens used are the tokens
that engines reported for ended calls, plus the prompts of calls in flight; so answers under way may
exceed the budget, and are not cut off. When a workflow's time is up, its calls are ended wherever
they are, as at a deadline, since no result is expected any more.

Usage is stored with the workflow's position and deleted with it: a workflow that has ended, or was
forgotten as idle, starts again from zero.
"""

from typing import Any

from kairos.core.errors import BudgetExceeded
from kairos.core.model import SECOND, Budget, Request, least
from kairos.core.scheduler.heap import LazyHeap
from kairos.core.workflow_tracker import WorkflowKey, WorkflowTracker, workflow_key

UNLIMITED = Budget()
EndEntry = tuple[Any, ...]  # when the workflow's time is up, and its key


class Budgets:
    """Budgets of all known workflows. Costs next to nothing until one is set."""

    def __init__(self, positions: WorkflowTracker, most: Budget = UNLIMITED) -> None:
        self._positions = positions
        self._most = most
        self._has_any = most != UNLIMITED  # whether any budget was set so far
        self._ends: LazyHeap[EndEntry] = LazyHeap(self._if_it_holds)

    @property
    def next_end_at(self) -> int | None:
        """Return when the time of the next workflow is up; None if no time is limited."""
        entry = self._ends.top()
        return None if entry is None else entry[0]

    def check(self, request: Request, at: int) -> None:
        """Check whether an arriving request stays within its workflow's budget.

        Raises:
            BudgetExceeded: the workflow would use more than its budget.
        """
        if not self._has_any and request.budget is None:
            return
        workflow = workflow_key(request)
        used = self._positions.used(workflow)
        if used is not None and self._positions.is_idle(workflow, at):
            used = None  # an idle workflow starts again from zero
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

    def track_call(self, request: Request) -> None:
        """Track the budget of an admitted request, whose workflow has a position by now."""
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
        """Return the workflows whose time has run out since the last call."""
        found = []
        while (entry := self._ends.top()) is not None and entry[0] <= at:
            self._ends.pop()
            found.append(entry[1])
        return found

    def _if_it_holds(self, entry: EndEntry) -> EndEntry | None:
        used = self._positions.used(entry[1])
        return entry if used is not None and used.ends_at == entry[0] else None

"""Open workflows of one quota.

A workflow is open from the arrival of its first call until it has ended and has no calls in flight,
or until it was silent for long. A workflow without any call that ran does not count: it was
refused.
"""

from collections import OrderedDict

from kairos.core.workflow_tracker import WorkflowKey


class _Open:
    calls: int = 0  # in flight
    has_run: bool = False
    is_over: bool = False


class WorkflowsAtOnce:
    """Set of open workflows. O(1) per fact, amortised."""

    def __init__(self, idle_us: int) -> None:
        """Start without workflows; each ends after `idle_us` of silence."""
        self._idle_us = idle_us
        self._open: dict[WorkflowKey, _Open] = {}
        self._silent_since: OrderedDict[WorkflowKey, int] = OrderedDict()  # longest first

    def open(self, at: int) -> int:
        """Return the number of open workflows."""
        silent = self._silent_since
        while silent and (longest := next(iter(silent.items())))[1] <= at - self._idle_us:
            self._forget(longest[0])
        return len(self._open)

    def __contains__(self, workflow: WorkflowKey) -> bool:
        return workflow in self._open

    def arrived(self, workflow: WorkflowKey) -> None:
        """Record an admitted call of a workflow."""
        self._silent_since.pop(workflow, None)
        one = self._open.setdefault(workflow, _Open())
        one.calls += 1
        one.is_over = False

    def call_ended(self, workflow: WorkflowKey, at: int, *, has_run: bool) -> None:
        one = self._open[workflow]
        one.calls -= 1
        one.has_run |= has_run
        if one.calls:
            return
        if one.is_over or not one.has_run:
            self._forget(workflow)
        else:
            self._silent_since[workflow] = at

    def ended(self, workflow: WorkflowKey) -> None:
        one = self._open.get(workflow)
        if one is not None:
            one.is_over = True
            if not one.calls:
                self._forget(workflow)

    def _forget(self, workflow: WorkflowKey) -> None:
        del self._open[workflow]
        self._silent_since.pop(workflow, None)

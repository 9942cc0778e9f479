"""Prefill prefixes of prompts ahead of their calls (`workflows/compile/passes/prefill.py`).

A prefix is ready when its values are known; it is prefilled when an operator begins that the rest
of the prompt waits for. So it is not where everything is known from earlier sessions, and nothing
is waited for. Nor if engines have no room: there it would only delay a call, and evict cached
prefixes. Nor with more than a few open rows: while one of many waits, engines compute others, so
nothing is gained (in simulations of 30 rows up to a tenth was lost). Both are known only when the
rows asked for have come, so prefills wait for them.
"""

from collections.abc import Callable

from kairos.workflows.compile.passes.prefill import PartialPrefill
from kairos.workflows.execute.behaviours import WantsPrefill
from kairos.workflows.execute.commands import FlowCommand, TouchPrefix
from kairos.workflows.execute.flight import Flight
from kairos.workflows.execute.frames import OpenRow
from kairos.workflows.execute.limits import FlowFigures, FlowLimits


class PrefillsAhead:
    """Prefixes of open rows that are ready, and the begun calls that they may run alongside."""

    def __init__(
        self,
        parts: tuple[PartialPrefill, ...],
        limits: FlowLimits,
        has_room: Callable[[], bool],
        figures: FlowFigures,
        out: list[FlowCommand],
    ) -> None:
        # A budget is for real calls.
        self._is_on = limits.max_calls is None and limits.max_tokens is None
        self._is_on &= limits.caches_prefixes
        self._has_room, self._figures, self._out = has_room, figures, out
        beside = frozenset(name for each in parts for name in each.beside | each.first_beside)
        self._watched = beside | {each.operator for each in parts}
        self._ready: dict[tuple[int, int], list[WantsPrefill]] = {}
        self._begun: dict[tuple[int, int], set[str]] = {}  # names of operators, and nodes in loops
        self._due: dict[tuple[int, int], list[WantsPrefill]] = {}

    def add_ready(self, row: OpenRow, wants: WantsPrefill) -> None:
        key = (row.stage, row.row)
        if not self._is_on or wants.node in row.known:
            return
        if wants.beside & self._begun.get(key, set()):
            self._due.setdefault(key, []).append(wants)
        else:
            self._ready.setdefault(key, []).append(wants)

    def on_call_issued(self, flight: Flight) -> None:
        """Note that a call is made: prefixes that waited for it are due."""
        name = flight.operator.name
        if name not in self._watched:
            return
        nodes: dict[tuple[int, int], set[str]] = {}
        for frame, slot in flight.waiting:
            if frame.row.alive:
                key = frame.row.stage, frame.row.row
                nodes.setdefault(key, {name}).add(frame.node(slot))
        for key, found in nodes.items():
            self._begun.setdefault(key, set()).update(found)
            ready = self._ready.pop(key, [])
            for wants in ready:
                if name in wants.beside:
                    self._due.setdefault(key, []).append(wants)
            if left := [each for each in ready if name not in each.beside]:
                self._ready[key] = left

    def close_row(self, row: OpenRow) -> None:
        for each in (self._ready, self._begun, self._due):
            each.pop((row.stage, row.row), None)

    def issue_due(self) -> None:
        """Issue the prefills that are due, or drop them.

        Call it once the requested rows have come.
        """
        due, self._due = self._due, {}
        if not self._has_room():
            return
        for key, ready in due.items():
            longest = {each.node: each for each in sorted(ready, key=lambda each: each.part.tokens)}
            for wants in longest.values():
                part = wants.part
                if wants.node in self._begun[key]:
                    continue  # the whole prompt was sent
                self._figures.touched += 1
                self._out.append(TouchPrefix(part.operator, part.params.model, wants.body))

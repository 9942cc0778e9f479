"""What instances hold of a prompt, as columns that the kernel reads.

Many prompts begin with what many instances hold, such as the instructions of an agent. The columns
of such a run are kept with it, and written anew for those instances alone that changed. Ours.
"""

from array import array
from collections.abc import Mapping
from typing import Final

from kairos.core.dispatcher.compiled_table import CompiledTable
from kairos.core.dispatcher.prefix_runs import Held, PrefixRun, PrefixRuns, RunColumn, RunColumns
from kairos.core.model import Request

_MANY = 8  # instances that hold a run


class PrefixColumns:
    """By row of the table, tokens; None: no instance has any. A stretch is as long as the first
    prompt with it said, so it may be longer than this prompt is."""

    def __init__(self, runs: PrefixRuns, table: CompiledTable) -> None:
        self._runs: Final = runs
        self._table: Final = table

    def of(
        self, request: Request, arranged: tuple[int, int], *, alone: bool
    ) -> "tuple[array[float] | None, array[float] | None]":
        """What calls in flight hold of the prompt, and what is in the caches; `alone`: not that.
        `arranged`: another one whenever instances and rows are other pairs."""
        in_use: array[float] | None = None
        cached: array[float] | None = None
        for run, marks in self._runs.down(request.prefix):
            kept: RunColumns | None = None
            if len(run.held) >= _MANY and marks == len(run.names):
                kept = self._kept(run, arranged)
            if run.in_use:
                in_use = self._over(in_use, run.in_use, marks, kept.in_use if kept else None)
            if run.held and not alone:
                cached = self._over(cached, run.held, marks, kept.cached if kept else None)
        return in_use, cached

    def none(self) -> "array[float]":
        return array("d", bytes(8 * self._table.count))

    def _over(
        self,
        column: "array[float] | None",
        there: Mapping[str, Held],
        marks: int,
        kept: RunColumn | None,
    ) -> "array[float]":
        """The column with one run more, of which the prompt has so many marks."""
        if kept is not None and (column is None or kept.rows == self._table.count):
            return kept.ends[:]
        found = self.none() if column is None else column
        for instance_id, held in there.items():
            row = self._table.row(instance_id)
            if row >= 0:
                ends = held.ends
                found[row] = ends[-1] if len(ends) <= marks else ends[marks - 1]
        return found

    def _kept(self, run: PrefixRun, arranged: tuple[int, int]) -> RunColumns:
        """Those of the run, as it is now."""
        kept = run.columns
        if kept is None or kept.arranged != arranged:
            in_use, cached = RunColumn(self.none()), RunColumn(self.none())
            kept = run.columns = RunColumns(arranged, in_use, cached)
            kept.changed.update(run.held)
        for instance_id in kept.changed:
            row = self._table.row(instance_id)
            if row >= 0:
                _write(kept.in_use, row, run.in_use.get(instance_id))
                _write(kept.cached, row, run.held.get(instance_id))
        kept.changed.clear()
        return kept


def _write(column: RunColumn, row: int, held: Held | None) -> None:
    end = 0 if held is None else held.ends[-1]
    column.rows += (end > 0) - (column.ends[row] > 0)
    column.ends[row] = end

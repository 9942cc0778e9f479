"""Cached tokens of a prompt by instance, as columns that the kernel reads. Not in the paper.

Many prompts begin with a prefix that many instances have cached, such as an agent's instructions.
The columns of such a run are stored with it, and updated only for instances that changed.
"""

from array import array
from collections.abc import Mapping
from typing import Final

from kairos.core.dispatcher.compiled_table import CompiledTable
from kairos.core.dispatcher.prefix_runs import Held, PrefixRun, PrefixRuns, RunColumn, RunColumns
from kairos.core.model import Request

_MANY = 8  # number of instances with a run from which its columns are stored


class PrefixColumns:
    """Columns of tokens by row of the table; None if no instance has any.

    A stretch is as long as the first prompt with it reported, so it may exceed this prompt.
    """

    def __init__(self, runs: PrefixRuns, table: CompiledTable) -> None:
        self._runs: Final = runs
        self._table: Final = table

    def of(
        self, request: Request, arranged: tuple[int, int], *, alone: bool
    ) -> "tuple[array[float] | None, array[float] | None]":
        """Return two columns for a prompt: tokens in use by calls in flight, and cached tokens.

        Args:
            request: the request with the prompt.
            arranged: changes whenever the assignment of instances to rows does.
            alone: omit the caches.
        """
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
        """Return the column extended by one run.

        Args:
            column: the column so far; None: no run yet.
            there: what instances have of the run.
            marks: number of the run's marks in the prompt.
            kept: stored column of the run, if any.
        """
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
        """Return the stored columns of the run, updated."""
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

"""Computations for a row before they are known to be needed.

An item is computed in a frame like the one its map will use, for a row of its own (`TrialRow`), so
that it can fail, or be discarded, without a trace. Results of its calls are noted by node, with the
signature of the request; when the map itself reaches the node and makes the same request, it takes
the result, or joins the call. So work begun for the wrong item is never taken for the right one.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from kairos.workflows.execute.frames import OpenRow

if TYPE_CHECKING:
    from kairos.workflows.execute.flight import Flight


class EarlyResult(msgspec.Struct, frozen=True, gc=False):
    signature: str
    value: object


class EarlyFailure(msgspec.Struct, frozen=True, gc=False):
    signature: str
    error: str


class TrialRow(OpenRow):
    """Row as seen by an item that may turn out to be another one."""

    __slots__ = ("item", "of")

    def __init__(self, of: OpenRow, item: object) -> None:
        super().__init__(of.stage, of.row, of.given, of.known, 0)
        self.of, self.item = of, item
        self.bounds = of.bounds


class EarlyWork:
    """Early work for one row: trials by the map's node, and results of their calls by node."""

    __slots__ = ("_trials", "calls")

    def __init__(self) -> None:
        self._trials: dict[str, list[TrialRow]] = {}
        self.calls: dict[str, Flight | EarlyResult | EarlyFailure] = {}

    def begin(
        self, row: OpenRow, node: str, items: Sequence[object], first: int, most: int
    ) -> list[tuple[int, TrialRow]]:
        """Begin trials for the items without one, at most `most`; return them with their positions.

        From position `first` on, the trial of an item that has changed is discarded. O(1) for each
        item from there on.
        """
        trials = self._trials.setdefault(node, [])
        begun = []
        for at in range(min(first, len(trials)), min(len(items), most)):
            item = items[at]
            if at < len(trials) and trials[at].item == item:
                continue
            for changed in trials[at : at + 1]:
                changed.alive = False
            trial = TrialRow(row, item)
            trials[at : at + 1] = [trial]
            begun.append((at, trial))
        return begun

    def keep(self, node: str, items: Sequence[object]) -> None:
        """Discard trials of a map whose items are not among these."""
        for at, trial in enumerate(self._trials.get(node, ())):
            if at >= len(items) or trial.item != items[at]:
                trial.alive = False

    def end(self) -> None:
        for trials in self._trials.values():
            for trial in trials:
                trial.alive = False

"""What is tried for a row before it is known to be needed.

An item is computed in a frame as its map will have it, of a row of its own (`TrialRow`), so that it
can fail, or be thrown away, without a trace. What comes of its calls is noted by node, with the
signature of what was asked; when the map itself comes to the node and asks the same, it has the
result, or joins the call. So what was begun for the wrong item is never taken for the right one.
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
    """A row as an item sees it that may turn out to be another one."""

    __slots__ = ("item", "of")

    def __init__(self, of: OpenRow, item: object) -> None:
        super().__init__(of.stage, of.row, of.given, of.known, 0)
        self.of, self.item = of, item
        self.bounds = of.bounds


class EarlyWork:
    """Of one row: its trials, by the map's node, and what came of their calls, by node."""

    __slots__ = ("_trials", "calls")

    def __init__(self) -> None:
        self._trials: dict[str, list[TrialRow]] = {}
        self.calls: dict[str, Flight | EarlyResult | EarlyFailure] = {}

    def begin(
        self, row: OpenRow, node: str, items: Sequence[object], first: int, most: int
    ) -> list[tuple[int, TrialRow]]:
        """Trials for those of the items that have none, by position, `most` at most. One of an item
        that has changed, from the `first` on, is thrown away. O(1) for each item from there on."""
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
        """Throw away what was begun for a map but is not of these."""
        for at, trial in enumerate(self._trials.get(node, ())):
            if at >= len(items) or trial.item != items[at]:
                trial.alive = False

    def end(self) -> None:
        for trials in self._trials.values():
            for trial in trials:
                trial.alive = False

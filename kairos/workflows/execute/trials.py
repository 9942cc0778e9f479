"""Items of a list that a model is still writing, computed before they are known to be needed.

An item is computed in a frame like the one its map will use, for a row of its own (`TrialRow`), so
that it can fail, or be discarded, without a trace. Results of its calls are noted by node, with the
signature of the request; when the map itself reaches the node and makes the same request, it takes
the result, or joins the call. So work begun for the wrong item is never taken for the right one.
"""

from collections.abc import Iterator, Sequence

import msgspec

from kairos.workflows.compile.operators import RegisteredCall
from kairos.workflows.execute.behaviours import Maps
from kairos.workflows.execute.evaluation import Evaluation
from kairos.workflows.execute.flight import Flight
from kairos.workflows.execute.frames import OpenRow, Slot, ValueFrame


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

    def begin_trials(
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

    def keep_trials(self, node: str, items: Sequence[object]) -> None:
        """Discard trials of a map whose items are not among these."""
        for at, trial in enumerate(self._trials.get(node, ())):
            if at >= len(items) or trial.item != items[at]:
                trial.alive = False

    def discard_trials(self) -> None:
        for trials in self._trials.values():
            for trial in trials:
                trial.alive = False


def begin_items(
    evaluation: Evaluation, flight: Flight, first: int, items: Sequence[object]
) -> None:
    """Begin new items in each map that waits for the call and may begin early.

    A map that began to wait in the meantime begins with the items before the `first`, too.
    """
    assert first <= len(flight.items), f"of {len(flight.items)} items the one at {first} follows"
    flight.items[first:] = items
    for frame, slot in flight.waiting:
        if frame.row.alive and not isinstance(frame.row, TrialRow):
            for where, at in _after_parsers(frame.waiters[slot] or ()):
                behaviour = where.scope.operators[at].behaviour
                if isinstance(behaviour, Maps) and behaviour.early:
                    _begin_new(evaluation, behaviour, where, first, flight.items)


def _after_parsers(waiters: Sequence[Slot]) -> Iterator[Slot]:
    """Yield the waiting slots; a function that parses the text is replaced by its own waiters."""
    for where, at in waiters:
        operator = where.scope.operators[at].operator
        params = None if operator is None else operator.params
        if isinstance(params, RegisteredCall) and params.partial:
            yield from where.waiters[at] or ()
        else:
            yield where, at


def _begin_new(
    evaluation: Evaluation, maps: Maps, frame: ValueFrame, first: int, items: Sequence[object]
) -> None:
    row = frame.row
    if row.early is None:
        row.early = EarlyWork()
    node, most = frame.node(maps.slot), maps.max_items
    for at, trial in row.early.begin_trials(row, node, items, first, most):
        child = maps.scope.child(frame, maps.slot, at, trial.item)
        child.row = trial
        evaluation.begin_item(child, maps.result.needs)

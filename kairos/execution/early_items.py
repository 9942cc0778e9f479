"""Items of a list that a model still writes: begun before the list is whole (`trials.py`)."""

from collections.abc import Sequence

from kairos.execution.behaviours import Maps
from kairos.execution.evaluation import Evaluation
from kairos.execution.flight import Flight
from kairos.execution.frames import ValueFrame
from kairos.execution.trials import EarlyWork, TrialRow


def begin_items(
    evaluation: Evaluation, flight: Flight, first: int, items: Sequence[object]
) -> None:
    """For each map that waits for what the call answers, and may begin with some of it. What came
    to wait meanwhile begins with the items before the `first`, too."""
    assert first <= len(flight.items), f"of {len(flight.items)} items the one at {first} follows"
    flight.items[first:] = items
    for frame, slot in flight.waiting:
        if frame.row.alive and not isinstance(frame.row, TrialRow):
            for where, at in frame.waiters[slot] or ():
                behaviour = where.scope.operators[at].behaviour
                if isinstance(behaviour, Maps) and behaviour.early:
                    _begin(evaluation, behaviour, where, first, flight.items)


def _begin(
    evaluation: Evaluation, maps: Maps, frame: ValueFrame, first: int, items: Sequence[object]
) -> None:
    row = frame.row
    if row.early is None:
        row.early = EarlyWork()
    for at, trial in row.early.begin(row, frame.node(maps.slot), items, first, maps.max_items):
        child = maps.scope.child(frame, maps.slot, at, trial.item)
        child.row = trial
        evaluation.begin_item(child, maps.result.needs)

"""Items of a list that a model is still writing: begun before the list is whole (`trials.py`)."""

from collections.abc import Iterator, Sequence

from kairos.workflows.compile.operators import RegisteredCall
from kairos.workflows.execute.behaviours import Maps
from kairos.workflows.execute.evaluation import Evaluation
from kairos.workflows.execute.flight import Flight
from kairos.workflows.execute.frames import Slot, ValueFrame
from kairos.workflows.execute.trials import EarlyWork, TrialRow


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
                    _begin(evaluation, behaviour, where, first, flight.items)


def _after_parsers(waiters: Sequence[Slot]) -> Iterator[Slot]:
    """Yield the waiting slots; a function that parses the text is replaced by its own waiters."""
    for where, at in waiters:
        operator = where.scope.operators[at].operator
        params = None if operator is None else operator.params
        if isinstance(params, RegisteredCall) and params.partial:
            yield from where.waiters[at] or ()
        else:
            yield where, at


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

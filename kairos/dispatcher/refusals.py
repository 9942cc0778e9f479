"""What had room nowhere. What needs no less has none either, while nothing has changed: of the many
that wait when all is full, most need not be looked at closely. Ours."""

from collections.abc import Hashable, Sequence

from kairos.dispatcher.demand import Floats
from kairos.model import Instance


class Refusals:
    """By kind of request: of the same kind, one needs the more the more it holds at first."""

    def __init__(self) -> None:
        self._state: tuple[int, ...] = ()
        self._held: dict[Hashable, tuple[list[Instance], Floats]] = {}

    def forget(self) -> None:
        self._held.clear()

    def covers(
        self, state: tuple[int, ...], kind: Hashable, instances: Sequence[Instance], held: Floats
    ) -> bool:
        """Whether one that would hold no more, on any of these instances, was refused in the same
        state: that of all that the decision rests on."""
        if state != self._state:
            self._state = state
            self._held.clear()
        refused = self._held.get(kind)
        return refused is not None and refused[0] == instances and bool((held >= refused[1]).all())

    def add(self, kind: Hashable, instances: Sequence[Instance], held: Floats) -> None:
        """In the state that was asked for last."""
        self._held[kind] = list(instances), held

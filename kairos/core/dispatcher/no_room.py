"""What had room nowhere. What needs no less has none either, while nothing has changed: of the many
that wait when all is full, most need not be looked at closely. Ours."""

from collections.abc import Hashable, Sequence

from kairos.core.dispatcher.demand import Floats
from kairos.core.model import Instance


class NoRoom:
    """By kind of request: of the same kind, one needs the more the more it holds at first. They are
    of one state of all that the decisions rest on."""

    def __init__(self) -> None:
        self._state: tuple[int, ...] = ()
        self._held: dict[Hashable, tuple[list[Instance], Floats]] = {}
        self._closed: dict[Hashable, list[Instance]] = {}  # kinds that hold too much without that
        self._asked: dict[Hashable, None] = {}  # kinds, since it forgot last
        self._awaited: list[Hashable] = []  # and before that

    def forget(self) -> None:
        self._awaited, self._asked = list(self._asked), {}
        self._held.clear()
        self._closed.clear()

    def awaited(self, state: tuple[int, ...], at_most: int) -> list[Hashable]:
        """Kinds that were asked for before it forgot; told once."""
        self._begin(state)
        kinds, self._awaited = self._awaited[:at_most], []
        return kinds

    def is_closed(
        self, state: tuple[int, ...], kind: Hashable, instances: Sequence[Instance]
    ) -> bool:
        """Whether all of the kind are refused, whatever they hold at first."""
        self._begin(state)
        self._asked[kind] = None
        return kind in self._closed and self._closed[kind] == instances

    def _begin(self, state: tuple[int, ...]) -> None:
        if state != self._state:
            self._state = state
            self._held.clear()
            self._closed.clear()

    def close(self, kind: Hashable, instances: Sequence[Instance]) -> None:
        self._closed[kind] = list(instances)

    def covers(self, kind: Hashable, instances: Sequence[Instance], held: Floats) -> bool:
        """Whether one that would hold no more on any of these instances was refused."""
        refused = self._held.get(kind)
        return refused is not None and refused[0] == instances and bool((held >= refused[1]).all())

    def add(self, kind: Hashable, instances: Sequence[Instance], held: Floats) -> None:
        self._held[kind] = list(instances), held

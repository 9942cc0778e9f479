"""Cache of requests that were refused for lack of capacity. Not in the paper.

While nothing changes, a request that needs at least as much is refused, too. So of the many
requests that wait for a full pool, most need no closer check.
"""

from collections.abc import Hashable, Sequence

from kairos.core.dispatcher.demand import Floats
from kairos.core.model import Instance


class NoRoom:
    """Refused demand by kind of request, valid for one state of all that decisions depend on.

    Within a kind, a request that uses more from the beginning needs more throughout.
    """

    def __init__(self) -> None:
        self._state: tuple[int, ...] = ()
        self._held: dict[Hashable, tuple[list[Instance], Floats]] = {}
        self._closed: dict[Hashable, list[Instance]] = {}  # kinds refused for any initial use
        self._asked: dict[Hashable, None] = {}  # kinds checked since the last `forget`
        self._awaited: list[Hashable] = []  # kinds checked before it

    def forget(self) -> None:
        self._awaited, self._asked = list(self._asked), {}
        self._held.clear()
        self._closed.clear()

    def awaited(self, state: tuple[int, ...], at_most: int) -> list[Hashable]:
        """Return and clear the kinds that were checked before the last `forget`."""
        self._begin(state)
        kinds, self._awaited = self._awaited[:at_most], []
        return kinds

    def is_closed(
        self, state: tuple[int, ...], kind: Hashable, instances: Sequence[Instance]
    ) -> bool:
        """Return whether all requests of the kind are refused, regardless of their initial use."""
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
        """Return whether a request of the kind that uses at most `held` was refused.

        Each instance counts: it must use no more than `held` on any of them.
        """
        refused = self._held.get(kind)
        return refused is not None and refused[0] == instances and bool((held >= refused[1]).all())

    def add(self, kind: Hashable, instances: Sequence[Instance], held: Floats) -> None:
        self._held[kind] = list(instances), held

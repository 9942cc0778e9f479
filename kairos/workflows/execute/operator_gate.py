"""Gate for calls of operators whose models are not loaded.

It also counts the calls wanted by operator, from which models are chosen.
"""

from collections.abc import Collection, Iterator
from collections.abc import Set as AbstractSet

from kairos.workflows.execute.flight import Flight


class OperatorGate:
    """Gate by operator.

    `wanted`: calls that are ready, held or in flight; `in_flight`: the part of these in flight.
    """

    def __init__(self) -> None:
        self.wanted: dict[str, int] = {}
        self.in_flight: dict[str, int] = {}
        self._open: AbstractSet[str] | None = None  # None: all
        self._held: dict[str, list[Flight]] = {}

    @property
    def is_open_to_all(self) -> bool:
        """Return whether no engine has to load a model for calls."""
        return self._open is None

    def pushed(self, flight: Flight) -> bool:
        """Count a ready call. Return whether it may be issued; otherwise it is held."""
        name = flight.operator.name
        self.wanted[name] = self.wanted.get(name, 0) + 1
        return self.passes(flight)

    def passes(self, flight: Flight) -> bool:
        name = flight.operator.name
        if self._open is None or name in self._open:
            return True
        self._held.setdefault(name, []).append(flight)
        return False

    def issued(self, flight: Flight) -> None:
        name = flight.operator.name
        self.in_flight[name] = self.in_flight.get(name, 0) + 1

    def ended(self, flight: Flight) -> None:
        self.in_flight[flight.operator.name] -= 1
        self.forgotten(flight)

    def forgotten(self, flight: Flight) -> None:
        self.wanted[flight.operator.name] -= 1

    def open(self, operators: Collection[str] | None) -> Iterator[Flight]:
        """Open the gate for these operators only (None: for all).

        Yield the held calls that may go now.
        """
        self._open = None if operators is None else frozenset(operators)
        for name in list(self._held):
            if self._open is None or name in self._open:
                yield from self._held.pop(name)

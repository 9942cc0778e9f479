"""Of which operators calls may be issued now: where engines have one model at a time, those of
others wait. And how many calls are wanted of each operator, since by that models are chosen."""

from collections.abc import Collection, Iterator
from collections.abc import Set as AbstractSet

from kairos.workflows.execute.flight import Flight


class OperatorGate:
    """`wanted`: calls of an operator that are ready, held or in flight; `in_flight` of these."""

    def __init__(self) -> None:
        self.wanted: dict[str, int] = {}
        self.in_flight: dict[str, int] = {}
        self._open: AbstractSet[str] | None = None  # all
        self._held: dict[str, list[Flight]] = {}

    @property
    def is_open_to_all(self) -> bool:
        """No engine has to load a model for what is issued."""
        return self._open is None

    def pushed(self, flight: Flight) -> bool:
        """A call is ready. Whether it may be issued; otherwise it is held until it may."""
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
        """Those alone from now on (None: all). Gives the calls that were held and may go now."""
        self._open = None if operators is None else frozenset(operators)
        for name in list(self._held):
            if self._open is None or name in self._open:
                yield from self._held.pop(name)

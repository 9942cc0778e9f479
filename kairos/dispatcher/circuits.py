"""Which instances are trusted with calls: a circuit breaker for each; ours.

An instance that gave no answer at all is left alone at once, one that answered with errors of its
own after `ERRORS` in a row: for a while, and twice as long each time that it goes on. Then one call
goes there to try it; with each answer that comes of it one more may run there (slow start), until
nothing holds it back any more. So a broken instance that fails quickly, and is therefore always
idle, does not draw all calls onto itself.
"""

from typing import Literal

import msgspec

from kairos.model import SECOND

ERRORS = 3
FIRST_US, LONGEST_US = SECOND, 30 * SECOND

State = Literal["closed", "open", "half-open"]


class _Circuit(msgspec.Struct):
    errors: int = 0  # in a row
    open_us: int = 0  # how long it is, or was last, left alone; 0: it has not been
    open_until: int = 0
    may_run: int = 0  # calls, once it is tried again


class Circuits:
    """Those of instances that are not wholly trusted. O(1) each."""

    def __init__(self, *, first_us: int = FIRST_US, longest_us: int = LONGEST_US) -> None:
        self._first_us, self._longest_us = first_us, longest_us
        self._circuits: dict[str, _Circuit] = {}

    def __bool__(self) -> bool:
        return bool(self._circuits)

    def state(self, instance_id: str, at: int) -> State:
        circuit = self._circuits.get(instance_id)
        if circuit is None or not circuit.open_us:
            return "closed"
        return "open" if at < circuit.open_until else "half-open"

    def takes(self, instance_id: str, running: int, at: int) -> bool:
        """Whether one more call may go there, beside the `running`."""
        circuit = self._circuits.get(instance_id)
        if circuit is None or not circuit.open_us:
            return True
        return at >= circuit.open_until and running < circuit.may_run

    def next_try_at(self, at: int) -> int | None:
        """When the next of those left alone may be tried; None: none is left alone."""
        waiting = [each.open_until for each in self._circuits.values() if each.open_until > at]
        return min(waiting, default=None)

    def failed(self, instance_id: str, at: int, *, answered: bool) -> None:
        """A call came to nothing there, by its fault. `answered`: it said so itself."""
        circuit = self._circuits.setdefault(instance_id, _Circuit())
        circuit.errors += 1
        if at < circuit.open_until:
            return  # of a call that was under way when it was left alone
        if circuit.open_us or not answered or circuit.errors >= ERRORS:
            circuit.open_us = min(max(self._first_us, 2 * circuit.open_us), self._longest_us)
            circuit.open_until = at + circuit.open_us
            circuit.may_run = 1

    def answered(self, instance_id: str, at: int, most: int) -> None:
        """An answer came from there. `most`: as many calls as ever run there at once."""
        circuit = self._circuits.get(instance_id)
        if circuit is None or at < circuit.open_until:
            return
        circuit.errors = 0
        circuit.may_run += 1
        if not circuit.open_us or circuit.may_run > most:
            del self._circuits[instance_id]

    def forget(self, instance_id: str) -> None:
        """It has left: one that comes back has started anew."""
        self._circuits.pop(instance_id, None)

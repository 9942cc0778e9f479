"""Which instances are trusted with calls: a circuit breaker for each; ours.

One that is not trusted is left alone for a while. Then one call goes there to try it: if it fails,
the instance is left alone for twice as long as before. With each answer that comes one more may run
there (slow start), until nothing holds it back any more. So a broken instance that fails quickly,
and is therefore always idle, does not draw all calls onto itself; and one that fails some calls is
not given up. When one is not trusted: `faults.py`.
"""

from typing import Literal

from kairos.core.model import SECOND

FIRST_US, LONGEST_US = SECOND, 30 * SECOND

State = Literal["closed", "open", "half-open"]


class _Circuit:
    may_run: int = 1  # calls, once it is tried again

    def __init__(self, open_us: int, open_until: int) -> None:
        self.open_us = open_us  # how long it is, or was last, left alone
        self.open_until = open_until


class Circuits:
    """Those of instances that are not wholly trusted. O(1) each."""

    def __init__(self, *, first_us: int = FIRST_US, longest_us: int = LONGEST_US) -> None:
        self._first_us, self._longest_us = first_us, longest_us
        self._circuits: dict[str, _Circuit] = {}

    def __bool__(self) -> bool:
        return bool(self._circuits)

    def state(self, instance_id: str, at: int) -> State:
        circuit = self._circuits.get(instance_id)
        if circuit is None:
            return "closed"
        return "open" if at < circuit.open_until else "half-open"

    def is_on_trial(self, instance_id: str, at: int) -> bool:
        """Whether it is tried, and has not answered since it was left alone."""
        circuit = self._circuits.get(instance_id)
        return circuit is not None and at >= circuit.open_until and circuit.may_run == 1

    def takes(self, instance_id: str, running: int, at: int) -> bool:
        """Whether one more call may go there, beside the `running`."""
        circuit = self._circuits.get(instance_id)
        if circuit is None:
            return True
        return at >= circuit.open_until and running < circuit.may_run

    def next_try_at(self, at: int) -> int | None:
        """When the next of those left alone may be tried; None: none is left alone."""
        waiting = [each.open_until for each in self._circuits.values() if each.open_until > at]
        return min(waiting, default=None)

    def open(self, instance_id: str, at: int) -> None:
        """It is not to be trusted. Nothing, while it is left alone: what ends there now was under
        way before."""
        circuit = self._circuits.get(instance_id)
        if circuit is None:
            self._circuits[instance_id] = _Circuit(self._first_us, at + self._first_us)
        elif at >= circuit.open_until:
            has_answered = circuit.may_run > 1
            longer_us = min(2 * circuit.open_us, self._longest_us)
            circuit.open_us = self._first_us if has_answered else longer_us
            circuit.open_until = at + circuit.open_us
            circuit.may_run = 1

    def answered(self, instance_id: str, at: int, most: int) -> None:
        """An answer came from there. `most`: as many calls as ever run there at once."""
        circuit = self._circuits.get(instance_id)
        if circuit is None or at < circuit.open_until:
            return
        circuit.may_run += 1
        if circuit.may_run > most:
            del self._circuits[instance_id]

    def forget(self, instance_id: str) -> None:
        """It has left, and one that comes back has started anew; or it was not its fault."""
        self._circuits.pop(instance_id, None)

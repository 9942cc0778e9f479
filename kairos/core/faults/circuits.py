"""Circuit breakers of instances. Not in the paper.

An instance with an open circuit gets no calls for a while. Then one call is dispatched to try it:
if it fails, the circuit stays open twice as long as before. With each answer one more concurrent
call is allowed (slow start), until the circuit is closed. So a broken instance that fails quickly,
and is therefore always idle, does not attract all calls; and an instance that fails some calls is
not given up. `faults.py` decides when a circuit opens.
"""

from typing import Literal

from kairos.core.model import SECOND

FIRST_US, LONGEST_US = SECOND, 30 * SECOND

State = Literal["closed", "open", "half-open"]


class _Circuit:
    may_run: int = 1  # concurrent calls allowed when half-open

    def __init__(self, open_us: int, open_until: int) -> None:
        self.open_us = open_us  # current or last duration of the open state
        self.open_until = open_until


class Circuits:
    """Circuits that are open or half-open. O(1) each."""

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
        """Return whether the instance is being tried and has not answered since it was opened."""
        circuit = self._circuits.get(instance_id)
        return circuit is not None and at >= circuit.open_until and circuit.may_run == 1

    def admits_call(self, instance_id: str, running: int, at: int) -> bool:
        """Return whether the instance may get one more call in addition to the `running` ones."""
        circuit = self._circuits.get(instance_id)
        if circuit is None:
            return True
        return at >= circuit.open_until and running < circuit.may_run

    def next_try_at(self, at: int) -> int | None:
        """Return when the next open circuit becomes half-open; None if none is open."""
        waiting = [each.open_until for each in self._circuits.values() if each.open_until > at]
        return min(waiting, default=None)

    def open_circuit(self, instance_id: str, at: int) -> None:
        """Open the circuit; no effect if it is open, since its failing calls began before."""
        circuit = self._circuits.get(instance_id)
        if circuit is None:
            self._circuits[instance_id] = _Circuit(self._first_us, at + self._first_us)
        elif at >= circuit.open_until:
            has_answered = circuit.may_run > 1
            longer_us = min(2 * circuit.open_us, self._longest_us)
            circuit.open_us = self._first_us if has_answered else longer_us
            circuit.open_until = at + circuit.open_us
            circuit.may_run = 1

    def count_answer(self, instance_id: str, at: int, most: int) -> None:
        """Record an answer. `most`: concurrent calls at which the circuit closes."""
        circuit = self._circuits.get(instance_id)
        if circuit is None or at < circuit.open_until:
            return
        circuit.may_run += 1
        if circuit.may_run > most:
            del self._circuits[instance_id]

    def close_circuit(self, instance_id: str) -> None:
        """Close the circuit of an instance that left (it may return as new) or is not at fault."""
        self._circuits.pop(instance_id, None)

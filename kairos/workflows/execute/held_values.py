"""Values held by processors: their places, the rows that need them, and their calls.

A processor may die with the values it held. Then the call that made a value is repeated by any
processor (its lineage, as in Spark's RDDs), and nothing else is: users of the value have only its
id, which stays the same.
"""

from collections.abc import Mapping

from kairos.workflows.compile.held import held_in
from kairos.workflows.compile.operators import Operator
from kairos.workflows.execute.behaviours import WantsCall
from kairos.workflows.execute.commands import DropHeld, FlowCommand
from kairos.workflows.execute.facts import Stays
from kairos.workflows.execute.frames import OpenRow
from kairos.workflows.execute.trials import TrialRow


class HeldValue:
    """Held value. `rows`: the rows that still need it."""

    __slots__ = ("operator", "rows", "stays", "wants")

    def __init__(self, operator: Operator, wants: WantsCall, stays: Stays) -> None:
        self.operator, self.wants, self.stays = operator, wants, stays
        self.rows: set[OpenRow] = set()


class HeldValues:
    """Held values by id, which is the signature of the call. O(1) for each value of a row."""

    def __init__(self, out: list[FlowCommand]) -> None:
        self._out = out
        self._values: dict[str, HeldValue] = {}
        self._of_row: dict[OpenRow, list[str]] = {}

    def __getitem__(self, value_id: str) -> HeldValue | None:
        return self._values.get(value_id)

    def add(self, row: OpenRow, operator: Operator, wants: WantsCall, stays: Stays) -> None:
        """Note that a row needs a value, and where the value is held."""
        held = self._values.get(wants.signature)
        if held is None:
            held = self._values[wants.signature] = HeldValue(operator, wants, stays)
        held.stays = stays
        self.join(row, wants.signature)

    def join(self, row: OpenRow, value_id: str) -> HeldValue | None:
        """Note that another row needs a value, and return the value; None if it is unknown."""
        held = self._values.get(value_id)
        owner = row.of if isinstance(row, TrialRow) else row
        if held is not None and owner not in held.rows:
            held.rows.add(owner)
            self._of_row.setdefault(owner, []).append(value_id)
        return held

    def places(self, arguments: Mapping[str, object]) -> dict[str, str]:
        """Return the places of the held values among some arguments.

        A text that only looks like a held value's id has no place.
        """
        found = ((each, self._values.get(each)) for each in held_in(arguments))
        return {each: held.stays.place for each, held in found if held is not None}

    def closed(self, row: OpenRow) -> None:
        """Drop values that no other open row needs."""
        for value_id in self._of_row.pop(row, ()):
            held = self._values[value_id]
            held.rows.discard(row)
            if not held.rows:
                del self._values[value_id]
                self._out.append(DropHeld(value_id, held.stays.place))

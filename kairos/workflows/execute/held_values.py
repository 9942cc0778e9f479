"""Values that stay with processors: where each is, who needs it, and what makes it again.

A processor may die with what it held. Then the call that made a value is made again (its lineage,
as in Spark's RDDs), by whichever processor is there, and nothing else is: whoever needs the value
has its id alone, which stays the same.
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
    """Of one id. `rows`: that need it still."""

    __slots__ = ("operator", "rows", "stays", "wants")

    def __init__(self, operator: Operator, wants: WantsCall, stays: Stays) -> None:
        self.operator, self.wants, self.stays = operator, wants, stays
        self.rows: set[OpenRow] = set()


class HeldValues:
    """By id, which is the signature of the call. O(1) for each value that a row needs."""

    def __init__(self, out: list[FlowCommand]) -> None:
        self._out = out
        self._values: dict[str, HeldValue] = {}
        self._of_row: dict[OpenRow, list[str]] = {}

    def __getitem__(self, value_id: str) -> HeldValue | None:
        return self._values.get(value_id)

    def add(self, row: OpenRow, operator: Operator, wants: WantsCall, stays: Stays) -> None:
        """The row needs it. It is where it was told last to be."""
        held = self._values.get(wants.signature)
        if held is None:
            held = self._values[wants.signature] = HeldValue(operator, wants, stays)
        held.stays = stays
        self.join(row, wants.signature)

    def join(self, row: OpenRow, value_id: str) -> HeldValue | None:
        """The row needs it, too; None: there is no such value."""
        held = self._values.get(value_id)
        owner = row.of if isinstance(row, TrialRow) else row
        if held is not None and owner not in held.rows:
            held.rows.add(owner)
            self._of_row.setdefault(owner, []).append(value_id)
        return held

    def places(self, arguments: Mapping[str, object]) -> dict[str, str]:
        """Of what has its place in the arguments held by an id. What a row only says to be held has
        none."""
        found = ((each, self._values.get(each)) for each in held_in(arguments))
        return {each: held.stays.place for each, held in found if held is not None}

    def closed(self, row: OpenRow) -> None:
        """What no other row needs is dropped."""
        for value_id in self._of_row.pop(row, ()):
            held = self._values[value_id]
            held.rows.discard(row)
            if not held.rows:
                del self._values[value_id]
                self._out.append(DropHeld(value_id, held.stays.place))

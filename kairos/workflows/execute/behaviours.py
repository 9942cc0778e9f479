"""Behaviour of operators of each kind, step by step.

`step` is called with phase 0, then again whenever everything it asked for has settled, with the
next phase. It returns what it needs now, its value, or the call that it wants made. Nothing is
asked for before it is needed, so of a branch only the chosen case is computed, and a loop's next
round only if the last one did not end it. Arguments are read by readers (`ArgumentReader`) that are
compiled once for all rows.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

import msgspec

from kairos.workflows.compile.invalid import OperatorFailed
from kairos.workflows.compile.operators import (
    MOST_ITEMS,
    Argument,
    Constant,
    Path,
    Reference,
    References,
)
from kairos.workflows.compile.passes.prefill import PartialPrefill
from kairos.workflows.compile.templates import Expression
from kairos.workflows.compile.values import Missing, as_text, part, type_name
from kairos.workflows.execute.frames import ABSENT, OpenRow, Slot, ValueFrame

if TYPE_CHECKING:
    from kairos.workflows.execute.program import CompiledScope


Read = Callable[[ValueFrame], object]  # a value, or ABSENT; raises OperatorFailed, RowTooLarge


class Located(msgspec.Struct, frozen=True, gc=False):
    """Slot of an operator, `up` frames above."""

    up: int
    slot: int

    def of(self, frame: ValueFrame) -> Slot:
        for _ in range(self.up):
            assert frame.parent is not None
            frame = frame.parent
        return frame, self.slot


Names = Mapping[str, Located]


class ArgumentReader(msgspec.Struct, frozen=True):
    """Reader of an argument. `needs`: slots that must have settled before."""

    needs: tuple[Located, ...]
    read: Read


def argument_reader(argument: Argument, names: Names) -> ArgumentReader:
    if isinstance(argument, Constant):
        value = argument.value
        return ArgumentReader((), lambda _: value)
    if isinstance(argument, Reference):
        at = names[argument.operator]
        return ArgumentReader((at,), _one(argument.operator, at, argument.path))
    return _list_reader(argument, names)


def inputs_reader(inputs: Mapping[str, Argument], names: Names) -> ArgumentReader:
    """Return a reader of inputs as a mapping.

    It is ABSENT if any input is, even if another cannot be read, so that their order makes no
    difference.
    """
    readers = {name: argument_reader(argument, names) for name, argument in inputs.items()}
    reads = tuple((name, reader.read) for name, reader in readers.items())

    def read(frame: ValueFrame) -> object:
        found: dict[str, object] = {}
        failed: OperatorFailed | None = None
        for name, each in reads:
            try:
                found[name] = each(frame)
            except OperatorFailed as error:
                failed = failed or error
        if ABSENT in found.values():
            return ABSENT
        if failed is not None:
            raise failed
        return found

    needed = (at for reader in readers.values() for at in reader.needs)
    return ArgumentReader(tuple(dict.fromkeys(needed)), read)


def _list_reader(argument: References, names: Names) -> ArgumentReader:
    readers = [argument_reader(each, names) for each in argument.each]

    def read(frame: ValueFrame) -> object:
        values = [reader.read(frame) for reader in readers]
        found = [value for value in values if value is not ABSENT]
        if frame.row.bounds is not None:
            frame.row.bounds.hold(found)  # it may be written out before it is the value of a slot
        return found

    return ArgumentReader(tuple(at for reader in readers for at in reader.needs), read)


def _one(name: str, at: Located, path: Path) -> Read:
    slot = at.slot
    if at.up == 0 and not path:
        return lambda frame: frame.values[slot]

    def read(frame: ValueFrame) -> object:
        where, _ = at.of(frame)
        value = where.values[slot]
        if value is ABSENT:
            return ABSENT
        try:
            return part(value, path)
        except Missing as missing:
            raise OperatorFailed(f"'{name}': {missing}") from missing

    return read


MOST_KEY_CHARACTERS = 1_000


class Gives(msgspec.Struct, frozen=True, gc=False):
    value: object  # or ABSENT


class WantsCall(msgspec.Struct, frozen=True):
    """LLM call with this body, or call of a function or a processor with these arguments."""

    content: Mapping[str, object]
    signature: str


class WantsPrefill(msgspec.Struct, frozen=True):
    """Prefix of a node's prompt, which may be prefilled while certain operators run.

    It has no value.
    """

    part: PartialPrefill
    body: Mapping[str, object]
    node: str
    beside: frozenset[str]


Progress = list[Slot] | Gives | WantsCall | WantsPrefill


class Behaviour(Protocol):
    def step(self, frame: ValueFrame, phase: int) -> Progress:
        """Take the next step. Raises OperatorFailed: it has no value for this row."""


class GivesOfRow(msgspec.Struct, frozen=True):
    """Value of the row's input, or a constant."""

    of: Callable[[OpenRow], object]

    def step(self, frame: ValueFrame, phase: int) -> Progress:
        assert phase == 0
        return Gives(self.of(frame.row))


class Computes(msgspec.Struct, frozen=True):
    """Value or call computed from inputs alone."""

    inputs: ArgumentReader
    after: tuple[Located, ...]
    compute: Callable[[Mapping[str, object]], Gives | WantsCall]

    def step(self, frame: ValueFrame, phase: int) -> Progress:
        if phase == 0:
            return [at.of(frame) for at in (*self.after, *self.inputs.needs)]
        values = self.inputs.read(frame)
        if values is ABSENT:
            return Gives(ABSENT)
        assert isinstance(values, dict)
        return self.compute(values)


class BeginsPrompt(msgspec.Struct, frozen=True):
    """Fills in the known part of a prompt. It has no value, and cannot fail its row.

    `last_round`: of the loop whose next round the prompt belongs to; the frame is that of the round
    before.
    """

    part: PartialPrefill
    inputs: ArgumentReader
    last_round: int | None = None

    def step(self, frame: ValueFrame, phase: int) -> Progress:
        if phase == 0:
            return [at.of(frame) for at in self.inputs.needs]
        try:
            values = self.inputs.read(frame)
            if not isinstance(values, dict):
                return Gives(ABSENT)
            return self._wants(frame, values)
        except OperatorFailed:
            return Gives(ABSENT)

    def _wants(self, frame: ValueFrame, values: Mapping[str, object]) -> Progress:
        part = self.part
        if part.loop is None:
            return WantsPrefill(part, part.body(values), part.operator, part.beside)
        number, beside = 0, part.first_beside
        if self.last_round is not None:
            number, beside = frame.values[1] + 1, part.beside  # type: ignore[operator]
            if number > self.last_round:
                return Gives(ABSENT)
        node = f"{part.loop}.{number}.{part.operator}"
        body = part.body({**values, **dict.fromkeys(part.rounds, number)})
        return WantsPrefill(part, body, node, beside)


class Chooses(msgspec.Struct, frozen=True):
    """Filter and branch: an expression chooses an argument; no value if it chooses none."""

    inputs: ArgumentReader
    after: tuple[Located, ...]
    choose: Callable[[Mapping[str, object]], ArgumentReader | None]

    def step(self, frame: ValueFrame, phase: int) -> Progress:
        if phase == 0:
            return [at.of(frame) for at in (*self.after, *self.inputs.needs)]
        values = self.inputs.read(frame)
        if values is ABSENT:
            return Gives(ABSENT)
        assert isinstance(values, dict)
        chosen = self.choose(values)
        if chosen is None:
            return Gives(ABSENT)
        if phase == 1:
            return [at.of(frame) for at in chosen.needs]
        return Gives(chosen.read(frame))


class Loops(msgspec.Struct, frozen=True):
    """Loop whose rounds are unrolled one by one, until a round ends it."""

    slot: int
    start: ArgumentReader
    after: tuple[Located, ...]
    scope: "CompiledScope"
    result: ArgumentReader
    until: Expression | None
    until_inputs: ArgumentReader
    max_rounds: int

    def step(self, frame: ValueFrame, phase: int) -> Progress:
        if phase == 0:
            return [at.of(frame) for at in (*self.after, *self.start.needs)]
        if phase == 1:
            state = self.start.read(frame)
        else:
            (child,) = frame.children.pop(self.slot)
            state = self.result.read(child)
            if state is not ABSENT and self._ends(child, phase - 2):
                return Gives(state)
        if state is ABSENT:
            return Gives(ABSENT)
        child = self.scope.child(frame, self.slot, phase - 1, state)
        frame.children[self.slot] = [child]
        decides = self.until is not None and phase < self.max_rounds
        needs = (*self.result.needs, *(self.until_inputs.needs if decides else ()))
        return [at.of(child) for at in needs]

    def _ends(self, child: ValueFrame, number: int) -> bool:
        if number + 1 == self.max_rounds:
            return True
        if self.until is None:
            return False
        values = self.until_inputs.read(child)
        # The condition's inputs are absent: the loop ends with this state.
        return values is ABSENT or bool(self.until.value(values))  # type: ignore[arg-type]


class Maps(msgspec.Struct, frozen=True):
    """Map that computes all items concurrently."""

    slot: int
    over: ArgumentReader
    after: tuple[Located, ...]
    scope: "CompiledScope"
    result: ArgumentReader
    max_items: int
    early: bool  # items may begin before the list is whole
    batch: int | None  # an item is a list of this many texts

    def step(self, frame: ValueFrame, phase: int) -> Progress:
        if phase == 0:
            return [at.of(frame) for at in (*self.after, *self.over.needs)]
        if phase == 2:
            values = [self.result.read(child) for child in frame.children.pop(self.slot)]
            return Gives([value for value in values if value is not ABSENT])
        items = self.over.read(frame)
        if frame.row.early is not None:
            found = items if isinstance(items, list) else ()
            frame.row.early.keep_trials(frame.node(self.slot), found)
        if items is ABSENT:
            return Gives(ABSENT)
        if self.batch is not None:
            items = batches(items, self.batch)
        if not isinstance(items, list):
            raise OperatorFailed(f"a map goes over a list, and this is a {type_name(items)}")
        if len(items) > self.max_items:
            raise OperatorFailed(f"the list has {len(items)} items, {self.max_items} at most")
        children = [self.scope.child(frame, self.slot, at, item) for at, item in enumerate(items)]
        frame.children[self.slot] = children
        return [at.of(child) for child in children for at in self.result.needs]


def batches(items: object, size: int) -> list[object]:
    """Split a list into batches; anything else, or an empty list, is one batch.

    Raises OperatorFailed: the list has too many items.
    """
    if not isinstance(items, list) or not items:
        return [items]
    if len(items) > MOST_ITEMS:
        raise OperatorFailed(f"`texts` has {len(items)} texts, {MOST_ITEMS} at most")
    return [items[at : at + size] for at in range(0, len(items), size)]


class Outputs(msgspec.Struct, frozen=True):
    """Columns of a row's output; ABSENT if none of them has a value."""

    columns: tuple[tuple[str, ArgumentReader], ...]

    def step(self, frame: ValueFrame, phase: int) -> Progress:
        if phase == 0:
            return [at.of(frame) for _, reader in self.columns for at in reader.needs]
        values = {column: reader.read(frame) for column, reader in self.columns}
        if all(value is ABSENT for value in values.values()):
            return Gives(ABSENT)
        return Gives({col: None if value is ABSENT else value for col, value in values.items()})


class Gathers(msgspec.Struct, frozen=True):
    """Group of a row, with the value that it contributes."""

    by: Expression
    inputs: ArgumentReader
    value: ArgumentReader
    after: tuple[Located, ...]

    def step(self, frame: ValueFrame, phase: int) -> Progress:
        if phase == 0:
            needs = (*self.after, *self.inputs.needs, *self.value.needs)
            return [at.of(frame) for at in needs]
        inputs, value = self.inputs.read(frame), self.value.read(frame)
        if inputs is ABSENT or value is ABSENT:
            return Gives(ABSENT)
        key = as_text(self.by.value(inputs))  # type: ignore[arg-type]
        if len(key) > MOST_KEY_CHARACTERS:
            raise OperatorFailed(
                f"the key has {len(key)} characters, {MOST_KEY_CHARACTERS} at most"
            )
        return Gives((key, value))

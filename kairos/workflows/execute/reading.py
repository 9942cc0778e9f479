"""Readers of operators' arguments from frames, compiled once for all rows."""

from collections.abc import Callable, Mapping

import msgspec

from kairos.workflows.compile.invalid import OperatorFailed
from kairos.workflows.compile.operators import Argument, Constant, Path, Reference, References
from kairos.workflows.compile.values import Missing, part
from kairos.workflows.execute.frames import ABSENT, Slot, ValueFrame

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

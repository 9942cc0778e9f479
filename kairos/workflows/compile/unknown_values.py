"""Values of operators before a plan has run: JSON if known, else texts of known length.

Unknown values also have the calls that they wait for.
"""

from collections.abc import Mapping
from hashlib import blake2b

import msgspec

from kairos.core import BYTES_PER_TOKEN
from kairos.workflows.compile.operators import Argument, Constant, Reference, References
from kairos.workflows.compile.templates import Opaque, Static, template
from kairos.workflows.compile.values import Missing, as_text, part


class UnknownText(msgspec.Struct, frozen=True):
    """Unknown text. `identity`: equal for texts that will be the same."""

    identity: str
    tokens: float


Pieces = tuple[str | UnknownText, ...]


class Unknown(msgspec.Struct, frozen=True):
    """Unknown value. `after`: numbers of the calls that it waits for."""

    pieces: Pieces
    after: frozenset[int] = frozenset()


def is_known(value: object) -> bool:
    if isinstance(value, list):
        return all(map(is_known, value))
    return not isinstance(value, Unknown)


def after_of(value: object) -> frozenset[int]:
    if isinstance(value, list):
        return frozenset().union(*map(after_of, value))
    return value.after if isinstance(value, Unknown) else frozenset()


def given(argument: Argument, values: Mapping[str, object]) -> object:
    """Return the value of an argument; None if it is absent, or has no such part."""
    if isinstance(argument, Constant):
        return argument.value
    if isinstance(argument, References):
        found = [given(each, values) for each in argument.each if each.operator in values]
        return [each for each in found if each is not None]
    assert isinstance(argument, Reference)
    return _part(values.get(argument.operator), argument.path)


def filled(source: str, inputs: Mapping[str, object]) -> Pieces:
    """Return a template filled with these values.

    An opaque segment with an unknown value is an unknown text, as long as its values.

    Raises:
        OperatorFailed: it cannot be filled with the known values.
    """
    compiled = template(source)
    if all(is_known(inputs.get(use.name)) for use in compiled.uses):
        return (compiled.render(inputs),)
    found: list[str | UnknownText] = []
    for at, segment in enumerate(compiled.segments):
        if isinstance(segment, Static):
            found.append(segment.text)
        elif isinstance(segment, Opaque):
            found.append(_computed(f"{at} {source}", [inputs.get(name) for name in segment.uses]))
        else:
            found += _pieces_of(_part(inputs.get(segment.name), segment.path))
    return tuple(found)


def _part(value: object, path: tuple[str | int, ...]) -> object:
    if isinstance(value, Unknown):
        if not path:
            return value
        name = ".".join(map(str, path))
        texts = (each for each in value.pieces if isinstance(each, UnknownText))
        pieces = tuple(UnknownText(f"{each.identity}.{name}", each.tokens) for each in texts)
        return Unknown(pieces, value.after)
    try:
        return part(value, path)
    except Missing:
        return None


def _pieces_of(value: object) -> Pieces:
    if isinstance(value, Unknown):
        return value.pieces
    if isinstance(value, list) and not is_known(value):
        return tuple(piece for each in value for piece in _pieces_of(each))
    return (as_text(value),)


def _computed(identity: str, values: list[object]) -> UnknownText:
    hashed, tokens = blake2b(identity.encode(), digest_size=16), 0.0
    for piece in (piece for value in values for piece in _pieces_of(value)):
        if isinstance(piece, UnknownText):
            tokens += piece.tokens
            hashed.update(piece.identity.encode())
        else:
            tokens += len(piece.encode()) / BYTES_PER_TOKEN
            hashed.update(piece.encode("utf-8", "replace"))
    return UnknownText(hashed.hexdigest(), tokens)

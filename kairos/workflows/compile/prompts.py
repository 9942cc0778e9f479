"""Prompts of a flow's LLM operators as pieces, before any row is known.

Texts stand as they are, with constants and formats filled in; values that differ between rows, and
answers, are holes that name their source. Two prompts that begin with the same pieces begin alike
for every row. An expression in a template beyond a name is one piece, equal only to itself: such
prompts may share less than they could, never wrongly more.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

import msgspec

from kairos.workflows.compile.operators import (
    Argument,
    Constant,
    Data,
    Format,
    Generation,
    Operator,
    Reference,
    References,
)
from kairos.workflows.compile.references import referred
from kairos.workflows.compile.templates import Opaque, Segment, Static, template
from kairos.workflows.compile.values import Missing, as_text, part

# Of a format that is filled in where it is used; a larger one stays a hole.
_MOST_PIECES, _MOST_CHARACTERS = 200, 100_000


def beginning(messages: Iterable[tuple[str, str]]) -> dict[str, object]:
    """Return a chat completion that computes a prefix of prompts, and answers a single token.

    The answer is not used. `messages`: role and text; the last one may continue. With an engine
    that does not support that, the end of the prefix is not shared.
    """
    return {
        "messages": [{"role": role, "content": text} for role, text in messages],
        "temperature": 0.0,
        "max_tokens": 1,
        "add_generation_prompt": False,
        "continue_final_message": True,
    }


class Speaker(msgspec.Struct, frozen=True, tag=True):
    """Start of a message. Its text in a chat template differs by model, and is not counted here."""

    role: str


class Text(msgspec.Struct, frozen=True, tag=True):
    """Text that is the same for every row."""

    text: str


class Hole(msgspec.Struct, frozen=True, tag=True):
    """Value of an operator for the row, or a list of such; of a list the part `path`."""

    filled_by: Reference | References
    path: tuple[str | int, ...] = ()

    @property
    def label(self) -> str:
        return ", ".join(each.label for each in referred(self.filled_by))


class Computed(msgspec.Struct, frozen=True, tag=True):
    """Expression of a template. `identity`: of the template, the place in it, and the values."""

    identity: str
    label: str


Piece = Speaker | Text | Hole | Computed
Prompt = tuple[Piece, ...]


def prompts(operators: Sequence[Operator]) -> dict[str, Prompt]:
    """Return the prompt of each LLM operator by name, also in bodies, in their order.

    Operators must be in the order of `in_order`. Takes time linear in the result.
    """
    written = _Writing()
    return dict(written.all(operators))


class _Writing:
    def __init__(self) -> None:
        # Substitutes for an operator in a prompt: the text of data, the pieces of a format.
        self._data: dict[str, object] = {}
        self._formats: dict[str, Prompt] = {}

    def all(self, operators: Sequence[Operator]) -> Iterator[tuple[str, Prompt]]:
        for each in operators:
            params = each.params
            if isinstance(params, Data):
                self._data[each.name] = params.value
            elif isinstance(params, Format) and each.on_error != "default":
                pieces = joined(self._pieces(params.template, each.inputs))
                size = sum(len(piece.text) for piece in pieces if isinstance(piece, Text))
                if len(pieces) <= _MOST_PIECES and size <= _MOST_CHARACTERS:
                    self._formats[each.name] = pieces
            elif isinstance(params, Generation):
                yield each.name, joined(self._messages(params, each.inputs))
            yield from self.all(each.body)

    def _messages(self, params: Generation, inputs: Mapping[str, Argument]) -> Iterator[Piece]:
        for message in params.messages:
            yield Speaker(message.role)
            yield from self._pieces(message.template, inputs)

    def _pieces(self, source: str, inputs: Mapping[str, Argument]) -> Iterator[Piece]:
        for at, segment in enumerate(template(source).segments):
            yield from self._segment(source, at, segment, inputs)

    def _segment(
        self, source: str, at: int, segment: Segment, inputs: Mapping[str, Argument]
    ) -> Prompt:
        if isinstance(segment, Static):
            return (Text(segment.text),)
        if isinstance(segment, Opaque):
            values = {name: msgspec.to_builtins(inputs[name]) for name in segment.uses}
            identity = msgspec.json.encode([source, at, values], order="sorted").decode()
            return (Computed(identity, ", ".join(segment.uses)),)
        argument = inputs[segment.name]
        if isinstance(argument, References):
            return (Hole(argument, segment.path),)
        if isinstance(argument, Constant):
            return _constant(argument.value, segment.path)
        path = (*argument.path, *segment.path)
        if argument.operator in self._data:
            return _constant(self._data[argument.operator], path)
        if not path and argument.operator in self._formats:
            return self._formats[argument.operator]
        return (Hole(Reference(argument.operator, path)),)


def _constant(value: object, path: tuple[str | int, ...]) -> Prompt:
    try:
        return (Text(as_text(part(value, path))),)
    except Missing:
        return ()  # it fails for every row, with this message


def joined(pieces: Iterator[Piece] | Sequence[Piece]) -> Prompt:
    """Return the prompt with adjacent texts joined."""
    found: list[Piece] = []
    for is_text, group in groupby(pieces, lambda each: isinstance(each, Text)):
        if not is_text:
            found += group
        elif text := "".join(each.text for each in group if isinstance(each, Text)):
            found.append(Text(text))
    return tuple(found)

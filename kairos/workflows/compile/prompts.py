"""What the prompts of a flow's LLM operators consist of, from their beginnings on, before any row.

Texts stand as they are, with constants and formats put in; what differs between rows, and what is
answered, is a hole that says what will fill it. Two prompts that begin with the same pieces begin
alike for every row. What a template does beyond filling in names is one piece, which equals only
itself: it is shared less, never wrongly.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

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
from kairos.workflows.compile.templates import Opaque, Segment, Static, template
from kairos.workflows.compile.values import Missing, as_text, part

# Of one format that is put in where it is used; a larger one stays a hole.
_MOST_PIECES, _MOST_CHARACTERS = 200, 100_000


def beginning(messages: Iterable[tuple[str, str]]) -> dict[str, object]:
    """The body of a chat completion that computes what prompts begin with, and answers one token,
    which nobody needs. `messages`: role and text, of which the last may go on; where an engine does
    not know that it does, its end is not shared."""
    return {
        "messages": [{"role": role, "content": text} for role, text in messages],
        "temperature": 0.0,
        "max_tokens": 1,
        "add_generation_prompt": False,
        "continue_final_message": True,
    }


class Speaker(msgspec.Struct, frozen=True, tag=True):
    """A message begins. What a chat template writes for that differs by model, and counts nothing
    here."""

    role: str


class Text(msgspec.Struct, frozen=True, tag=True):
    """The same for every row."""

    text: str


class Hole(msgspec.Struct, frozen=True, tag=True):
    """What an operator gives for the row, or a list of such; of a list the part `path`."""

    filled_by: Reference | References
    path: tuple[str | int, ...] = ()

    @property
    def label(self) -> str:
        named = [".".join(map(str, (each.operator, *each.path))) for each in self.references]
        return ", ".join(named)

    @property
    def references(self) -> tuple[Reference, ...]:
        each = self.filled_by
        return each.each if isinstance(each, References) else (each,)


class Computed(msgspec.Struct, frozen=True, tag=True):
    """What a template makes of its values by more than their names. `identity`: of the template,
    the place in it, and the values."""

    identity: str
    label: str


Piece = Speaker | Text | Hole | Computed
Prompt = tuple[Piece, ...]


def prompts(operators: Sequence[Operator]) -> dict[str, Prompt]:
    """By name of each LLM operator, those in bodies too, in their order. Operators as `in_order`
    gives them: each after what it needs. Takes time linear in what comes out."""
    written = _Writing()
    return dict(written.all(operators))


class _Writing:
    def __init__(self) -> None:
        # What stands in a prompt for an operator: the text of data, the pieces of a format.
        self._data: dict[str, object] = {}
        self._formats: dict[str, Prompt] = {}

    def all(self, operators: Sequence[Operator]) -> Iterator[tuple[str, Prompt]]:
        for each in operators:
            params = each.params
            if isinstance(params, Data):
                self._data[each.name] = params.value
            elif isinstance(params, Format) and each.on_error != "default":
                pieces = joined(self._pieces(params.template, each.inputs))
                if len(pieces) <= _MOST_PIECES and _characters(pieces) <= _MOST_CHARACTERS:
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
        return ()  # it fails for every row, and says so there


def joined(pieces: Iterator[Piece] | Sequence[Piece]) -> Prompt:
    """The same prompt with texts side by side as one."""
    found: list[Piece] = []
    texts: list[str] = []
    for piece in pieces:
        if isinstance(piece, Text):
            texts.append(piece.text)
            continue
        if any(texts):
            found.append(Text("".join(texts)))
        texts = []
        found.append(piece)
    if any(texts):
        found.append(Text("".join(texts)))
    return tuple(found)


def _characters(pieces: Prompt) -> int:
    return sum(len(each.text) for each in pieces if isinstance(each, Text))

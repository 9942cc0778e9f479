"""Flows in YAML: the same operators, with errors that name the line and what would be right.

    flow: reports
    operators:
      doc: {kind: input}
      summarise:
        kind: llm
        prompt: "Summarise: {{ doc.text }}"
        max_tokens: 200
    outputs:
      summary: summarise

A name in a template that `inputs` does not bind is the operator of that name. Files have no code:
`call` names functions that the user has registered.

Only the JSON subset of YAML is read (`Document`): mappings, lists, texts, numbers, true, false and
null. A plain `yes`, `no` or `2024-05-01` is a text, keys are always texts as written, and tags are
refused. The text may come from anyone, so its size, depth and number of values are bounded; aliases
count each time they are used.
"""

import re
from collections.abc import Iterable
from typing import TypeVar

import msgspec
import yaml

from kairos.core import InvalidFile
from kairos.workflows.compile.check import check
from kairos.workflows.compile.invalid import InvalidFlow, meant_by
from kairos.workflows.compile.operators import Declaration, Operator, Output
from kairos.workflows.compile.query_settings import check_settable
from kairos.workflows.declare.yaml_operators import (
    KINDS,
    NOT_YET,
    Defaults,
    FlowEntry,
    OperatorEntry,
    Scope,
    argument_of,
    bind,
    params_of,
    scope_within,
)

_Struct = TypeVar("_Struct", bound=msgspec.Struct)

MOST_BYTES = 1024 * 1024
MOST_VALUES = 100_000
DEEPEST = 100

_INTEGER = re.compile(r"\A[-+]?(0|[1-9][0-9]{0,17})\Z")
_NUMBER = re.compile(r"\A[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]{1,3})?\Z")
_NAMED = {"": None, "~": None, "null": None, "true": True, "false": False}

Where = tuple[str | int, ...]  # keys and positions from the top


class Document(msgspec.Struct, frozen=True):
    """Parsed file. `lines`: of the keys of values; `texts`: where texts begin; both from 1 on."""

    value: object
    lines: dict[Where, int]
    texts: dict[Where, int]


def read_yaml(text: str, name: str = "flow.yaml") -> Declaration:
    """Read a flow, and check it.

    Raises:
        InvalidFile: it cannot be run; the message says where, and what would be right.
    """
    return _File(read_document(text, name), name).declaration()


def read_json(text: str, name: str) -> Declaration:
    """Read the same flow from JSON, as programs write it. Raises InvalidFile."""
    return _File(read_json_document(text, name), name).declaration()


class _File:
    def __init__(self, document: Document, name: str) -> None:
        self._document, self._name = document, name
        self._places: dict[str, Where] = {}  # of operators
        self._defaults = Defaults()

    def declaration(self) -> Declaration:
        top = self._struct(FlowEntry, self._document.value, ())
        self._defaults = self._struct(Defaults, top.defaults, ("defaults",))
        try:
            scope = {name: name for name in top.operators}
            operators = self._operators(top.operators, ("operators",), scope)
            outputs = tuple(
                Output(column, argument_of(None, "outputs", value, {}))
                for column, value in top.outputs.items()
            )
            declaration = Declaration(top.flow, operators, outputs, tuple(top.settable))
            check(declaration)
            check_settable(declaration)
        except InvalidFlow as error:
            raise InvalidFile(self._name, str(error), line=self._line(error)) from error
        return declaration

    def _operators(
        self, entries: dict[str, object], where: Where, scope: Scope
    ) -> tuple[Operator, ...]:
        found = []
        for name, entry in entries.items():
            self._places.setdefault(name, (*where, name))
            found.append(self._operator(name, entry, (*where, name), scope))
        return tuple(found)

    def _operator(self, name: str, value: object, where: Where, scope: Scope) -> Operator:
        entry = self._struct(self._kind(name, value, where), value, where)
        body = getattr(entry, "body", None)
        inner = scope_within(name, entry, body, scope) if body is not None else scope
        operators = self._operators(body, (*where, "body"), inner) if body is not None else ()
        params = params_of(name, entry, operators, (scope, inner), self._defaults)
        retries = getattr(entry, "retries", 0)
        if retries is None:
            retries = 0 if entry.kind == "call" else self._defaults.retries
        return Operator(
            name=name,
            params=params,
            inputs=bind(name, entry, params, scope),
            after=tuple(entry.after),
            on_error=getattr(entry, "on_error", "fail"),
            default=getattr(entry, "default", None),
            retries=retries,
        )

    def _kind(self, name: str, value: object, where: Where) -> type[OperatorEntry]:
        kind = value.get("kind") if isinstance(value, dict) else None
        if isinstance(kind, str) and kind in KINDS:
            return KINDS[kind]
        known = ", ".join(KINDS)
        problem = f"operator '{name[:100]}' has no kind; there are {known}"
        if kind in NOT_YET:
            problem = f"operator '{name[:100]}': kind '{kind}' is not here yet; there are {known}"
        elif kind == "output":
            problem = f"operator '{name[:100]}': what comes out stands under `outputs:` at the top"
        elif kind is not None:
            hint = meant_by(str(kind), list(KINDS))
            problem = f"operator '{name[:100]}': no kind '{str(kind)[:100]}'; {hint}"
        raise self._invalid(problem, (*where, "kind") if kind is not None else where)

    def _struct(self, type_: type[_Struct], value: object, where: Where) -> _Struct:
        """Convert an entry field by field, so that an error has its line."""
        what = f"operator '{where[-1]}'" if len(where) > 1 else where[0] if where else "the flow"
        if not isinstance(value, dict):
            raise self._invalid(f"{what} is a mapping of keys to values", where)
        fields = {each.name: each for each in msgspec.structs.fields(type_)}
        read: dict[str, object] = {}
        for key, each in value.items():
            if key not in fields:
                hint = meant_by(key, list(fields))
                raise self._invalid(f"{what} has no '{key[:100]}'; {hint}", (*where, key))
            try:
                read[key] = msgspec.convert(each, fields[key].type)
            except (msgspec.ValidationError, RecursionError) as error:
                text = str(error).replace("`", "").removesuffix(" - at $")
                raise self._invalid(f"{what}, {key}: {text}", (*where, key)) from error
        missing = [name for name, each in fields.items() if each.required and name not in value]
        if missing:
            raise self._invalid(f"{what} needs '{missing[0]}'", where)
        return type_(**read)

    def _invalid(self, problem: str, where: Where) -> InvalidFile:
        return InvalidFile(self._name, problem, line=self._document.lines.get(where))

    def _line(self, error: InvalidFlow) -> int | None:
        place = self._places.get(error.operator, ()) if error.operator else ()
        inner = (*place, *(error.key.split(".", 1) if error.key else ()))
        if error.key and inner in self._document.texts:
            return self._document.texts[inner] + error.offset
        return self._document.lines.get(place)


def read_document(text: str, name: str) -> Document:
    """Parse YAML. Raises InvalidFile: it is not such YAML, or too large; the message says where."""
    if len(text.encode()) > MOST_BYTES:
        raise InvalidFile(name, f"it is longer than {MOST_BYTES} bytes")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        _check_depth(text, loader, name)
        node = yaml.compose(text, Loader=loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else None
        raise InvalidFile(name, f"it is not YAML: {error.problem}", line=line) from error
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise InvalidFile(name, f"it is not YAML: {str(error)[:200]}") from error
    if node is None:
        raise InvalidFile(name, "it is empty")
    document = Document(None, {}, {})
    value = _Values(name, document).of(node, ())
    return msgspec.structs.replace(document, value=value)


def read_json_document(text: str, name: str) -> Document:
    """Parse JSON within the same bounds, without lines. Raises InvalidFile."""
    if len(text.encode()) > MOST_BYTES:
        raise InvalidFile(name, f"it is longer than {MOST_BYTES} bytes")
    try:
        value: object = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidFile(name, f"it is not JSON: {error}") from error
    level, depth, values = [value], 0, 1
    while level := [each for around in level for each in _within(around)]:
        depth, values = depth + 1, values + len(level)
        if depth > DEEPEST or values > MOST_VALUES:
            problem = f"it has over {MOST_VALUES} values, or is nested over {DEEPEST} deep"
            raise InvalidFile(name, problem)
    return Document(value, {}, {})


def _within(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _check_depth(text: str, loader: type[yaml.SafeLoader], name: str) -> None:
    """Check the depth before anything recurses into the document.

    PyYAML's C composer crashes the process at a depth where Python's own raises.
    """
    depth = 0
    for event in yaml.parse(text, Loader=loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > DEEPEST:
                line = event.start_mark.line + 1 if event.start_mark else None
                raise InvalidFile(name, f"it is nested over {DEEPEST} deep", line=line)
        depth -= isinstance(event, yaml.CollectionEndEvent)


class _Values:
    def __init__(self, name: str, document: Document) -> None:
        self._name, self._document = name, document
        self._left = MOST_VALUES

    def of(self, node: yaml.Node, where: Where) -> object:
        self._left -= 1
        line = node.start_mark.line + 1
        if self._left < 0 or len(where) > DEEPEST:
            problem = f"it has over {MOST_VALUES} values, or is nested over {DEEPEST} deep"
            raise InvalidFile(self._name, problem, line=line)
        self._document.lines.setdefault(where, line)
        block = isinstance(node, yaml.ScalarNode) and node.style in ("|", ">")
        self._document.texts[where] = line + block
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, where)
        if isinstance(node, yaml.SequenceNode):
            return [self.of(each, (*where, at)) for at, each in enumerate(node.value)]
        assert isinstance(node, yaml.ScalarNode)
        return _scalar(node)

    def _mapping(self, node: yaml.MappingNode, where: Where) -> dict[str, object]:
        found: dict[str, object] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                raise InvalidFile(self._name, "a key is a text", line=line)
            if key.value in found:
                problem = f"'{key.value[:100]}' is there twice"
                raise InvalidFile(self._name, problem, line=line)
            inner = (*where, key.value)
            self._document.lines[inner] = line
            found[key.value] = self.of(value, inner)
        return found


def _scalar(node: yaml.ScalarNode) -> object:
    text = str(node.value)
    if node.style:  # in quotes, or a block
        return text
    if text.lower() in _NAMED and text in (text.lower(), text.title(), text.upper()):
        return _NAMED[text.lower()]
    if _INTEGER.match(text):
        return int(text)
    return float(text) if _NUMBER.match(text) else text

"""YAML as plain values, with the line of each.

Only the JSON subset of YAML is read: mappings, lists, texts, numbers, true, false and null. A plain
`yes`, `no` or `2024-05-01` is a text, keys are always texts as written, and tags are refused. The
text may come from anyone, so its size, depth and number of values are bounded; aliases count each
time they are used.
"""

import re
from collections.abc import Iterable

import msgspec
import yaml

from kairos.core import InvalidFile

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

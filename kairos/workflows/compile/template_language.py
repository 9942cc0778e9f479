"""Subset of Jinja for templates and expressions.

A flow may come from anyone, so its templates run in a sandbox narrower than Jinja's own. Values are
JSON: `a.b` is the key `b` of an object, never an attribute of a Python object, so there is nothing
to escape to, and a column called `items` is that column. Nothing can be called. Assignment and
multiplication are not allowed; filters are the ones below. Work is counted: steps of loops by the
size of their bodies, and operations that scan a value, such as filters and comparisons, by the size
of the value. So time and memory are bounded.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain

import msgspec
from jinja2 import StrictUndefined, Undefined, nodes, pass_context
from jinja2.exceptions import TemplateError
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment

from kairos.workflows.compile.values import Missing, as_text, part, type_name

MOST_SOURCE_BYTES = 256 * 1024
MOST_OUTPUT_BYTES = 10 * 1024 * 1024
MOST_LOOP_STEPS = 100_000
# Units: a visited part of a template, or of a value: an item, or 16 characters. This many take
# seconds.
MOST_WORK, _CHARACTERS = 20_000_000, 16
_ONE_PART = frozenset({int, float, bool, type(None)})
DEEPEST_NESTING, DEEPEST_LOOPS = 60, 3

# Names of the counter, and of filters that count: no template can use them.
WORK, COUNTED, SIZED = " work", " counted", " sized"

ALLOWED_NODES = (
    nodes.Template, nodes.Output, nodes.TemplateData, nodes.Name, nodes.Const, nodes.Getattr,
    nodes.Getitem, nodes.Slice, nodes.Filter, nodes.Test, nodes.If, nodes.For, nodes.Compare,
    nodes.Operand, nodes.And, nodes.Or, nodes.Not, nodes.CondExpr, nodes.List, nodes.Tuple,
    nodes.Add, nodes.Sub, nodes.Neg, nodes.Keyword,
)  # fmt: skip
ALLOWED_TESTS = (
    "defined", "undefined", "none", "string", "number", "boolean", "mapping", "sequence", "in",
    "even", "odd", "eq", "ne", "lt", "le", "gt", "ge",
)  # fmt: skip
_OF_LOOPS = frozenset({"index", "index0", "revindex", "revindex0", "first", "last", "length"})


class TemplateWork:
    """Remaining work of one rendering, or of several together."""

    def __init__(self) -> None:
        self._steps_left, self._left = MOST_LOOP_STEPS, MOST_WORK

    def step(self, parts: int) -> None:
        """Count a step of a loop with `parts` parts in its body. Raises TemplateError."""
        self._steps_left -= 1
        if self._steps_left < 0:
            raise TemplateError(f"its loops take more than {MOST_LOOP_STEPS} steps")
        self._spend(parts)

    def go_through(self, value: object) -> None:
        """Count a scan of a value, as far as there is work left. Raises TemplateError."""
        self._spend(_size(value, self._left))

    def write(self, value: object) -> None:
        """Count a value that becomes text, at least two bytes a part. Raises TemplateError."""
        most = MOST_OUTPUT_BYTES // 2
        size = _size(value, min(most, self._left))
        self._spend(size)
        if size > most:
            raise TemplateError(f"it is longer than {MOST_OUTPUT_BYTES} bytes")

    def _spend(self, parts: int) -> None:
        self._left -= parts
        if self._left < 0:
            raise TemplateError("it computes too much: loop less, or over shorter values")


def _size(value: object, most: int, known: dict[int, int] | None = None) -> int:
    """Return the number of a value's parts, or at once a number above `most`.

    A list may occur in it many times, so it may have more parts than there is memory: `known` has
    the sizes of lists and objects by id, and each is scanned once.
    """
    if isinstance(value, str):
        return len(value) // _CHARACTERS
    if not isinstance(value, list | tuple | Mapping):
        return 0
    known = {} if known is None else known
    if (size := known.get(id(value))) is not None:
        return size
    size = len(value)
    parts = chain(value, value.values()) if isinstance(value, Mapping) else value
    for each in parts:
        if size > most:
            break
        if type(each) not in _ONE_PART:
            size += _size(each, most - size, known)
    known[id(value)] = size
    return size


class JsonEnvironment(ImmutableSandboxedEnvironment):
    """Jinja environment with JSON values only."""

    def __init__(self) -> None:
        super().__init__(undefined=StrictUndefined, finalize=_finalize, cache_size=0)
        self.globals.clear()
        self.filters = {COUNTED: _counted, SIZED: _sized} | {
            name: of if name in _AT_ONCE else _metered(of) for name, of in FILTERS.items()
        }
        self.tests = {name: self.tests[name] for name in ALLOWED_TESTS}
        self.tests |= {"even": _is_even, "odd": lambda value: not _is_even(value)}

    def getattr(self, obj: object, attribute: str) -> object:
        if isinstance(obj, LoopContext) and attribute in _OF_LOOPS:
            return getattr(obj, attribute)
        return self.getitem(obj, attribute)

    def getitem(self, obj: object, argument: object) -> object:
        if isinstance(obj, Undefined):
            return obj[argument]  # raises, and names the missing value
        if isinstance(argument, slice) and isinstance(obj, str | list):
            return obj[argument]
        if isinstance(argument, str | int):
            try:
                return part(obj, (argument,))
            except Missing as missing:
                return self.undefined(str(missing), obj=obj, name=str(argument))
        return self.undefined(f"a {type_name(obj)} has no such part", obj=obj)


@pass_context
def _finalize(context: Context, value: object) -> object:
    """Write the value of an expression. Undefined raises where Jinja turns it to text."""
    if isinstance(value, str | Undefined):
        return value
    if isinstance(value, list | tuple | Mapping):  # before it is encoded, which may take for ever
        _work_of(context).write(value)
    return as_text(value)


def _is_even(value: object) -> bool:
    """Return whether a number is even. For a text, Jinja's own test would format it."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        kind = type_name(value)
        raise TemplateError(f"`is even` and `is odd` are about numbers: this is a {kind}")
    return value % 2 == 0


def _work_of(context: Context) -> TemplateWork:
    work = context.get(WORK)
    assert isinstance(work, TemplateWork)
    return work


@pass_context
def _counted(context: Context, items: object, parts: int) -> Iterator[object]:
    work = _work_of(context)
    for item in _items_of(items):
        work.step(parts)
        yield item


@pass_context
def _sized(context: Context, value: object) -> object:
    _work_of(context).go_through(value)
    return value


def _metered(of: Callable[..., object]) -> Callable[..., object]:
    @pass_context
    def filtered(context: Context, value: object, *rest: object, **named: object) -> object:
        work = _work_of(context)
        work.go_through(value)
        result = of(value, *rest, **named)
        work.go_through(result)
        return result

    return filtered


def _items_of(value: object) -> Iterable[object]:
    if isinstance(value, Undefined):
        return iter(value)  # raises, and names the missing value
    if isinstance(value, list | tuple):
        return value
    if isinstance(value, Mapping):
        return list(value)
    raise TemplateError(f"a loop goes over a list, and this is a {type_name(value)}")


def _join(value: object, separator: str = "", attribute: str | None = None) -> str:
    parts = list(_items_of(value))
    if attribute is not None:
        try:
            parts = [part(each, (attribute,)) for each in parts]
        except Missing as missing:
            raise TemplateError(f"join: {missing}") from missing
    texts = [as_text(each) for each in parts]
    if sum(map(len, texts)) + len(separator) * len(texts) > MOST_OUTPUT_BYTES:
        raise TemplateError(f"it is longer than {MOST_OUTPUT_BYTES} bytes")
    return separator.join(texts)


def _defined(value: object) -> object:
    if isinstance(value, Undefined):
        str(value)  # raises, and names the missing value
    return value


def _text(value: object) -> str:
    return as_text(_defined(value))


def _default(value: object, other: object = "") -> object:
    """Return `other` for null, too, as empty cells of a table are null."""
    return other if value is None or isinstance(value, Undefined) else value


def _length(value: object) -> int:
    return len(_defined(value))  # type: ignore[arg-type]


def _number(value: object) -> object:
    """Return the number in a text; a number as it is."""
    if isinstance(value, int | float):
        return value
    text = _text(value).strip()[:64]
    return int(text) if text.lstrip("+-").isdecimal() else float(text)


_AT_ONCE = frozenset({"default", "first", "length"})  # filters that scan nothing
FILTERS: dict[str, Callable[..., object]] = {
    "join": _join,
    "default": _default,
    "length": _length,
    "first": lambda value: next(iter(_items_of(value)), None),
    "last": lambda value: next(iter(list(_items_of(value))[::-1]), None),
    "number": _number,
    "items": lambda value: [list(pair) for pair in value.items()],
    "upper": lambda value: _text(value).upper(),
    "lower": lambda value: _text(value).lower(),
    "trim": lambda value: _text(value).strip(),
    "lines": lambda value: [line for line in _text(value).splitlines() if line.strip()],
    "tojson": lambda value: msgspec.json.encode(_defined(value)).decode(),
}

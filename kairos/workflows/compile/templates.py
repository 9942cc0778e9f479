"""Templates and expressions of a flow, compiled.

A template is a list of segments: `Static` text, a `Slot` that one value fills as it is, and
`Opaque` ones, known only by the values they need. Known segments let passes detect equal templates;
opaque ones are shared less, never wrongly.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache

import msgspec
from jinja2 import Template as JinjaTemplate
from jinja2 import Undefined, nodes
from jinja2.exceptions import TemplateError, TemplateSyntaxError
from jinja2.parser import Parser

from kairos.workflows.compile.invalid import OperatorFailed
from kairos.workflows.compile.operators import Path
from kairos.workflows.compile.template_check import Uses, checked, meter, path_of
from kairos.workflows.compile.template_language import (
    MOST_OUTPUT_BYTES,
    MOST_SOURCE_BYTES,
    WORK,
    JsonEnvironment,
    TemplateWork,
)
from kairos.workflows.compile.values import Missing, as_text, part


class BadTemplate(Exception):
    """A template or an expression is invalid; `line` counts from its own first."""

    def __init__(self, problem: str, line: int = 1) -> None:
        super().__init__(problem)
        self.line = line


class Static(msgspec.Struct, frozen=True, tag=True):
    text: str


class Slot(msgspec.Struct, frozen=True, tag=True):
    name: str
    path: Path


class Opaque(msgspec.Struct, frozen=True, tag=True):
    uses: tuple[str, ...]  # names


Segment = Static | Slot | Opaque

_KEPT = 1_024  # templates, and expressions

# Errors that a value may cause in the allowed subset of Jinja: each fails one row.
_FAILURES = (
    TemplateError, TypeError, ValueError, KeyError, OverflowError, RecursionError, AttributeError,
    MemoryError,
)  # fmt: skip


class Template:
    """Text with places for values. `uses`: names, and parts of them, that it needs.

    Raises:
        BadTemplate: it is not in the language, or too large.
    """

    def __init__(self, source: str) -> None:
        self._environment = JsonEnvironment()
        self._tree = _parsed(self._environment, source, expression=False)
        self.source = source
        self.uses = _uses(self._tree)
        self.segments = tuple(_segments(self._tree))
        self._beginnings: dict[int, JinjaTemplate] = {}  # with opaque ones, by number
        self._opaque = any(isinstance(each, Opaque) for each in self.segments)
        meter(self._tree)

    @cached_property
    def _compiled(self) -> JinjaTemplate:
        return _compiled(self._environment, self._tree)

    def beginning(
        self, count: int, values: Mapping[str, object], work: TemplateWork | None = None
    ) -> str:
        """Fill only the first segments, with values of the names that these use.

        Raises: as `render`.
        """
        segments = self.segments[:count]
        try:
            if any(isinstance(each, Opaque) for each in segments):
                begun = self._beginning(count)
                return _joined(begun.generate({**values, WORK: work or TemplateWork()}))
            return _joined(_filled(each, values) for each in segments)
        except (Missing, *_FAILURES) as error:
            raise OperatorFailed(f"the template cannot be filled: {error}") from error

    def _beginning(self, count: int) -> JinjaTemplate:
        if count not in self._beginnings:
            tree = _parsed(self._environment, self.source, expression=False)
            groups = list(_grouped(tree))[:count]
            tree.body = [each for group in groups for each in _statements(group)]
            meter(tree)
            self._beginnings[count] = _compiled(self._environment, tree)
        return self._beginnings[count]

    def render(self, values: Mapping[str, object], work: TemplateWork | None = None) -> str:
        """Fill the template. `values`: by name; `work`: limit shared by several; None: its own.

        Raises:
            OperatorFailed: a value lacks a part, or has a wrong type.
        """
        try:
            if self._opaque:
                return _joined(self._compiled.generate({**values, WORK: work or TemplateWork()}))
            return _joined(_filled(each, values) for each in self.segments)
        except (Missing, *_FAILURES) as error:
            raise OperatorFailed(f"the template cannot be filled: {error}") from error


class Expression:
    """Jinja expression, evaluated to a value instead of a text.

    Raises:
        BadTemplate: as for a template.
    """

    def __init__(self, source: str) -> None:
        self._environment = JsonEnvironment()
        self._tree = _parsed(self._environment, source, expression=True)
        self.source = source
        (result,) = self._tree.body
        assert isinstance(result, nodes.Assign)
        self.uses = _uses(result.node)
        self._path = path_of(result.node)
        meter(self._tree)

    @cached_property
    def _compiled(self) -> JinjaTemplate:
        return _compiled(self._environment, self._tree)

    def value(self, values: Mapping[str, object]) -> object:
        """Return the value. Raises OperatorFailed: a value lacks a part, or has a wrong type."""
        try:
            if self._path:
                name, path = self._path
                return part(values[name], path)
            context = self._compiled.new_context({**values, WORK: TemplateWork()})
            for _ in self._compiled.root_render_func(context):
                pass
            result = context.vars["result"]
            if isinstance(result, Undefined):
                str(result)  # raises, and names the missing value
        except (Missing, *_FAILURES) as error:
            raise OperatorFailed(f"`{self.source[:100]}` has no value: {error}") from error
        return list(result) if isinstance(result, tuple) else result


def _filled(segment: Segment, values: Mapping[str, object]) -> str:
    assert not isinstance(segment, Opaque)
    if isinstance(segment, Static):
        return segment.text
    return as_text(part(values[segment.name], segment.path))


def template(source: str) -> Template:
    """Return the compiled template of a source, cached: checks, passes and the executor use it.

    Raises:
        BadTemplate: as `Template`.
    """
    return _template(source)


def expression(source: str) -> Expression:
    """Return the compiled expression of a source, cached."""
    return _expression(source)


_template = lru_cache(maxsize=_KEPT)(Template)
_expression = lru_cache(maxsize=_KEPT)(Expression)


def _parsed(environment: JsonEnvironment, source: str, *, expression: bool) -> nodes.Template:
    if len(source.encode()) > MOST_SOURCE_BYTES:
        raise BadTemplate(f"it is longer than {MOST_SOURCE_BYTES} bytes")
    try:
        if not expression:
            return environment.parse(source)
        parser = Parser(environment, source, state="variable")
        parsed = parser.parse_expression()
        if not parser.stream.eos:
            raise BadTemplate(f"`{source[:100]}` is more than one expression")
    except TemplateSyntaxError as error:
        raise BadTemplate(error.message or "it is not Jinja", error.lineno) from error
    except (RecursionError, ValueError, OverflowError) as error:
        raise BadTemplate("it is nested too deeply, or has a number beyond any use") from error
    parsed.set_environment(environment)
    assign = nodes.Assign(nodes.Name("result", "store"), parsed, lineno=1)
    return nodes.Template([assign], lineno=1)


def _uses(tree: nodes.Node) -> Uses:
    try:
        return checked(tree)
    except TemplateSyntaxError as error:
        raise BadTemplate(error.message or "it is not of the language", error.lineno) from error


def _compiled(environment: JsonEnvironment, tree: nodes.Template) -> JinjaTemplate:
    try:
        code = environment.compile(tree)
    except (TemplateError, SyntaxError, RecursionError, MemoryError) as error:
        raise BadTemplate(f"it cannot be compiled: {error}") from error
    return JinjaTemplate.from_code(environment, code, {})


def _segments(tree: nodes.Template) -> Iterator[Segment]:
    for group in _grouped(tree):
        if isinstance(group[0], nodes.TemplateData):
            yield Static(
                "".join(each.data for each in group if isinstance(each, nodes.TemplateData))
            )
            continue
        slot = path_of(group[0])
        uses = {use.name for use in checked(group[0])}
        yield Slot(*slot) if slot else Opaque(tuple(sorted(uses)))


def _grouped(tree: nodes.Template) -> Iterator[list[nodes.Node]]:
    """Yield the nodes of each segment: adjacent texts are one."""
    texts: list[nodes.Node] = []
    for statement in tree.body:
        for node in statement.nodes if isinstance(statement, nodes.Output) else [statement]:
            if isinstance(node, nodes.TemplateData):
                if node.data:
                    texts.append(node)
                continue
            if texts:
                yield texts
                texts = []
            yield [node]
    if texts:
        yield texts


def _statements(group: Sequence[nodes.Node]) -> Iterator[nodes.Node]:
    """Yield the nodes of a segment as statements."""
    for each in group:
        is_output = isinstance(each, nodes.Expr | nodes.TemplateData)
        yield nodes.Output([each], lineno=each.lineno) if is_output else each


def _joined(pieces: Iterable[str]) -> str:
    """Join pieces. Raises TemplateError as soon as they are too long together."""
    found, size = [], 0
    for piece in pieces:
        size += len(piece)
        if size > MOST_OUTPUT_BYTES:
            raise TemplateError(f"it is longer than {MOST_OUTPUT_BYTES} bytes")
        found.append(piece)
    return "".join(found)

"""Templates and expressions of a flow: checked for their language, and compiled.

A template is a list of segments: `Static` text, a `Slot` that one value fills as it is, and
`Opaque` ones, known only by the values they need (`Uses`). Known segments let passes detect equal
templates; opaque ones are shared less, never wrongly.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property, lru_cache
from itertools import chain, groupby, islice

import msgspec
from jinja2 import Template as JinjaTemplate
from jinja2 import Undefined, nodes
from jinja2.exceptions import TemplateError, TemplateSyntaxError
from jinja2.parser import Parser
from jinja2.visitor import NodeTransformer

from kairos.workflows.compile.invalid import OperatorFailed
from kairos.workflows.compile.operators import Path
from kairos.workflows.compile.template_language import (
    ALLOWED_NODES,
    ALLOWED_TESTS,
    COUNTED,
    DEEPEST_LOOPS,
    DEEPEST_NESTING,
    FILTERS,
    MOST_OUTPUT_BYTES,
    MOST_SOURCE_BYTES,
    SIZED,
    WORK,
    JsonEnvironment,
    TemplateWork,
)
from kairos.workflows.compile.values import Missing, as_text, part

_INSTEAD = {
    nodes.Call: "functions and methods cannot be called; use a filter, or an operator of kind call",
    nodes.Concat: "`~` is not known here; write the parts one after the other",
    nodes.Mul: "`*` is not known here",
    nodes.Assign: "`set` is not known here",
    nodes.Include: "`include` is not known here: a template stands for itself",
    nodes.Extends: "`extends` is not known here: a template stands for itself",
    nodes.Import: "`import` is not known here: a template stands for itself",
    nodes.Macro: "`macro` is not known here",
}


class NameUse(msgspec.Struct, frozen=True):
    """Value that a template needs, or a part of it. With `optional` the part may be missing."""

    name: str
    path: Path = ()
    optional: bool = False


Uses = frozenset[NameUse]


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
        tree = _parsed(self._environment, source, expression=False)
        self.source = source
        self.uses = _uses(tree)
        self.segments = tuple(_segments(tree))
        opaque = (at for at, each in enumerate(self.segments) if isinstance(each, Opaque))
        self._known = next(opaque, len(self.segments))  # segments before the first opaque one
        self._compiled: dict[int, JinjaTemplate] = {}  # with opaque ones, by number of segments

    def beginning(
        self, count: int, values: Mapping[str, object], work: TemplateWork | None = None
    ) -> str:
        """Fill only the first segments, with values of the names that these use.

        Raises: as `render`.
        """
        try:
            if count > self._known:
                begun = self._beginning(count)
                return _joined(begun.generate({**values, WORK: work or TemplateWork()}))
            return _joined(_filled(each, values) for each in self.segments[:count])
        except (Missing, *_FAILURES) as error:
            raise OperatorFailed(f"the template cannot be filled: {error}") from error

    def _beginning(self, count: int) -> JinjaTemplate:
        if count not in self._compiled:
            tree = _parsed(self._environment, self.source, expression=False)
            tree.body = [
                nodes.Output([each], lineno=each.lineno)
                if isinstance(each, nodes.Expr | nodes.TemplateData)
                else each
                for each in chain(*islice(_grouped(tree), count))
            ]
            _Meter().visit(tree)
            self._compiled[count] = _compiled(self._environment, tree)
        return self._compiled[count]

    def render(self, values: Mapping[str, object], work: TemplateWork | None = None) -> str:
        """Fill the template. `values`: by name; `work`: limit shared by several; None: its own.

        Raises:
            OperatorFailed: a value lacks a part, or has a wrong type.
        """
        return self.beginning(len(self.segments), values, work)


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
        self._path = _path_of(result.node)
        _Meter().visit(self._tree)

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


@lru_cache(maxsize=_KEPT)
def template(source: str) -> Template:
    """Return the compiled template of a source, cached: checks, passes and the executor use it.

    Raises:
        BadTemplate: as `Template`.
    """
    return Template(source)


@lru_cache(maxsize=_KEPT)
def expression(source: str) -> Expression:
    """Return the compiled expression of a source, cached."""
    return Expression(source)


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
    """Return the values that a syntax tree needs. Raises BadTemplate: it is not in the language."""
    try:
        return frozenset(_tree_uses(tree, frozenset(), depth=0, loops=0))
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
        slot = _path_of(group[0])
        uses = {use.name for use in _uses(group[0])}
        yield Slot(*slot) if slot else Opaque(tuple(sorted(uses)))


def _grouped(tree: nodes.Template) -> Iterator[list[nodes.Node]]:
    """Yield the nodes of each segment: adjacent texts are one."""
    statements = (each.nodes if isinstance(each, nodes.Output) else [each] for each in tree.body)
    kept = (
        each for each in chain(*statements) if not isinstance(each, nodes.TemplateData) or each.data
    )
    for is_text, group in groupby(kept, lambda each: isinstance(each, nodes.TemplateData)):
        found = [*group]
        yield from [found] if is_text else ([each] for each in found)


def _joined(pieces: Iterable[str]) -> str:
    """Join pieces. Raises TemplateError as soon as they are too long together."""
    found, size = [], 0
    for piece in pieces:
        size += len(piece)
        if size > MOST_OUTPUT_BYTES:
            raise TemplateError(f"it is longer than {MOST_OUTPUT_BYTES} bytes")
        found.append(piece)
    return "".join(found)


def _path_of(node: nodes.Node) -> tuple[str, Path] | None:
    """Return the name and the path of a node that is just that; None for any other."""
    if isinstance(node, nodes.Name):
        return (node.name, ())
    if isinstance(node, nodes.Getattr):
        key: object = node.attr
    elif isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const):
        key = node.arg.value
    else:
        return None
    before = _path_of(node.node)
    if before is None or not isinstance(key, str | int) or isinstance(key, bool):
        return None
    return before[0], (*before[1], key)


def _tree_uses(
    node: nodes.Node, bound: frozenset[str], *, depth: int, loops: int
) -> Iterator[NameUse]:
    _check(node, depth, loops)
    if isinstance(node, nodes.For):
        yield from _uses_of_loop(node, bound, depth, loops)
        return
    path = _path_of(node)
    if path:
        if path[0] not in bound:
            yield NameUse(*path)
        return
    optional = (isinstance(node, nodes.Test) and node.name in ("defined", "undefined")) or (
        isinstance(node, nodes.Filter) and node.name == "default"
    )
    for child in node.iter_child_nodes():
        of = _path_of(child) if optional else None
        if of and of[0] not in bound:
            yield NameUse(*of, optional=True)
        else:
            yield from _tree_uses(child, bound, depth=depth + 1, loops=loops)


def _uses_of_loop(
    node: nodes.For, bound: frozenset[str], depth: int, loops: int
) -> Iterator[NameUse]:
    yield from _tree_uses(node.iter, bound, depth=depth + 1, loops=loops)
    targets = (node.target, *node.target.find_all(nodes.Name))
    within = bound | {each.name for each in targets if isinstance(each, nodes.Name)} | {"loop"}
    for child in (*node.body, *([node.test] if node.test else [])):
        yield from _tree_uses(child, within, depth=depth + 1, loops=loops + 1)
    for child in node.else_:
        yield from _tree_uses(child, bound, depth=depth + 1, loops=loops)


def _check(node: nodes.Node, depth: int, loops: int) -> None:
    if depth > DEEPEST_NESTING:
        raise TemplateSyntaxError(f"it is nested more than {DEEPEST_NESTING} deep", node.lineno)
    if not isinstance(node, ALLOWED_NODES):
        what = _INSTEAD.get(type(node), f"`{type(node).__name__}` is not known here")
        raise TemplateSyntaxError(what, node.lineno)
    if isinstance(node, nodes.Filter) and node.name not in FILTERS:
        known = ", ".join(sorted(FILTERS))
        raise TemplateSyntaxError(f"no filter '{node.name}'; there are {known}", node.lineno)
    if isinstance(node, nodes.Test) and node.name not in ALLOWED_TESTS:
        known = ", ".join(sorted(ALLOWED_TESTS))
        raise TemplateSyntaxError(f"no test '{node.name}'; there are {known}", node.lineno)
    if isinstance(node, nodes.For) and (loops >= DEEPEST_LOOPS or node.recursive):
        raise TemplateSyntaxError(
            f"loops are nested more than {DEEPEST_LOOPS} deep, or recursive", node.lineno
        )


class _Meter(NodeTransformer):
    """Makes a checked tree count its work (`template_language.TemplateWork`)."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        within = [*node.body, *([node.test] if node.test else [])]
        parts = sum(1 + sum(1 for _ in each.find_all(nodes.Node)) for each in within)
        node.iter = _filtered(node.iter, COUNTED, nodes.Const(parts))
        return node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.expr = _sized(node.expr)
        for operand in node.ops:
            operand.expr = _sized(operand.expr)
        return node

    def visit_Add(self, node: nodes.Add) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.left, node.right = _sized(node.left), _sized(node.right)
        return node

    def visit_Test(self, node: nodes.Test) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        if node.args:
            node.node = _sized(node.node)
            node.args = [_sized(each) for each in node.args]
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _sized(node) if isinstance(node.arg, nodes.Slice) else node


def _sized(node: nodes.Expr) -> nodes.Expr:
    return node if isinstance(node, nodes.Const) else _filtered(node, SIZED)


def _filtered(node: nodes.Node, filter_name: str, *arguments: nodes.Expr) -> nodes.Expr:
    made = nodes.Filter(node, filter_name, list(arguments), [], None, None, lineno=node.lineno)
    assert node.environment is not None
    made.set_environment(node.environment)
    return made

"""Check that a template is in the language, and find the values it needs."""

from collections.abc import Iterator

import msgspec
from jinja2 import nodes
from jinja2.exceptions import TemplateSyntaxError
from jinja2.visitor import NodeTransformer

from kairos.workflows.compile.operators import Path
from kairos.workflows.compile.template_language import (
    ALLOWED_NODES,
    ALLOWED_TESTS,
    COUNTED,
    DEEPEST_LOOPS,
    DEEPEST_NESTING,
    FILTERS,
    SIZED,
)

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


def checked(tree: nodes.Node) -> Uses:
    """Return the values that a syntax tree needs.

    Raises:
        TemplateSyntaxError: it is not in the language.
    """
    return frozenset(_uses(tree, frozenset(), depth=0, loops=0))


def path_of(node: nodes.Node) -> tuple[str, Path] | None:
    """Return the name and the path of a node that is just that; None for any other."""
    if isinstance(node, nodes.Name):
        return (node.name, ())
    if isinstance(node, nodes.Getattr):
        key: object = node.attr
    elif isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const):
        key = node.arg.value
    else:
        return None
    before = path_of(node.node)
    if before is None or not isinstance(key, str | int) or isinstance(key, bool):
        return None
    return before[0], (*before[1], key)


def _uses(node: nodes.Node, bound: frozenset[str], *, depth: int, loops: int) -> Iterator[NameUse]:
    _check(node, depth, loops)
    if isinstance(node, nodes.For):
        yield from _uses_of_loop(node, bound, depth, loops)
        return
    path = path_of(node)
    if path:
        if path[0] not in bound:
            yield NameUse(*path)
        return
    optional = (isinstance(node, nodes.Test) and node.name in ("defined", "undefined")) or (
        isinstance(node, nodes.Filter) and node.name == "default"
    )
    for child in node.iter_child_nodes():
        of = path_of(child) if optional else None
        if of and of[0] not in bound:
            yield NameUse(*of, optional=True)
        else:
            yield from _uses(child, bound, depth=depth + 1, loops=loops)


def _uses_of_loop(
    node: nodes.For, bound: frozenset[str], depth: int, loops: int
) -> Iterator[NameUse]:
    yield from _uses(node.iter, bound, depth=depth + 1, loops=loops)
    targets = {each.name for each in node.target.find_all(nodes.Name)} | (
        {node.target.name} if isinstance(node.target, nodes.Name) else set()
    )
    within = bound | targets | {"loop"}
    for child in (*node.body, *([node.test] if node.test else [])):
        yield from _uses(child, within, depth=depth + 1, loops=loops + 1)
    for child in node.else_:
        yield from _uses(child, bound, depth=depth + 1, loops=loops)


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


def meter(tree: nodes.Template) -> None:
    """Make a checked tree count its work (`template_language.TemplateWork`)."""
    _Meter().visit(tree)


class _Meter(NodeTransformer):
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

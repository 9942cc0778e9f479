"""Small faults that a programmer might make, as edits of one module's text.

Text is edited, not unparsed, so that lines keep their numbers up to the fault and what is shown is
the source that people know. Left alone: docstrings, type hints, `__all__` and `__slots__`, texts of
log lines, decorators, asserts, and what is only there for the type checker.
"""

import ast
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")
_SHOWN, _AROUND = 160, 24  # characters
_LOGS = frozenset({"log", "_log", "logger", "_logger", "logging"})
_COMPARISONS: Mapping[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_ARITHMETIC: Mapping[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}


class Mutant(NamedTuple):
    """One fault: the text from `start` to `end` (offsets in bytes) is replaced."""

    file: str
    where: str  # the function or class, by its qualified name; empty: the module
    line: int
    lines: range  # of the statement, without the statements inside it
    source: str  # the line as it stands
    what: str  # the text before and after
    start: int
    end: int
    text: str
    at_import: bool  # the line is run once, when the module is imported

    def applied(self, source: bytes) -> bytes:
        return source[: self.start] + self.text.encode() + source[self.end :]


class Statement(NamedTuple):
    """One statement, without the statements inside it, and its faults."""

    line: int
    mutants: list[Mutant]


def statements(file: str, source: bytes) -> list[Statement]:
    """Return the statements of a module that can have a fault."""
    return list(_Module(file, source).found())


class _Module:
    def __init__(self, file: str, source: bytes) -> None:
        self._file, self._source = file, source
        self._lines = source.split(b"\n")
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line) + 1)

    def found(self) -> Iterator[Statement]:
        yield from self._block(ast.parse(self._source).body, "", None)

    def _block(
        self, body: Iterable[ast.AST], where: str, function: ast.AST | None
    ) -> Iterator[Statement]:
        for node in body:
            if isinstance(node, ast.stmt):
                if _is_left_alone(node):
                    continue
                if found := self._statement(node, where, function):
                    yield Statement(node.lineno, found)
            inner, owner = where, function
            if isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
                inner = f"{where}.{node.name}" if where else node.name
                owner = node if isinstance(node, _FUNCTIONS) else None
            for name in _BLOCKS:
                if not isinstance(block := getattr(node, name, []), list):
                    continue
                yield from self._block(block, inner, owner)

    def _statement(self, node: ast.stmt, where: str, function: ast.AST | None) -> list[Mutant]:
        edits: list[tuple[ast.stmt | ast.expr, str]]
        edits = [(node, text) for text in _whole(node, function)]
        for part in _expressions(node):
            edits += [(part, text) for text in _part(part)]
        if isinstance(node, ast.If | ast.While):
            edits.append((node.test, f"not ({ast.unparse(node.test)})"))
        if isinstance(node, ast.AugAssign) and (other := _ARITHMETIC.get(type(node.op))):
            edits.append((node, ast.unparse(ast.AugAssign(node.target, other(), node.value))))
        lines = range(node.lineno, _end_of_head(node) + 1)
        return [self._mutant(part, text, where, lines, function is None) for part, text in edits]

    def _mutant(
        self, node: ast.stmt | ast.expr, text: str, where: str, lines: range, at_import: bool
    ) -> Mutant:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = self._starts[node.lineno - 1] + node.col_offset
        end = self._starts[node.end_lineno - 1] + node.end_col_offset
        if isinstance(node, ast.expr):
            text = f"({text})" if _wants_brackets(node) else text
        return Mutant(
            self._file,
            where,
            node.lineno,
            lines,
            self._lines[node.lineno - 1].decode().strip(),
            _difference(" ".join(self._source[start:end].decode().split()), text),
            start,
            end,
            text,
            at_import,
        )


def _end_of_head(node: ast.stmt) -> int:
    """Return the last line of a statement that is not of a block inside it."""
    blocks = [getattr(node, name, None) for name in _BLOCKS]
    heads = [each[0] for each in blocks if isinstance(each, list) and each]
    inner = [
        each.pattern.lineno if isinstance(each, ast.match_case) else each.lineno for each in heads
    ]
    assert node.end_lineno is not None
    return max(node.lineno, min(inner) - 1) if inner else node.end_lineno


def _difference(before: str, after: str) -> str:
    """Return both, without most of what long texts have in common."""
    if len(before) + len(after) > _SHOWN:
        begin = max(0, _alike(before, after) - _AROUND)
        end = max(0, _alike(before[begin:][::-1], after[begin:][::-1]) - _AROUND)
        before, after = (each[begin : len(each) - end][:_SHOWN] for each in (before, after))
    return f"{before} -> {after}"


def _alike(one: str, other: str) -> int:
    """Return how many characters they begin with alike."""
    pairs = zip(one, other, strict=False)
    differ = (number for number, (a, b) in enumerate(pairs) if a != b)
    return next(differ, min(len(one), len(other)))


def _is_left_alone(node: ast.stmt) -> bool:
    if isinstance(node, ast.Import | ast.ImportFrom | ast.Assert | ast.Pass | ast.Global):
        return True
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        return True
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant) or _is_logged(node.value)
    if isinstance(node, ast.Assign):
        names = [each.id for each in node.targets if isinstance(each, ast.Name)]
        return bool({"__all__", "__slots__", "__match_args__"} & set(names))
    return False


def _is_logged(node: ast.expr) -> bool:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    of = node.func.value
    return (isinstance(of, ast.Name) and of.id in _LOGS) or (
        isinstance(of, ast.Attribute) and of.attr in _LOGS
    )


def _whole(node: ast.stmt, function: ast.AST | None) -> Iterator[str]:
    """Yield what a whole statement may become."""
    match node:
        case ast.Expr() if not isinstance(node.value, ast.Yield | ast.YieldFrom):
            yield "pass"
        case ast.AugAssign() | ast.Delete() | ast.Raise():
            yield "pass"
        case ast.Assign() if function is not None and _may_go(node.targets, function):
            yield "pass"
        case ast.AnnAssign(target=ast.Attribute()) if node.value is not None and function:
            yield "pass"
        case ast.Return(value=value) if value is not None and ast.unparse(value) != "None":
            yield "return None"
        case ast.Break():
            yield from ("pass", "continue")
        case ast.Continue():
            yield from ("pass", "break")


def _may_go(targets: list[ast.expr], function: ast.AST) -> bool:
    """Return whether the names still have a value without this assignment: else all tests fail."""
    return all(isinstance(each, ast.Attribute | ast.Subscript) for each in targets) or all(
        isinstance(each, ast.Name) and _times_bound(each.id, function) > 1 for each in targets
    )


def _times_bound(name: str, function: ast.AST) -> int:
    return sum(
        (isinstance(each, ast.Name) and each.id == name and isinstance(each.ctx, ast.Store))
        or (isinstance(each, ast.arg) and each.arg == name)
        for each in ast.walk(function)
    )


def _expressions(node: ast.stmt) -> Iterator[ast.expr]:
    """Yield the expressions that belong to a statement and not to one inside it."""
    waiting = _roots(node)
    while waiting:
        part = waiting.pop(0)
        if isinstance(part, ast.JoinedStr) or _is_logged(part):
            continue
        if isinstance(part, ast.Call) and ast.unparse(part.func) == "cast":
            waiting += part.args[1:]
            continue
        if not isinstance(part, ast.Lambda):
            yield part
        waiting += _inside(part)


def _roots(node: ast.stmt) -> list[ast.expr]:
    if isinstance(node, ast.ClassDef):
        return []
    if isinstance(node, _FUNCTIONS):
        return [*node.args.defaults, *(each for each in node.args.kw_defaults if each)]
    if isinstance(node, ast.AnnAssign):
        return [node.value] if node.value else []
    own = [each for each in ast.iter_child_nodes(node) if isinstance(each, ast.expr)]
    return [*own, *(item.context_expr for item in getattr(node, "items", []))]


def _inside(part: ast.expr) -> Iterator[ast.expr]:
    for child in ast.iter_child_nodes(part):
        if isinstance(child, ast.expr):
            yield child
        elif isinstance(child, ast.keyword):
            yield child.value
        elif isinstance(child, ast.comprehension):
            yield from (child.iter, *child.ifs)


def _part(node: ast.expr) -> Iterator[str]:
    """Yield what an expression may become."""
    match node:
        case ast.Compare(ops=[op]):
            yield ast.unparse(ast.Compare(node.left, [_COMPARISONS[type(op)]()], node.comparators))
        case ast.BoolOp():
            other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            yield ast.unparse(ast.BoolOp(other, node.values))
        case ast.UnaryOp(op=ast.Not() | ast.USub()):
            yield ast.unparse(node.operand)
        case ast.BinOp() if type(node.op) in _ARITHMETIC and not _is_text(node):
            yield ast.unparse(ast.BinOp(node.left, _ARITHMETIC[type(node.op)](), node.right))
        case ast.Constant():
            yield from _constants(node.value)
        case ast.IfExp():
            yield ast.unparse(ast.IfExp(node.test, node.orelse, node.body))
        case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
            yield from _without_conditions(node)
        case ast.Call():
            yield from _calls(node)


def _constants(value: object) -> Iterator[str]:
    match value:
        case bool():
            yield str(not value)
        case int():
            yield from (repr(value + 1), repr(value - 1))
        case float():
            yield from (repr(value * 2), repr(value / 2)) if value else (repr(1.0),)


def _calls(node: ast.Call) -> Iterator[str]:
    if isinstance(node.func, ast.Name) and node.func.id in ("min", "max"):
        other = "max" if node.func.id == "min" else "min"
        yield ast.unparse(ast.Call(ast.Name(other), node.args, node.keywords))
    for each in node.keywords:
        if each.arg is not None:
            kept = [one for one in node.keywords if one is not each]
            yield ast.unparse(ast.Call(node.func, node.args, kept))


def _without_conditions(
    node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp,
) -> Iterator[str]:
    whole = ast.unparse(node)
    for each in node.generators:
        if each.ifs:
            kept, each.ifs = each.ifs, []
            text = ast.unparse(node)
            each.ifs = kept
            if text != whole:
                yield text


def _is_text(node: ast.BinOp) -> bool:
    """Return whether it joins texts, or types."""
    parts = [each for each in ast.walk(node) if isinstance(each, ast.Constant)]
    joins = any(isinstance(each, ast.JoinedStr) for each in ast.walk(node))
    return joins or any(isinstance(each.value, str | bytes) or each.value is None for each in parts)


def _wants_brackets(node: ast.expr) -> bool:
    """Return whether what replaces it might bind otherwise."""
    return isinstance(node, ast.BinOp | ast.BoolOp | ast.IfExp | ast.Compare | ast.UnaryOp) or (
        isinstance(node, ast.Constant)
        and isinstance(node.value, int | float)
        and not isinstance(node.value, bool)
        and node.value < 1
    )

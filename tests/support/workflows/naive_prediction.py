"""Predict what a plan takes as it is defined: each row goes through each operator.

A reference for `kairos.workflows.compile.prediction`, which looks at a row once for all operators
that depend on the same. A value that is not known is a hash of what makes it.
"""

from collections.abc import Iterable, Mapping

import msgspec

from kairos.core import BYTES_PER_TOKEN, EXPECTED_COMPLETION_TOKENS
from kairos.workflows import Generation, Plan
from kairos.workflows.compile.check_templates import templates_of
from kairos.workflows.compile.invalid import OperatorFailed
from kairos.workflows.compile.operators import (
    Argument,
    Asking,
    Chunking,
    Constant,
    Data,
    Format,
    Group,
    Input,
    Loop,
    MapOver,
    Operator,
    Reference,
    References,
)
from kairos.workflows.compile.passes.structure import structure
from kairos.workflows.compile.prediction import FlowPrediction, OperatorCalls
from kairos.workflows.compile.references import needs
from kairos.workflows.compile.retrieval import chunked
from kairos.workflows.compile.signatures import of_structure
from kairos.workflows.compile.templates import Opaque, Static, template
from kairos.workflows.compile.values import Missing, as_text, part


class Symbol(msgspec.Struct, frozen=True):
    """A value that is not known yet, by what makes it."""

    identity: str
    tokens: int


def predict(plan: Plan, rows: Iterable[Mapping[str, object]]) -> FlowPrediction:
    return _Symbolic(plan).of(rows)


class _Symbolic:
    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._structures: dict[str, str] = {}
        self._seen: set[str] = set()
        self._found = FlowPrediction(0, {})

    def of(self, rows: Iterable[Mapping[str, object]]) -> FlowPrediction:
        for row in rows:
            self._found.rows += 1
            values: dict[str, object] = {}
            for operator in self._plan.declaration.operators:
                if isinstance(operator.params, Group) or any(
                    name not in values for name in needs(operator)
                ):
                    continue  # once a group, or after one that failed
                value = self._value(operator, row, values)
                if value is not Missing:
                    values[operator.name] = value
        return self._found

    def _value(
        self, operator: Operator, row: Mapping[str, object], values: Mapping[str, object]
    ) -> object:
        params = operator.params
        if isinstance(params, Input):
            return row
        if isinstance(params, Data):
            return params.value
        inputs = {name: _given(arg, values) for name, arg in operator.inputs.items()}
        if isinstance(params, Format) and not any(map(_unknown, inputs.values())):
            try:
                return template(params.template).render(inputs)
            except OperatorFailed:
                return Missing
        if isinstance(params, Chunking) and not any(map(_unknown, inputs.values())):
            try:
                return chunked(params, inputs["text"])
            except OperatorFailed:
                return Missing
        identity = self._identity(operator, {name: values[name] for name in needs(operator)})
        if isinstance(params, Asking):
            self._count(operator, inputs, identity, times=1)
            return Symbol(identity, _completion(operator))
        times = params.max_rounds if isinstance(params, Loop) else 1
        times = params.max_items if isinstance(params, MapOver) else times
        for each in operator.body:
            if isinstance(each.params, Asking):
                self._count(each, inputs, f"{identity}.{each.name}", times)
        return Symbol(identity, EXPECTED_COMPLETION_TOKENS)

    def _identity(self, operator: Operator, needed: Mapping[str, object]) -> str:
        if operator.name not in self._structures:
            self._structures[operator.name] = structure(operator)
        used = self._used(operator, needed)
        return of_structure([self._structures[operator.name], used])

    def _used(self, operator: Operator, needed: Mapping[str, object]) -> object:
        """Return the parts of its needs that it looks at."""
        if not isinstance(operator.params, Generation | Format):
            return [_encodable(value) for value in needed.values()]
        found: list[object] = []
        for _, source in templates_of(operator):
            for use in sorted(template(source).uses, key=lambda use: (use.name, str(use.path))):
                value = _given(operator.inputs[use.name], needed)
                try:
                    found.append(_encodable(value if _unknown(value) else part(value, use.path)))
                except Missing:
                    found.append(None)
        return found

    def _count(
        self, operator: Operator, inputs: Mapping[str, object], identity: str, times: int
    ) -> None:
        count = self._found.by_operator.setdefault(operator.name, OperatorCalls())
        if operator.purity == "pure" and self._plan.passes.cse:
            if identity in self._seen:
                count.merged += times
                return
            self._seen.add(identity)
        count.calls += times
        if isinstance(operator.params, Generation):
            count.prompt_tokens += times * _prompt_tokens(operator, inputs)
            count.completion_tokens += times * _completion(operator)


def _given(argument: Argument, values: Mapping[str, object]) -> object:
    if isinstance(argument, Constant):
        return argument.value
    if isinstance(argument, References):
        return [_given(each, values) for each in argument.each]
    assert isinstance(argument, Reference)
    value = values.get(argument.operator)
    if isinstance(value, Symbol):
        path = ".".join(map(str, argument.path))
        return Symbol(f"{value.identity}.{path}", value.tokens) if path else value
    try:
        return part(value, argument.path)
    except Missing:
        return None


def _unknown(value: object) -> bool:
    return isinstance(value, Symbol) or (isinstance(value, list) and any(map(_unknown, value)))


def _encodable(value: object) -> object:
    if isinstance(value, Symbol):
        return {"symbol": value.identity}
    return [_encodable(each) for each in value] if isinstance(value, list) else value


def _completion(operator: Operator) -> int:
    params = operator.params
    limit = params.max_tokens if isinstance(params, Generation) else None
    return limit or EXPECTED_COMPLETION_TOKENS


def _prompt_tokens(operator: Operator, inputs: Mapping[str, object]) -> int:
    """Return the tokens of the text that is known, and of answers as long as they may be."""
    tokens, size = 0, 0
    for _, source in templates_of(operator):
        for segment in template(source).segments:
            if isinstance(segment, Static):
                size += len(segment.text.encode())
                continue
            names = segment.uses if isinstance(segment, Opaque) else (segment.name,)
            path = () if isinstance(segment, Opaque) else segment.path
            for name in names:
                value = inputs.get(name)
                if isinstance(value, list) and path and _unknown(value):
                    parts, path = _chosen(value, path[0]), ()
                else:
                    parts = value if isinstance(value, list) and not path else [value]
                for each in parts:
                    if isinstance(each, Symbol):
                        tokens += each.tokens
                    else:
                        size += _size(each, path)
    return tokens + size // BYTES_PER_TOKEN


def _chosen(values: list[object], at: str | int) -> list[object]:
    """Return the element of a list that a path begins with."""
    is_there = isinstance(at, int) and -len(values) <= at < len(values)
    return [values[at]] if is_there else []  # type: ignore[index]


def _size(value: object, path: tuple[str | int, ...]) -> int:
    try:
        return len(as_text(part(value, path)).encode())
    except (Missing, TypeError):
        return 0

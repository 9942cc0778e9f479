"""Predict a plan's calls and tokens for given rows, as far as known before it runs.

Values that follow from columns alone are computed for each row; other values have only an identity:
their derivation. Deterministic calls with the same identity are one. So rows that share a context
are counted as they will be merged, and so are their followers. Two rows give an operator the same
identity exactly if all known values that lead to it are the same, so these are determined once for
each operator, and a row is hashed once for all operators that depend on the same values.

Operators that a branch does not choose, a filter drops or a loop does not need are counted, too:
the figures are upper bounds. Tokens: four bytes of text each, and answers at their maximum length.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import msgspec

from kairos.core import BYTES_PER_TOKEN, EXPECTED_COMPLETION_TOKENS
from kairos.workflows.compile.check_templates import templates_of
from kairos.workflows.compile.invalid import OperatorFailed
from kairos.workflows.compile.operators import (
    Argument,
    Asking,
    Chunking,
    Constant,
    Data,
    Format,
    Generation,
    Group,
    Input,
    Loop,
    MapOver,
    Operator,
    Path,
    Reference,
    References,
)
from kairos.workflows.compile.pipeline import Plan
from kairos.workflows.compile.references import named_in, needs, referred
from kairos.workflows.compile.retrieval import chunked
from kairos.workflows.compile.templates import Opaque, Static, template
from kairos.workflows.compile.values import Missing, as_text, part

_DIGEST_BYTES = 16
_encode = msgspec.json.Encoder(order="sorted").encode


class OperatorCalls(msgspec.Struct):
    """Upper bounds for an operator. `merged`: calls saved because equal ones are made."""

    calls: int = 0
    merged: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0


class FlowPrediction(msgspec.Struct):
    rows: int
    by_operator: dict[str, OperatorCalls]

    @property
    def calls(self) -> int:
        return sum(each.calls for each in self.by_operator.values())

    @property
    def tokens(self) -> int:
        each = self.by_operator.values()
        return sum(one.prompt_tokens + one.completion_tokens for one in each)


def predict_flow(plan: Plan, rows: Iterable[Mapping[str, object]]) -> FlowPrediction:
    """Return the prediction for rows; operators after a group are not counted.

    Memory: 100 bytes for each distinct row, for each set of columns that operators depend on.
    """
    flow = _Flow(plan)
    for row in rows:
        flow.row(row)
    return flow.found()


class _Part(msgspec.Struct, frozen=True):
    """Part of the values known for a row before any call."""

    argument: Reference | References
    path: Path = ()


class _Texts(msgspec.Struct, frozen=True):
    """Part as it stands in a prompt. `spread`: each text of a list separately."""

    part: _Part
    spread: bool


class _Symbol(msgspec.Struct, frozen=True):
    """Value that is unknown until a call is made.

    `parts`: numbers of all known values that lead to it; `known`: operators without whose values it
    is absent.
    """

    parts: frozenset[int]
    known: frozenset[str]
    tokens: int


class _Counted(msgspec.Struct):
    """Operator, at the top or in a body, whose calls are counted.

    A prompt has `tokens` of answers, `static_bytes` of text that all rows share, and `texts`, by
    number.
    """

    name: str
    times: int
    is_merged: bool  # with equal calls of other rows
    tokens: int = 0
    static_bytes: int = 0
    texts: tuple[int, ...] = ()
    completion_tokens: int = 0
    prompt_tokens: int = 0  # of all rows, if there are texts


class _Row:
    """Values that follow from a row alone, with parts of these and their sizes.

    Each is computed when it is first asked for.
    """

    def __init__(self, values: Mapping[str, object], flow: "_Flow") -> None:
        self.values = values
        self._parts, self._texts = flow.parts, flow.texts
        self._digests: dict[int, bytes] = {}
        self._sizes: dict[int, int] = {}

    def digest(self, parts: Sequence[int]) -> bytes:
        """Return a hash of these parts."""
        digests = self._digests
        found = []
        for number in parts:
            digest = digests.get(number)
            if digest is None:
                value = _value(self._parts[number], self.values)
                digest = digests[number] = _hash(_encode(value))
            found.append(digest)
        return found[0] if len(found) == 1 else _hash(b"".join(found))

    def size(self, texts: int) -> int:
        size = self._sizes.get(texts)
        if size is None:
            of = self._texts[texts]
            value = _value(of.part, self.values)
            size = self._sizes[texts] = _spread(value, ()) if of.spread else _text_bytes(value)
        return size


class _Alike:
    """Operators whose calls are equal for two rows if the same parts of the rows are equal."""

    def __init__(self, parts: Sequence[int], known: frozenset[str]) -> None:
        self.known = known
        self.operators: list[_Counted] = []
        self._parts = parts
        self._rows = 0
        self._seen: set[bytes] = set()

    def row(self, row: _Row) -> None:
        self._rows += 1
        digest = row.digest(self._parts)
        is_new = digest not in self._seen
        self._seen.add(digest)
        for each in self.operators:
            if each.texts and (is_new or not each.is_merged):
                size = each.static_bytes
                for texts in each.texts:
                    size += row.size(texts)
                each.prompt_tokens += each.tokens + size // BYTES_PER_TOKEN

    def counted(self) -> Iterator[tuple[str, OperatorCalls]]:
        for each in self.operators:
            made = len(self._seen) if each.is_merged else self._rows
            prompts = made * (each.tokens + each.static_bytes // BYTES_PER_TOKEN)
            if each.texts:
                prompts = each.prompt_tokens
            found = OperatorCalls(
                calls=made * each.times,
                merged=(self._rows - made) * each.times,
                prompt_tokens=prompts * each.times,
                completion_tokens=made * each.times * each.completion_tokens,
            )
            if self._rows:
                yield each.name, found


class _Flow:
    """Plan with the known values that lead to each of its calls, and counts of rows so far."""

    def __init__(self, plan: Plan) -> None:
        self.parts: list[_Part] = []
        self.texts: list[_Texts] = []
        self._merges = plan.passes.cse
        self._numbers: dict[_Part | _Texts, int] = {}
        # Operators whose values follow from a row alone, each with its required operators.
        self._known: list[tuple[Operator, frozenset[str]]] = []
        self._symbols: dict[str, _Symbol] = {}
        self._alike: dict[tuple[tuple[int, ...], frozenset[str]], _Alike] = {}
        self._order: list[str] = []
        self._rows = 0
        left_out: set[str] = set()
        for operator in plan.declaration.operators:
            if isinstance(operator.params, Group) or not left_out.isdisjoint(needs(operator)):
                left_out.add(operator.name)  # computed once a group
            else:
                self._add(operator)

    def row(self, columns: Mapping[str, object]) -> None:
        self._rows += 1
        values: dict[str, object] = {}
        for operator, wanted in self._known:
            if wanted <= values.keys():
                value = _computed(operator, columns, values)
                if value is not Missing:
                    values[operator.name] = value
        row, has_all = _Row(values, self), len(values) == len(self._known)
        for alike in self._alike.values():
            if has_all or alike.known <= values.keys():
                alike.row(row)

    def found(self) -> FlowPrediction:
        by_operator = dict(each for alike in self._alike.values() for each in alike.counted())
        named = (name for name in self._order if name in by_operator)
        return FlowPrediction(self._rows, {name: by_operator[name] for name in named})

    def _add(self, operator: Operator) -> None:
        params = operator.params
        is_text = isinstance(params, Format | Chunking)
        asks = any(name in self._symbols for name in named_in(operator.inputs.values()))
        wanted = self._wanted(operator)
        if isinstance(params, Input | Data) or (is_text and not asks):
            self._known.append((operator, wanted))
            return
        parts = frozenset(self._leading(operator))
        is_asking = isinstance(params, Asking)
        tokens = _completion(operator) if is_asking else EXPECTED_COMPLETION_TOKENS
        self._symbols[operator.name] = symbol = _Symbol(parts, wanted, tokens)
        if is_asking:
            self._count(operator, operator, symbol, 1)
        times = params.max_rounds if isinstance(params, Loop) else 1
        times = params.max_items if isinstance(params, MapOver) else times
        for each in operator.body:
            if isinstance(each.params, Asking):
                self._count(each, operator, symbol, times)

    def _count(self, operator: Operator, of: Operator, symbol: _Symbol, times: int) -> None:
        """Count an operator's calls. `of`: the operator itself, or the one around its body."""
        is_merged = operator.purity == "pure" and self._merges
        made = _Counted(operator.name, times, is_merged)
        if isinstance(operator.params, Generation):
            self._measure(operator, of, made)
        at = (tuple(sorted(symbol.parts)), symbol.known)
        self._order.append(operator.name)
        self._alike.setdefault(at, _Alike(*at)).operators.append(made)

    def _measure(self, operator: Operator, of: Operator, made: _Counted) -> None:
        """Add up the parts of a prompt."""
        made.completion_tokens = _completion(operator)
        texts: list[int] = []
        for _, source in templates_of(operator):
            for segment in template(source).segments:
                if isinstance(segment, Static):
                    made.static_bytes += len(segment.text.encode())
                    continue
                names = segment.uses if isinstance(segment, Opaque) else (segment.name,)
                path = () if isinstance(segment, Opaque) else segment.path
                for name in names:
                    self._measure_value(of.inputs.get(name), path, made, texts)
        made.texts = tuple(texts)

    def _measure_value(
        self, argument: Argument | None, path: Path, made: _Counted, texts: list[int]
    ) -> None:
        if argument is None:
            return  # of a body: it differs between rounds, or is within one
        if isinstance(argument, Constant):
            made.static_bytes += _spread(argument.value, path)
            return
        asked = [self._symbols.get(each.operator) for each in referred(argument)]
        if not any(asked):
            part = _normal(argument, path)
            texts.append(self._number(_Texts(part, not path), self.texts))
            return
        for each, symbol in _chosen(argument, asked, path):
            if symbol is not None:
                made.tokens += symbol.tokens
            else:
                part = _normal(each, ())
                texts.append(self._number(_Texts(part, False), self.texts))

    def _wanted(self, operator: Operator) -> frozenset[str]:
        """Return the operators with values from a row alone that this one requires."""
        found: set[str] = set()
        for name in needs(operator):
            symbol = self._symbols.get(name)
            found.update((name,) if symbol is None else symbol.known)
        return frozenset(found)

    def _leading(self, operator: Operator) -> Iterator[int]:
        """Yield the parts that an operator uses; of columns the ones that templates name."""
        if not isinstance(operator.params, Generation | Format):
            for name in needs(operator):
                yield from self._of(Reference(name), ())
            return
        for _, source in templates_of(operator):
            for use in template(source).uses:
                argument = operator.inputs[use.name]
                asked = (name in self._symbols for name in named_in([argument]))
                if isinstance(argument, References) and any(asked):
                    for each in argument.each:
                        yield from self._of(each, ())
                elif not isinstance(argument, Constant):
                    yield from self._of(argument, use.path)

    def _of(self, argument: Reference | References, path: Path) -> Iterator[int]:
        symbol = None
        if isinstance(argument, Reference):
            symbol = self._symbols.get(argument.operator)
        if symbol is not None:
            yield from symbol.parts
        else:
            yield self._number(_normal(argument, path), self.parts)

    def _number(self, of: _Part | _Texts, all_: list[Any]) -> int:
        number = self._numbers.get(of)
        if number is None:
            number = self._numbers[of] = len(all_)
            all_.append(of)
        return number


def _computed(
    operator: Operator, row: Mapping[str, object], values: Mapping[str, object]
) -> object:
    """Return the value for a row; Missing if it fails."""
    params = operator.params
    if isinstance(params, Input):
        return row
    if isinstance(params, Data):
        return params.value
    inputs = {name: _given(arg, values) for name, arg in operator.inputs.items()}
    try:
        if isinstance(params, Format):
            return template(params.template).render(inputs)
        assert isinstance(params, Chunking)
        return chunked(params, inputs["text"])
    except OperatorFailed:
        return Missing


def _chosen(
    argument: Reference | References, symbols: Sequence[_Symbol | None], path: Path
) -> list[tuple[Reference, _Symbol | None]]:
    """Return the element of a list that the path begins with; all if the path is empty."""
    each = [*zip(referred(argument), symbols, strict=True)]
    if isinstance(argument, Reference) or not path:
        return each
    return [each[at] for at in path[:1] if isinstance(at, int) and -len(each) <= at < len(each)]


def _normal(argument: Reference | References, path: Path) -> _Part:
    """Return the canonical form of a part."""
    if isinstance(argument, Reference):
        return _Part(Reference(argument.operator, (*argument.path, *path)))
    return _Part(argument, path)


def _given(argument: Argument, values: Mapping[str, object]) -> object:
    if isinstance(argument, Constant):
        return argument.value
    if isinstance(argument, References):
        return [_given(each, values) for each in argument.each]
    assert isinstance(argument, Reference)
    try:
        return part(values.get(argument.operator), argument.path)
    except Missing:
        return None


def _value(of: _Part, values: Mapping[str, object]) -> object:
    try:
        return part(_given(of.argument, values), of.path)
    except Missing:
        return None


def _spread(value: object, path: Path) -> int:
    if isinstance(value, list) and not path:
        return sum(map(_text_bytes, value))
    try:
        return _text_bytes(part(value, path))
    except Missing:
        return 0


def _text_bytes(value: object) -> int:
    text = as_text(value)
    return len(text) if text.isascii() else len(text.encode())


def _completion(operator: Operator) -> int:
    params = operator.params
    limit = params.max_tokens if isinstance(params, Generation) else None
    return limit or EXPECTED_COMPLETION_TOKENS


def _hash(raw: bytes) -> bytes:
    return blake2b(raw, digest_size=_DIGEST_BYTES).digest()

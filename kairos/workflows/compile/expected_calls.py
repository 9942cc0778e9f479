"""LLM calls that a plan is expected to make for given rows, from learnt profiles.

Each row goes through the plan with its known values: columns are exact, answers are unknown texts
of a learnt length. So prompts have lengths, share prefixes where they will, and equal calls are
merged. Whether a row passes a filter or takes a branch, and the number of a loop's rounds, follow
from learnt shares and a hash: as learnt on average, random for one row. Answers take all lengths
between the learnt deciles, in turn. Operators after a group are not included.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from kairos.core import EXPECTED_COMPLETION_TOKENS, text_digest
from kairos.workflows.compile.check import every_operator
from kairos.workflows.compile.flow_profile import OperatorProfile
from kairos.workflows.compile.fluid_engine import FluidCall
from kairos.workflows.compile.gates import gates
from kairos.workflows.compile.invalid import OperatorFailed
from kairos.workflows.compile.operators import (
    Asking,
    Branch,
    Chunking,
    Data,
    Filter,
    Format,
    Generation,
    Group,
    Input,
    Loop,
    MapOver,
    Operator,
    Processing,
    RegisteredCall,
    StagedMap,
    kind_of,
)
from kairos.workflows.compile.pipeline import Plan
from kairos.workflows.compile.prompt_marks import PromptMarker, PromptMarks
from kairos.workflows.compile.references import needs, own_arguments, placeholders
from kairos.workflows.compile.retrieval import chunked
from kairos.workflows.compile.unknown_values import (
    Unknown,
    UnknownText,
    after_of,
    filled,
    given,
    is_known,
)

_NOTHING = object()
_GOLDEN = (5**0.5 - 1) / 2  # its multiples are evenly spaced modulo 1


class ExpectedCalls(msgspec.Struct):
    """The calls in the order of their rows.

    `operators`: the operator of each call. `ends`: by row, how many calls there are with it, and
    how many were merged. `joined`: rows that wait for a call that was made before instead of their
    own, with its number.
    """

    calls: list[FluidCall] = []
    operators: list[str] = []
    merged: int = 0
    ends: list[tuple[int, int]] = []
    joined: list[tuple[int, int]] = []

    def before(self, row: int) -> "ExpectedCalls":
        """Return the calls of all rows before one."""
        calls, merged = self.ends[row - 1] if row else (0, 0)
        return ExpectedCalls(self.calls[:calls], self.operators[:calls], merged, self.ends[:row])


def expected_calls(
    plan: Plan,
    learnt: Mapping[str, OperatorProfile],
    rows: Iterable[Mapping[str, object]],
    most: int | None = None,
) -> ExpectedCalls:
    """Compute the calls of rows, one row at a time.

    Args:
        plan: what is run.
        learnt: by operator; answers of a missing one have their maximum length.
        rows: of a table, in their order.
        most: number of calls after which it stops, at the end of a row; None: all rows.
    """
    walk = _Walk(plan, learnt)
    for number, row in enumerate(rows):
        walk.row(number, row)
        if most is not None and len(walk.found.calls) >= most:
            break
    return walk.found


class _Walk:
    def __init__(self, plan: Plan, learnt: Mapping[str, OperatorProfile]) -> None:
        self._plan, self._learnt = plan, learnt
        self._gates = gates(plan.declaration)
        self._needs = {
            each.name: needs(each) for each in every_operator(plan.declaration.operators)
        }
        self._marker = PromptMarker()
        self._made: dict[tuple[str, int], int] = {}
        self._drawn: dict[str, int] = {}  # lengths of answers, by operator
        self.found = ExpectedCalls()

    def row(self, number: int, row: Mapping[str, object]) -> None:
        values: dict[str, object] = {}
        self._number, self._row = number, row
        self._chance = text_digest(f"row {number}") / 2**64
        self._scope(self._plan.declaration.operators, values, str(number))
        self.found.ends.append((len(self.found.calls), self.found.merged))

    def _scope(self, operators: Sequence[Operator], values: dict[str, object], place: str) -> None:
        for each in operators:
            params, node = each.params, f"{place}.{each.name}"
            if isinstance(params, Group) or any(n not in values for n in self._needs[each.name]):
                continue
            if isinstance(params, Loop):
                value = self._loop(each, params, values, node)
            elif isinstance(params, MapOver):
                value = self._map(each, params, values, node)
            else:
                value = self._value(each, values, node)
            if value is not _NOTHING:
                values[each.name] = value

    def _value(self, operator: Operator, values: dict[str, object], place: str) -> object:
        params = operator.params
        if isinstance(params, Input):
            return self._row
        if isinstance(params, Data):
            return params.value
        inputs = {name: given(arg, values) for name, arg in operator.inputs.items()}
        waits = frozenset().union(*(after_of(values[name]) for name in self._needs[operator.name]))
        if isinstance(params, Asking):
            gating = (after_of(values.get(name)) for name in self._gates[operator.name])
            waits = waits.union(*gating)
        try:
            if isinstance(params, Format):
                pieces = filled(params.template, inputs)
                known = not waits and all(isinstance(each, str) for each in pieces)
                return "".join(map(str, pieces)) if known else Unknown(pieces, waits)
            if isinstance(params, Chunking) and is_known(inputs["text"]):
                return chunked(params, inputs["text"])
            if isinstance(params, Generation):
                return self._call(operator, params, inputs, waits)
        except OperatorFailed:
            return _NOTHING
        if isinstance(params, RegisteredCall | Processing):
            processor = kind_of(params) if isinstance(params, Processing) else ""
            waits = self._function(operator, inputs, waits, processor)
        if isinstance(params, Filter | Branch):
            chosen = [given(each, values) for each in own_arguments(operator)]
            cases = [each for each in chosen if each is not None]
            texts = [each for each in cases if isinstance(each, Unknown) and each.pieces]
            return Unknown((texts or [Unknown(())])[0].pieces, waits)
        return Unknown((UnknownText(place, EXPECTED_COMPLETION_TOKENS),), waits)

    def _loop(
        self, operator: Operator, params: Loop, values: dict[str, object], place: str
    ) -> object:
        state = given(params.start, values)
        for number in range(self._times(operator, place, params.max_rounds)):
            inner = {**values, **dict(zip(placeholders(operator), (state, number), strict=True))}
            self._scope(params.body, inner, f"{place}.{number}")
            state = given(params.result, inner)
        return state

    def _map(
        self, operator: Operator, params: MapOver, values: dict[str, object], place: str
    ) -> object:
        over = given(params.over, values)
        if isinstance(params, StagedMap) and params.batch is not None:
            items: list[object] = [over]
            if isinstance(over, list):
                starts = range(0, max(1, len(over)), params.batch)
                items = [over[at : at + params.batch] for at in starts]
        elif isinstance(over, list):
            items = over[: params.max_items]
        else:
            times = self._times(operator, place, params.max_items)
            waits = after_of(over)
            items = [
                Unknown((UnknownText(f"{place}.{n}", EXPECTED_COMPLETION_TOKENS),), waits)
                for n in range(times)
            ]
        results = []
        for number, item in enumerate(items):
            inner = {**values, **dict(zip(placeholders(operator), (item, number), strict=True))}
            self._scope(params.body, inner, f"{place}.{number}")
            results.append(given(params.result, inner))
        return [each for each in results if each is not None]

    def _times(self, operator: Operator, place: str, most: int) -> int:
        """Return the number of rounds, or items: the learnt mean for operators in the body."""
        seen = [self._learnt[each.name] for each in operator.body if each.name in self._learnt]
        if not seen:
            return most
        mean = max(each.times.mean for each in seen)
        return min(most, int(mean + text_digest(f"times {place}") / 2**64))

    def _call(
        self,
        operator: Operator,
        params: Generation,
        inputs: Mapping[str, object],
        waits: frozenset[int],
    ) -> object:
        learnt = self._learnt.get(operator.name)
        if learnt is not None and self._chance >= learnt.rows.mean:
            return Unknown((), waits)
        texts = [(each.role, filled(each.template, inputs)) for each in params.messages]
        marks = self._marker.marks(texts)
        number = self._made.get((operator.name, marks.name))
        if number is None or not self._is_merged(operator):
            number = self._new(operator, params, marks, waits, number)
        else:
            self.found.merged += 1
            self.found.joined.append((self._number, number))
        text = UnknownText(f"{marks.name:x}", self.found.calls[number].completion_tokens)
        return Unknown((text,), frozenset([number]))

    def _is_merged(self, operator: Operator) -> bool:
        """Return whether an operator's equal calls are made once."""
        return operator.purity == "pure" and self._plan.passes.cse

    def _function(
        self,
        operator: Operator,
        inputs: Mapping[str, object],
        waits: frozenset[int],
        processor: str,
    ) -> frozenset[int]:
        """Return the calls that users of a function's or processor's value wait for.

        It is the call itself, if its time was learnt.
        """
        learnt = self._learnt.get(operator.name)
        if learnt is None or learnt.time_us is None or self._chance >= learnt.rows.mean:
            return waits
        key = (operator.name, -1)
        if self._is_merged(operator):
            identity = {name: self._same(each) for name, each in inputs.items()}
            if _NOTHING not in identity.values():
                identified = msgspec.json.encode(identity, order="sorted").decode()
                key = (operator.name, text_digest(identified))
        number = self._made.get(key)
        if number is None:
            call = FluidCall(
                row=self._number,
                prompt_tokens=0.0,
                completion_tokens=0.0,
                after=tuple(sorted(waits)),
                function_us=max(1.0, learnt.time_us.mean),
                processor=processor,
            )
            number = self._add(operator, call)
            if key[1] >= 0:
                self._made[key] = number
        return frozenset([number])

    def _same(self, value: object) -> object:
        """Return an identity that equal values share; for results of processors, their calls."""
        if is_known(value):
            return value
        after = sorted(after_of(value))
        if after and all(self.found.calls[each].processor for each in after):
            return {"after": after}
        return _NOTHING

    def _new(
        self,
        operator: Operator,
        params: Generation,
        marks: PromptMarks,
        waits: frozenset[int],
        equal: int | None,
    ) -> int:
        """Add a call. `equal`: one with the same prompt, whose answer is as long."""
        if equal is None:
            answer_tokens = self._answer_tokens(operator.name, params)
        else:
            answer_tokens = self.found.calls[equal].completion_tokens
        learnt = self._learnt.get(operator.name)
        factor = 1.0
        if learnt is not None and learnt.text_tokens and learnt.prompt_tokens is not None:
            factor = learnt.prompt_tokens.mean / learnt.text_tokens
        call = FluidCall(
            row=self._number,
            prompt_tokens=max(1.0, factor * marks.tokens),
            completion_tokens=answer_tokens,
            prefixes=tuple((name, factor * tokens) for name, tokens in marks.prefixes),
            answered=marks.answered,
            after=tuple(sorted(waits)),
        )
        number = self._made[(operator.name, marks.name)] = self._add(operator, call)
        return number

    def _add(self, operator: Operator, call: FluidCall) -> int:
        self.found.operators.append(operator.name)
        self.found.calls.append(call)
        return len(self.found.calls) - 1

    def _answer_tokens(self, name: str, params: Generation) -> float:
        """Return the length of the operator's next answer.

        Even a few answers are spread over the learnt lengths.
        """
        learnt = self._learnt.get(name)
        if learnt is None or not learnt.completion_deciles:
            return float(params.max_tokens or EXPECTED_COMPLETION_TOKENS)
        deciles, drawn = learnt.completion_deciles, self._drawn.get(name, 0)
        self._drawn[name] = drawn + 1
        at = (text_digest(name) / 2**64 + _GOLDEN * drawn) % 1 * (len(deciles) - 1)
        low = int(at)
        return max(1.0, deciles[low] + (at - low) * (deciles[low + 1] - deciles[low]))

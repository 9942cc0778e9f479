"""The beginning of a prompt is computed while its rest is still found out (Teola's pass 3, prefill
split).

Of a prompt that ends with what takes long (passages that are searched, another's answer) the part
before that goes to an engine ahead, as a call that answers one token: so the engine has it in its
prefix cache when the whole prompt comes, which stays as it is, byte for byte. Engines share blocks
that another call has just computed, so the call waits for nothing.

It is done only where it should save something: what the rest waits for takes longer than the call
ahead; what is computed ahead takes longer than a call costs; and when it comes to it, only if the
engines have room, and few rows are open (`execution/prefills.py`).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from kairos.plan.call_shapes import COLUMN_TOKENS
from kairos.plan.certainty import certain
from kairos.plan.check import every
from kairos.plan.costs.latency import Latencies
from kairos.plan.graph import outputs_need
from kairos.plan.operators import (
    Argument,
    Asking,
    Constant,
    Declaration,
    Generation,
    Group,
    MapOver,
    MessageTemplate,
    Operator,
)
from kairos.plan.prompts import beginning
from kairos.plan.references import needs, referred
from kairos.plan.template_language import TemplateWork
from kairos.plan.templates import Opaque, Slot, Static, template
from kairos.plan.values import BYTES_PER_TOKEN

LEAST_TOKENS = 16  # a shorter beginning is in no block of an engine
MOST_SPLITS = 8  # places of a prompt that are weighed, from its end on
MOST_ROWS = 4  # that are open, where something goes ahead

_Segment = Static | Slot | Opaque
_Place = tuple[int, int, _Segment]


class PartialPrefill(msgspec.Struct, frozen=True):
    """Of an LLM operator's prompt so many messages, and so many segments of the template of the one
    after them, are known when one of the operators `beside` begins."""

    operator: str
    params: Generation
    whole: int
    segments: int
    inputs: Mapping[str, Argument]  # that these need
    beside: frozenset[str]
    tokens: int  # about

    def body(self, values: Mapping[str, object]) -> dict[str, object]:
        """See `prompts.beginning`. Raises OperatorFailed: a value lacks a part."""
        messages, work = self.params.messages, TemplateWork()
        filled = [
            (each.role, template(each.template).render(values, work))
            for each in messages[: self.whole]
        ]
        if self.segments:
            last = messages[self.whole]
            text = template(last.template).beginning(self.segments, values)
            filled.append((last.role, text))
        return beginning(filled)


def goes_ahead(rows: int, calls: int, capacity: int) -> bool:
    """Whether beginnings go while so many rows are open, and so many calls under way or ready:
    engines, which run `capacity` calls, have room for another beside each."""
    return rows <= MOST_ROWS and 2 * calls <= capacity


def partial_prefills(declaration: Declaration, latencies: Latencies) -> tuple[PartialPrefill, ...]:
    """Of operators in an order in which each follows what it needs; of bodies, those of maps that
    are certain to be needed. Not of flows with a group, whose rows are many."""
    operators = declaration.operators
    if any(isinstance(each.params, Group) for each in operators):
        return ()
    sure = certain(operators, outputs_need(declaration.outputs))
    found = _Finding(operators, sure, latencies)
    return tuple(
        made
        for each in operators
        if each.name in sure
        for llm in _calls(each)
        if (made := found.of(llm, each)) is not None
    )


def _calls(operator: Operator) -> Iterator[Operator]:
    """The LLM operators that are computed with it, whatever the row."""
    if isinstance(operator.params, Generation):
        yield operator
    elif isinstance(operator.params, MapOver):
        sure = certain(operator.body, [operator.params.result.operator])
        yield from (e for e in operator.body if e.name in sure and isinstance(e.params, Generation))


class _Finding:
    def __init__(
        self, operators: Sequence[Operator], sure: frozenset[str], latencies: Latencies
    ) -> None:
        self._sure, self._latencies = sure, latencies
        self._inside = {e.name: frozenset(one.name for one in every([e])) for e in operators}
        self._needs = {each.name: needs(each) for each in operators}
        self._own_us = {each.name: latencies.operator_us(each) for each in operators}
        # Per operator those that are asked of others, of it and of what it needs.
        self._asked: dict[str, frozenset[str]] = {}
        for each in operators:
            own = (one.name for one in every([each]) if isinstance(one.params, Asking))
            self._asked[each.name] = self._asked_of(self._needs[each.name]).union(own)

    def of(self, llm: Operator, around: Operator) -> PartialPrefill | None:
        """The longest beginning that pays; `around`: it, or the map that it is in."""
        assert isinstance(llm.params, Generation)
        places = list(_places(llm.params.messages))
        for count in reversed(self._splits(llm, places)):
            whole, segments, segment = places[count]
            known = [each for _, _, each in places[:count]]
            inputs = {each.name: llm.inputs[each.name] for each in known if isinstance(each, Slot)}
            tokens = sum(self._tokens(llm, each) for each in known)
            beside = self._beside(llm, around, inputs, segment)
            if beside and self._pays(tokens, beside):
                return PartialPrefill(llm.name, llm.params, whole, segments, inputs, beside, tokens)
        return None

    def _splits(self, llm: Operator, places: Sequence[_Place]) -> Sequence[int]:
        """Before which places a prompt may be split: those that wait for what none before waits
        for. What is before them has no opaque part, and is needed whatever the row."""
        known: set[str] = set()
        found = []
        for at, (_, _, segment) in enumerate(places):
            waits = _waits(llm, segment)
            if at and not waits <= known:
                found.append(at)
            if isinstance(segment, Opaque) or not waits <= self._sure:
                break
            known |= waits
        return found[-MOST_SPLITS:]

    def _beside(
        self,
        llm: Operator,
        around: Operator,
        inputs: Mapping[str, Argument],
        missing: _Segment,
    ) -> frozenset[str]:
        """What the missing part waits for, and the known one does not."""
        known = {e.operator for arg in inputs.values() for e in referred(arg)}
        waits = _waits(llm, missing)
        if not waits <= self._asked.keys():  # what is in the body waits for all that is around
            waits |= set(self._needs[around.name])
        return self._asked_of(waits) - self._asked_of(known)

    def _asked_of(self, names: Iterable[str]) -> frozenset[str]:
        nothing: frozenset[str] = frozenset()
        return nothing.union(*(self._asked.get(name, nothing) for name in names))

    def _pays(self, tokens: int, beside: frozenset[str]) -> bool:
        costs = self._latencies
        computed_us = tokens * costs.prefill_token_us
        if tokens < LEAST_TOKENS or computed_us < costs.call_us:
            return False
        return self._longest_us(beside) > costs.call_us + computed_us

    def _longest_us(self, beside: frozenset[str]) -> float:
        """The longest way through what is waited for."""
        ends: dict[str, float] = {}
        for name, inside in self._inside.items():
            before = max((ends.get(each, 0.0) for each in self._needs[name]), default=0.0)
            ends[name] = before if inside.isdisjoint(beside) else before + self._own_us[name]
        return max(ends.values(), default=0.0)

    def _tokens(self, llm: Operator, segment: _Segment) -> int:
        """About; of a value that is not known as much as of a column."""
        if isinstance(segment, Static):
            return len(segment.text.encode()) // BYTES_PER_TOKEN
        argument = llm.inputs[segment.name] if isinstance(segment, Slot) else None
        return 0 if isinstance(argument, Constant) else COLUMN_TOKENS


def _waits(llm: Operator, segment: _Segment) -> set[str]:
    """The operators that it needs, of which some may be in the body."""
    if isinstance(segment, Static):
        return set()
    names = segment.uses if isinstance(segment, Opaque) else (segment.name,)
    return {each.operator for name in names for each in referred(llm.inputs[name])}


def _places(messages: Sequence[MessageTemplate]) -> Iterator[_Place]:
    """Each segment: of which message, which of it, and itself."""
    for at, message in enumerate(messages):
        for number, segment in enumerate(template(message.template).segments):
            yield at, number, segment

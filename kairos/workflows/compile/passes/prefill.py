"""Prefill the known prefix of a prompt while its rest is computed (Teola's pass 3).

If a prompt ends with slow values (searched passages, another answer), the part before them is sent
to an engine ahead, as a call that answers one token: so it is in the engine's prefix cache when the
whole prompt comes, which stays unchanged, byte for byte. Engines share blocks that another call has
just computed, so the call waits for nothing.

In the body of a loop the part of a prompt that changes only with the number of the round (the next
passage) is prefilled during the round before, and that of the first round during the computation of
the loop's inputs. If one part is known earlier than another, each is prefilled when it is known.

It is done only if a saving is expected: the rest is waited for longer than the prefill takes; the
prefill saves more than a call costs; and at run time, only if the engines have room, and few rows
are open (`workflows/execute/prefills.py`).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from kairos.core import BYTES_PER_TOKEN
from kairos.workflows.compile.call_shapes import COLUMN_TOKENS
from kairos.workflows.compile.check import every_operator
from kairos.workflows.compile.costs.latency import Latencies
from kairos.workflows.compile.gates import certain
from kairos.workflows.compile.graph import outputs_need
from kairos.workflows.compile.operators import (
    Argument,
    Asking,
    Constant,
    Declaration,
    Generation,
    Group,
    Loop,
    MapOver,
    Operator,
    Reference,
)
from kairos.workflows.compile.prompts import beginning
from kairos.workflows.compile.references import named_in, needs, placeholders
from kairos.workflows.compile.template_language import TemplateWork
from kairos.workflows.compile.templates import Opaque, Segment, Slot, Static, template

LEAST_TOKENS = 16  # a shorter prefix fills no block of an engine
MOST_SPLITS = 8  # candidate places in a prompt, from its end on
MOST_ROWS = 4  # open rows, with which prefills are sent

_Place = tuple[int, int, Segment]  # a segment after the numbers of its message and of itself


class PartialPrefill(msgspec.Struct, frozen=True):
    """Prefix of an LLM operator's prompt that is prefilled when one of certain operators begins.

    It has the first `whole` messages, and `segments` of the template of the next one. In a loop's
    body these operators belong to the round before; other ones are named for the first round.
    Either set may be empty.
    """

    operator: str
    params: Generation
    whole: int
    segments: int
    inputs: Mapping[str, Argument]  # that these need
    beside: frozenset[str]
    tokens: int  # about
    loop: str | None = None
    first_beside: frozenset[str] = frozenset()

    @property
    def rounds(self) -> frozenset[str]:
        """Return the inputs that are the number of the loop's round."""
        number = Reference(f"{self.loop}.round")
        return frozenset(name for name, each in self.inputs.items() if each == number)

    def body(self, values: Mapping[str, object]) -> dict[str, object]:
        """Return the request.

        Raises OperatorFailed: a value lacks a part. See `prompts.beginning`.
        """
        messages, work = self.params.messages, TemplateWork()
        filled = [
            (each.role, template(each.template).render(values, work))
            for each in messages[: self.whole]
        ]
        if self.segments:
            last = messages[self.whole]
            text = template(last.template).beginning(self.segments, values, work)
            filled.append((last.role, text))
        return beginning(filled)


def partial_prefills(declaration: Declaration, latencies: Latencies) -> tuple[PartialPrefill, ...]:
    """Return the prefixes worth prefilling, for operators in an order of dependencies.

    In bodies of maps and loops only operators count that are certain to be needed. Flows with a
    group have none: their rows are many. The longest prefix of an operator is its last.
    """
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
        for made in found.of(llm, each)
    )


def _calls(operator: Operator) -> Iterator[Operator]:
    """Yield the LLM operators that are always computed with an operator."""
    if isinstance(operator.params, Generation):
        yield operator
    elif isinstance(operator.params, MapOver | Loop):
        sure = certain(operator.body, [operator.params.result.operator])
        yield from (e for e in operator.body if e.name in sure and isinstance(e.params, Generation))


class _Finding:
    def __init__(
        self, operators: Sequence[Operator], sure: frozenset[str], latencies: Latencies
    ) -> None:
        self._sure, self._latencies = sure, latencies
        self._inside = {
            e.name: frozenset(one.name for one in every_operator([e])) for e in operators
        }
        self._needs = {each.name: needs(each) for each in operators}
        self._own_us = {each.name: latencies.operator_us(each) for each in operators}
        # By operator, the calls made for it and for all that it needs.
        self._asked: dict[str, frozenset[str]] = {}
        for each in operators:
            own = (one.name for one in every_operator([each]) if isinstance(one.params, Asking))
            self._asked[each.name] = self._asked_of(self._needs[each.name]).union(own)

    def of(self, llm: Operator, around: Operator) -> Sequence[PartialPrefill]:
        """Return the longest prefix that pays, and shorter ones that are known before it.

        `around`: the operator itself, or the map or loop around it.
        """
        assert isinstance(llm.params, Generation)
        places: list[_Place] = [
            (at, number, segment)
            for at, message in enumerate(llm.params.messages)
            for number, segment in enumerate(template(message.template).segments)
        ]
        found: list[PartialPrefill] = []
        for count in reversed(self._splits(llm, around, places)):
            part = self._part(llm, around, places, count)
            if part is None or not self._pays(part):
                continue
            if found and not self._goes_before(part, found[-1]):
                continue
            found.append(part)
        return found[::-1]

    def _part(
        self, llm: Operator, around: Operator, places: Sequence[_Place], count: int
    ) -> PartialPrefill | None:
        assert isinstance(llm.params, Generation)
        whole, segments, missing = places[count]
        known = [each for _, _, each in places[:count]]
        inputs = {name: llm.inputs[name] for each in known for name in _names(each)}
        tokens = sum(self._tokens(llm, each) for each in known)
        beside, loop, first = self._beside(llm, around, inputs, missing), None, frozenset[str]()
        if isinstance(around.params, Loop):
            loop, first = around.name, beside
            inside = {*placeholders(around), *(each.name for each in around.body)}
            waits = not inside.isdisjoint(_waits(llm, missing))
            own = self._inside[around.name] & self._asked[around.name]
            beside = own if waits else frozenset()
        if not beside and not first:
            return None
        return PartialPrefill(
            llm.name, llm.params, whole, segments, inputs, beside, tokens, loop, first
        )

    def _goes_before(self, part: PartialPrefill, longer: PartialPrefill) -> bool:
        """Return whether a part is known before a longer one, which then still pays."""
        costs = self._latencies
        left_us = (longer.tokens - part.tokens) * costs.prefill_token_us
        waits, longer_waits = (
            self._asked_of(named_in(each.inputs.values())) for each in (part, longer)
        )
        return waits < longer_waits and left_us >= costs.call_us

    def _splits(self, llm: Operator, around: Operator, places: Sequence[_Place]) -> Sequence[int]:
        """Return the places at which a prompt may be split, the last ones.

        A segment there waits for a value that no segment before waits for. Values before it are
        certain to be needed.
        """
        sure = self._sure
        if isinstance(around.params, Loop):
            sure |= {placeholders(around)[1]}  # the number of the round
        known: set[str] = set()
        found = []
        for at, (_, _, segment) in enumerate(places):
            waits = _waits(llm, segment)
            if at and not waits <= known:
                found.append(at)
            if not waits <= sure:
                break
            known |= waits
        return found[-MOST_SPLITS:]

    def _beside(
        self, llm: Operator, around: Operator, inputs: Mapping[str, Argument], missing: Segment
    ) -> frozenset[str]:
        """Return the calls that the missing part waits for, and the known part does not."""
        waits = _waits(llm, missing)
        if not waits <= self._asked.keys():  # the body waits for all values from around it
            waits |= set(self._needs[around.name])
        return self._asked_of(waits) - self._asked_of(named_in(inputs.values()))

    def _asked_of(self, names: Iterable[str]) -> frozenset[str]:
        nothing: frozenset[str] = frozenset()
        return nothing.union(*(self._asked.get(name, nothing) for name in names))

    def _pays(self, part: PartialPrefill) -> bool:
        costs = self._latencies
        computed_us = part.tokens * costs.prefill_token_us
        if part.tokens < LEAST_TOKENS or computed_us < costs.call_us:
            return False
        beside = part.first_beside if part.loop is not None else part.beside
        waited_us = self._longest_us(beside)
        if part.loop is not None and part.beside:
            waited_us = max(waited_us, self._own_us[part.loop])  # a round
        return waited_us > costs.call_us + computed_us

    def _longest_us(self, beside: frozenset[str]) -> float:
        """Return the longest path through the calls that are waited for."""
        ends: dict[str, float] = {}
        for name, inside in self._inside.items():
            before = max((ends.get(each, 0.0) for each in self._needs[name]), default=0.0)
            ends[name] = before if inside.isdisjoint(beside) else before + self._own_us[name]
        return max(ends.values(), default=0.0)

    def _tokens(self, llm: Operator, segment: Segment) -> int:
        """Return the approximate tokens of a segment; an unknown value counts like a column."""
        if isinstance(segment, Static):
            return len(segment.text.encode()) // BYTES_PER_TOKEN
        argument = llm.inputs[segment.name] if isinstance(segment, Slot) else None
        return 0 if isinstance(argument, Constant) else COLUMN_TOKENS


def _names(segment: Segment) -> Sequence[str]:
    """Return the names of values that a segment needs."""
    if isinstance(segment, Static):
        return ()
    return segment.uses if isinstance(segment, Opaque) else (segment.name,)


def _waits(llm: Operator, segment: Segment) -> set[str]:
    """Return the operators whose values a segment needs; some may be in the body."""
    return {*named_in(llm.inputs[name] for name in _names(segment))}

"""Calls from demand to result: equal ones are made once, and their results shared.

A call that another row, or another operator, has in flight is joined (single flight). A result that
is known from an earlier session, from another row or from the cache is reused. Only deterministic
calls are shared. Held values are shared by open rows.
"""

from collections.abc import Callable
from typing import Literal

from kairos.workflows.compile.held import held_at, held_text
from kairos.workflows.compile.invalid import OperatorFailed
from kairos.workflows.compile.operators import Asking, Embedding, Generation, Operator
from kairos.workflows.compile.passes.cached import is_kept
from kairos.workflows.compile.retrieval import is_passing, vectors_bytes
from kairos.workflows.execute.behaviours import WantsCall
from kairos.workflows.execute.commands import (
    DropCall,
    FetchCached,
    FlowCommand,
    KeepAnswer,
    KeepResult,
)
from kairos.workflows.execute.evaluation import UNUSUAL, Evaluation
from kairos.workflows.execute.facts import CacheAnswered, CallAnswered, Stays
from kairos.workflows.execute.flight import Flight, key_of
from kairos.workflows.execute.frames import OpenRow, Slot, ValueFrame
from kairos.workflows.execute.held_values import HeldValues
from kairos.workflows.execute.limits import FlowFigures
from kairos.workflows.execute.memo import ResultMemo
from kairos.workflows.execute.observation import FlowObservation
from kairos.workflows.execute.requests import value_of
from kairos.workflows.execute.trials import EarlyFailure, EarlyResult, TrialRow

Origin = Literal["called", "merged", "fetched"]

_MOST_MADE_AGAIN = 8  # losses of a call's inputs, until it fails


class Flights:
    """Calls in flight, and their sharing.

    `held`: values held by processors, `staying` the operators that may have such; `ready`: called
    for each call that must be made; `grew`: called with the bytes of vectors that a row gains.
    """

    def __init__(
        self,
        *,
        share: bool,
        memo: ResultMemo,
        held: HeldValues,
        staying: frozenset[str],
        figures: FlowFigures,
        observation: FlowObservation,
        out: list[FlowCommand],
        ready: Callable[[Flight], None],
        grew: Callable[[OpenRow, int], None],
    ) -> None:
        self._share, self._memo, self._figures = share, memo, figures
        self._held, self._staying = held, staying
        self._made_again: dict[str, Flight] = {}  # by id of the value
        self._observation = observation
        self._out, self._ready, self._grew = out, ready, grew
        self._by_signature: dict[str, Flight] = {}
        self._by_number: dict[int, Flight] = {}
        self._fetching: set[int] = set()
        self._texts: set[int] = set()  # of these, the ones that look up the answer's text
        self._number = 0

    @property
    def fetching(self) -> int:
        return len(self._fetching)

    def __getitem__(self, number: int) -> Flight | None:
        return self._by_number.get(number)

    def want(self, evaluation: Evaluation, frame: ValueFrame, slot: int, wants: WantsCall) -> None:
        """Get a slot's value: at once if it is known, else by a call."""
        if (known := self._known(frame, slot, wants)) is not None:
            self._figures.resumed += 1
            self._give(evaluation, frame, slot, wants.signature, known[0])
            return
        if frame.row.early is not None and self._tried(evaluation, frame, slot, wants.signature):
            return
        compiled = frame.scope.operators[slot]
        assert compiled.operator is not None
        shared = compiled.operator.purity == "pure" and self._share
        if shared and self._joined(evaluation, frame, slot, wants.signature):
            return
        flight = self._new(compiled.operator, wants, (frame, slot))
        _note(frame, slot, flight)
        if shared:
            self._by_signature[flight.key] = flight
        if compiled.fetched:
            self._fetching.add(flight.number)
            self._out.append(FetchCached(flight.number, wants.signature, compiled.name))
        else:
            self._ready(flight)

    def _new(self, operator: Operator, wants: WantsCall, first: Slot | Flight) -> Flight:
        self._number += 1
        flight = self._by_number[self._number] = Flight(self._number, operator, wants, first)
        return flight

    def _known(self, frame: ValueFrame, slot: int, wants: WantsCall) -> tuple[object] | None:
        """Return the result of an earlier session, in a tuple, as it may be null.

        A value that a processor held then may still be there, if there are such processors now.
        """
        known = frame.row.known.get(frame.node(slot)) if frame.row.known else None
        if known is None or known.signature != wants.signature:
            return None
        operator = frame.scope.operators[slot].operator
        assert operator is not None
        stayed = held_at(known.value) if is_passing(operator.params) else None
        if stayed is None:
            return (known.value,)
        if operator.name not in self._staying:
            return None
        if (held := self._held.join(frame.row, wants.signature)) is not None:
            return (held.stays,)  # another row has recomputed it, or found it there
        stays = Stays(stayed[1], 0)
        self._held.add(frame.row, operator, wants, stays)
        return (stays,)

    def _joined(self, evaluation: Evaluation, frame: ValueFrame, slot: int, signature: str) -> bool:
        operator = frame.scope.operators[slot].operator
        assert operator is not None
        key = key_of(operator, signature)
        memo, held = self._memo.get(key), self._held.join(frame.row, signature)
        if memo is not None or held is not None:
            value = held.stays if held is not None else memo[0]  # type: ignore[index]
            self._keep((frame, slot), signature, value, origin="merged", store=False)
            self._give(evaluation, frame, slot, signature, value)
            return True
        flight = self._by_signature.get(key)
        if flight is None:
            return False
        flight.waiting.append((frame, slot))
        _note(frame, slot, flight)
        return True

    def _tried(self, evaluation: Evaluation, frame: ValueFrame, slot: int, signature: str) -> bool:
        """Return whether the same call was tried early for the node.

        If so, the slot is settled, or takes the place of the trial's slot.
        """
        assert frame.row.early is not None
        node = frame.node(slot)
        found = frame.row.early.calls.get(node)
        if isinstance(found, Flight):
            if found.wants.signature != signature or self[found.number] is not found:
                return False
            tried = (at for at, each in enumerate(found.waiting) if _tries(each, frame.row, node))
            found.waiting[next(tried)] = (frame, slot)
            return True
        if found is None or found.signature != signature:
            return False
        if isinstance(found, EarlyResult):
            evaluation.settle(frame, slot, found.value)
        else:
            evaluation.fail(frame, slot, found.error)
        return True

    def cache_answered(self, evaluation: Evaluation, fact: CacheAnswered) -> None:
        self._fetching.discard(fact.call)
        flight = self._by_number[fact.call]
        if fact.call in self._texts:
            self._texts.discard(fact.call)
            self._read_again(evaluation, flight, fact)
        elif fact.hit:
            self._settle(evaluation, flight, fact.value, origin="fetched")
        elif _is_lenient(flight.operator):
            self._texts.add(fact.call)
            self._fetching.add(fact.call)
            self._out.append(FetchCached(fact.call, _of_text(flight), flight.operator.name))
        else:
            self._ready(flight)

    def _read_again(self, evaluation: Evaluation, flight: Flight, fact: CacheAnswered) -> None:
        """Parse an answer leniently that failed strictly; make the call if that fails, too."""
        params = flight.operator.params
        assert isinstance(params, Asking)
        if not fact.hit:
            self._ready(flight)
            return
        try:
            value = value_of(params, flight.wants.content, fact.value, cut=None)
        except OperatorFailed:
            self._ready(flight)
        else:
            self._settle(evaluation, flight, value, origin="fetched")

    def answered(self, evaluation: Evaluation, flight: Flight, fact: CallAnswered) -> None:
        params = flight.operator.params
        assert isinstance(params, Asking)
        if isinstance(fact.value, Stays):
            assert flight.operator.name in self._staying, "it was asked for its value"
            self._settle(evaluation, flight, fact.value, origin="called")
            return
        try:
            value = value_of(params, flight.wants.content, fact.value, cut=fact.cut)
        except OperatorFailed as error:
            is_whole = isinstance(fact.value, str) and fact.cut is None
            if is_whole and _has_json(flight.operator) and is_kept(flight.operator):
                self._out.append(KeepAnswer(_of_text(flight), str(fact.value)))
            self.broke(evaluation, flight, str(error))
            return
        except UNUSUAL as error:
            self.broke(evaluation, flight, f"{type(error).__name__}: {error}")
            return
        self._settle(evaluation, flight, value, origin="called", whole=fact.cut is None)

    def broke(self, evaluation: Evaluation, flight: Flight, error: str) -> None:
        """Fail a call, for all slots that wait for it."""
        self.forget(flight)
        for each in flight.then:
            if self[each.number] is each:
                self.broke(evaluation, each, error)
        for frame, slot in flight.waiting:
            if frame.row.alive:
                _note(frame, slot, EarlyFailure(flight.wants.signature, error))
                evaluation.fail(frame, slot, error)

    def forget(self, flight: Flight) -> None:
        self._by_number.pop(flight.number, None)
        if self._by_signature.get(flight.key) is flight:
            del self._by_signature[flight.key]
        if self._made_again.get(flight.wants.signature) is flight:
            del self._made_again[flight.wants.signature]

    def not_wanted(self, flight: Flight) -> None:
        """Drop a call that no row wants any more, and the calls that wait for it."""
        self.forget(flight)
        self._out.append(DropCall(flight.number))
        for each in flight.then:
            self.not_wanted(each)

    def make_again(self, flight: Flight, lost: tuple[str, ...]) -> bool:
        """Recompute the lost values that a call needs; the call is made again after that.

        False: it cannot be done.
        """
        flight.lost += 1
        found = {each: self._held[each] for each in lost}
        if flight.lost > _MOST_MADE_AGAIN or None in found.values():
            return False
        for value_id, held in found.items():
            if value_id in self._made_again:
                self._made_again[value_id].then.append(flight)
            elif held is not None:
                made = self._made_again[value_id] = self._new(held.operator, held.wants, flight)
                self._ready(made)
        flight.missing = len(found)
        return True

    def _was_made_again(self, flight: Flight, value: object) -> None:
        """Note where a recomputed value is held, and make the calls that waited only for it."""
        assert isinstance(value, Stays)
        held = self._held[flight.wants.signature]
        if held is not None:
            held.stays = value
        for each in flight.then:
            each.missing -= 1
            if not each.missing and self[each.number] is each:
                self._ready(each)

    def _settle(
        self,
        evaluation: Evaluation,
        flight: Flight,
        value: object,
        *,
        origin: Origin,
        whole: bool = True,
    ) -> None:
        self.forget(flight)
        if flight.then:
            self._was_made_again(flight, value)
            return
        signature, stays = flight.wants.signature, isinstance(value, Stays)
        if flight.operator.purity == "pure" and self._share and not stays:
            self._memo.put(flight.key, value)
        first = True
        for frame, slot in flight.waiting:
            if not frame.row.alive:
                continue
            if isinstance(value, Stays):
                self._held.add(frame.row, flight.operator, flight.wants, value)
            store = first and origin == "called" and is_kept(flight.operator) and not stays
            store = store and whole
            how = origin if first else "merged"
            self._keep((frame, slot), signature, value, origin=how, store=store)
            self._give(evaluation, frame, slot, signature, value)
            first = False

    def _give(
        self, evaluation: Evaluation, frame: ValueFrame, slot: int, signature: str, value: object
    ) -> None:
        operator = frame.scope.operators[slot].operator
        if operator is not None and isinstance(operator.params, Embedding):
            size = value.size_bytes if isinstance(value, Stays) else vectors_bytes(value)
            self._grew(frame.row, size)
        evaluation.settle(frame, slot, _given(signature, value))

    def _keep(
        self, at: Slot, signature: str, value: object, *, origin: Origin, store: bool
    ) -> None:
        frame, slot = at
        self._figures.merged += origin == "merged"
        self._figures.fetched += origin == "fetched"
        row = frame.row
        compiled = frame.scope.operators[slot]
        assert compiled.operator is not None
        params = compiled.operator.params
        self._observation.computed(compiled.name, row.stage, row.row)
        _note(frame, slot, EarlyResult(signature, _given(signature, value)))
        kept = held_text(signature, value.place) if isinstance(value, Stays) else value
        self._out.append(
            KeepResult(
                stage=row.stage,
                node=frame.node(slot),
                row=row.row,
                signature=signature,
                value=kept,
                origin=origin,
                store=store,
                until_end=is_passing(params),
            )
        )


def _has_json(operator: Operator) -> bool:
    """Return whether an operator's value is JSON, read from an engine's text."""
    return isinstance(operator.params, Generation) and operator.params.schema is not None


def _is_lenient(operator: Operator) -> bool:
    params = operator.params
    is_lenient = isinstance(params, Generation) and params.parse == "lenient"
    return is_lenient and _has_json(operator)


def _of_text(flight: Flight) -> str:
    """Return the cache's signature of the text of an answer that is not valid JSON."""
    return f"{flight.wants.signature} text"


def _given(signature: str, value: object) -> object:
    """Return the value that operators receive: the id of a held value, or the value itself."""
    return held_text(signature) if isinstance(value, Stays) else value


def _tries(waiting: Slot, row: OpenRow, node: str) -> bool:
    frame, slot = waiting
    return isinstance(frame.row, TrialRow) and frame.row.of is row and frame.node(slot) == node


def _note(frame: ValueFrame, slot: int, call: Flight | EarlyResult | EarlyFailure) -> None:
    """Note the result of a trial's call, for when the row itself makes the same call."""
    if isinstance(frame.row, TrialRow):
        assert frame.row.of.early is not None
        frame.row.of.early.calls[frame.node(slot)] = call

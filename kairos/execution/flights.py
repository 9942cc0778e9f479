"""Calls from being wanted to their results: equal ones are made once, and their results shared.

A call that another row, or another operator, has under way is joined (single flight). One that is
known from an earlier session, from another row or from the cache is not made at all. Only
deterministic ones are shared.
"""

from collections.abc import Callable, Iterator
from typing import Literal

from kairos.execution.behaviours import WantsCall
from kairos.execution.commands import FetchCached, FlowCommand, KeepResult
from kairos.execution.evaluation import Evaluation
from kairos.execution.facts import CacheAnswered, CallAnswered
from kairos.execution.frames import OpenRow, Slot, ValueFrame
from kairos.execution.limits import FlowFigures
from kairos.execution.memo import ResultMemo
from kairos.execution.observation import FlowObservation
from kairos.execution.requests import value_of
from kairos.execution.trials import EarlyFailure, EarlyResult, TrialRow
from kairos.plan.invalid import OperatorFailed
from kairos.plan.operators import Asking, Embedding, Operator
from kairos.plan.passes.cached import is_kept
from kairos.plan.retrieval import is_passing, vectors_bytes

Origin = Literal["called", "merged", "fetched"]


class Flight:
    """One call, and who waits for it. `number` names it in commands; `items` are those that its
    answer has, as far as it is told while it is written."""

    __slots__ = ("attempt", "items", "number", "operator", "reserved_tokens", "waiting", "wants")

    def __init__(self, number: int, operator: Operator, wants: WantsCall, first: Slot) -> None:
        self.number, self.operator, self.wants = number, operator, wants
        self.waiting: list[Slot] = [first]
        self.items: list[object] = []
        self.attempt = 1
        self.reserved_tokens = 0

    @property
    def leader(self) -> Slot:
        """Whose row the call is made for: the first that still wants it."""
        return next(self._wanting(), self.waiting[0])

    @property
    def wanted(self) -> bool:
        return any(True for _ in self._wanting())

    def _wanting(self) -> Iterator[Slot]:
        return (slot for slot in self.waiting if slot[0].row.alive)


class Flights:
    """`ready`: told of each call that must be made; `grew`: how many bytes of vectors a row has
    more."""

    def __init__(
        self,
        *,
        share: bool,
        memo: ResultMemo,
        figures: FlowFigures,
        observation: FlowObservation,
        out: list[FlowCommand],
        ready: Callable[[Flight], None],
        grew: Callable[[OpenRow, int], None],
    ) -> None:
        self._share, self._memo, self._figures = share, memo, figures
        self._observation = observation
        self._out, self._ready, self._grew = out, ready, grew
        self._by_signature: dict[str, Flight] = {}
        self._by_number: dict[int, Flight] = {}
        self._fetching: set[int] = set()
        self._number = 0

    @property
    def fetching(self) -> int:
        return len(self._fetching)

    def __getitem__(self, number: int) -> Flight | None:
        return self._by_number.get(number)

    def want(self, evaluation: Evaluation, frame: ValueFrame, slot: int, wants: WantsCall) -> None:
        """The slot is settled at once where the result is known."""
        known = frame.row.known.get(frame.node(slot)) if frame.row.known else None
        if known is not None and known.signature == wants.signature:
            self._figures.resumed += 1
            self._give(evaluation, frame, slot, known.value)
            return
        if frame.row.early is not None and self._tried(evaluation, frame, slot, wants.signature):
            return
        compiled = frame.scope.operators[slot]
        assert compiled.operator is not None
        shared = compiled.operator.purity == "pure" and self._share
        if shared and self._joined(evaluation, frame, slot, wants.signature):
            return
        self._number += 1
        flight = Flight(self._number, compiled.operator, wants, (frame, slot))
        _note(frame, slot, flight)
        self._by_number[flight.number] = flight
        if shared:
            self._by_signature[wants.signature] = flight
        if compiled.fetched:
            self._fetching.add(flight.number)
            self._out.append(FetchCached(flight.number, wants.signature))
        else:
            self._ready(flight)

    def _joined(self, evaluation: Evaluation, frame: ValueFrame, slot: int, signature: str) -> bool:
        held = self._memo.get(signature)
        if held is not None:
            self._keep((frame, slot), signature, held[0], origin="merged", store=False)
            self._give(evaluation, frame, slot, held[0])
            return True
        flight = self._by_signature.get(signature)
        if flight is None:
            return False
        flight.waiting.append((frame, slot))
        _note(frame, slot, flight)
        return True

    def _tried(self, evaluation: Evaluation, frame: ValueFrame, slot: int, signature: str) -> bool:
        """Whether the same was asked for the node before it was known to be needed. Then it is
        settled, or takes the place of what asked."""
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
        if fact.hit:
            self._settle(evaluation, flight, fact.value, origin="fetched")
        else:
            self._ready(flight)

    def answered(self, evaluation: Evaluation, flight: Flight, fact: CallAnswered) -> None:
        params = flight.operator.params
        assert isinstance(params, Asking)
        try:
            value = value_of(params, flight.wants.content, fact.value, cut=fact.cut)
        except OperatorFailed as error:
            self.broke(evaluation, flight, str(error))
            return
        self._settle(evaluation, flight, value, origin="called")

    def broke(self, evaluation: Evaluation, flight: Flight, error: str) -> None:
        """For all who wait for it."""
        self.forget(flight)
        for frame, slot in flight.waiting:
            if frame.row.alive:
                _note(frame, slot, EarlyFailure(flight.wants.signature, error))
                evaluation.fail(frame, slot, error)

    def forget(self, flight: Flight) -> None:
        self._by_number.pop(flight.number, None)
        if self._by_signature.get(flight.wants.signature) is flight:
            del self._by_signature[flight.wants.signature]

    def _settle(
        self, evaluation: Evaluation, flight: Flight, value: object, *, origin: Origin
    ) -> None:
        self.forget(flight)
        shared = flight.operator.purity == "pure" and self._share
        if shared:
            self._memo.put(flight.wants.signature, value)
        first = True
        for frame, slot in flight.waiting:
            if not frame.row.alive:
                continue
            store = first and origin == "called" and is_kept(flight.operator)
            how = origin if first else "merged"
            self._keep((frame, slot), flight.wants.signature, value, origin=how, store=store)
            self._give(evaluation, frame, slot, value)
            first = False

    def _give(self, evaluation: Evaluation, frame: ValueFrame, slot: int, value: object) -> None:
        operator = frame.scope.operators[slot].operator
        if operator is not None and isinstance(operator.params, Embedding):
            self._grew(frame.row, vectors_bytes(value))
        evaluation.settle(frame, slot, value)

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
        _note(frame, slot, EarlyResult(signature, value))
        self._out.append(
            KeepResult(
                stage=row.stage,
                node=frame.node(slot),
                row=row.row,
                signature=signature,
                value=value,
                origin=origin,
                store=store,
                until_end=is_passing(params),
            )
        )


def _tries(waiting: Slot, row: OpenRow, node: str) -> bool:
    frame, slot = waiting
    return isinstance(frame.row, TrialRow) and frame.row.of is row and frame.node(slot) == node


def _note(frame: ValueFrame, slot: int, call: Flight | EarlyResult | EarlyFailure) -> None:
    """What became of a trial's call, for when the row itself asks the same."""
    if isinstance(frame.row, TrialRow):
        assert frame.row.of.early is not None
        frame.row.of.early.calls[frame.node(slot)] = call

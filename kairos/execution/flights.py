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
from kairos.execution.frames import Slot, ValueFrame
from kairos.execution.limits import FlowFigures
from kairos.execution.memo import ResultMemo
from kairos.execution.observation import FlowObservation
from kairos.execution.requests import value_of
from kairos.plan.invalid import OperatorFailed
from kairos.plan.operators import Generation, Operator, RegisteredCall

Origin = Literal["called", "merged", "fetched"]


class Flight:
    """One call, and who waits for it. `number` names it in commands."""

    __slots__ = ("attempt", "number", "operator", "reserved_tokens", "waiting", "wants")

    def __init__(self, number: int, operator: Operator, wants: WantsCall, first: Slot) -> None:
        self.number, self.operator, self.wants = number, operator, wants
        self.waiting: list[Slot] = [first]
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
    """`ready`: told of each call that must be made."""

    def __init__(
        self,
        *,
        share: bool,
        memo: ResultMemo,
        figures: FlowFigures,
        observation: FlowObservation,
        out: list[FlowCommand],
        ready: Callable[[Flight], None],
    ) -> None:
        self._share, self._memo, self._figures = share, memo, figures
        self._observation = observation
        self._out, self._ready = out, ready
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
            evaluation.settle(frame, slot, known.value)
            return
        compiled = frame.scope.operators[slot]
        assert compiled.operator is not None
        shared = compiled.operator.purity == "pure" and self._share
        if shared and self._joined(evaluation, frame, slot, wants.signature):
            return
        self._number += 1
        flight = Flight(self._number, compiled.operator, wants, (frame, slot))
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
            evaluation.settle(frame, slot, held[0])
            return True
        flight = self._by_signature.get(signature)
        if flight is None:
            return False
        flight.waiting.append((frame, slot))
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
        assert isinstance(params, Generation | RegisteredCall)
        try:
            value = value_of(params, fact.value, cut=fact.cut)
        except OperatorFailed as error:
            self.broke(evaluation, flight, str(error))
            return
        self._settle(evaluation, flight, value, origin="called")

    def broke(self, evaluation: Evaluation, flight: Flight, error: str) -> None:
        """For all who wait for it."""
        self.forget(flight)
        for frame, slot in flight.waiting:
            if frame.row.alive:
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
            store = first and origin == "called" and flight.operator.purity == "pure"
            how = origin if first else "merged"
            self._keep((frame, slot), flight.wants.signature, value, origin=how, store=store)
            evaluation.settle(frame, slot, value)
            first = False

    def _keep(
        self, at: Slot, signature: str, value: object, *, origin: Origin, store: bool
    ) -> None:
        frame, slot = at
        self._figures.merged += origin == "merged"
        self._figures.fetched += origin == "fetched"
        row = frame.row
        compiled = frame.scope.operators[slot]
        self._observation.computed(compiled.name, row.stage, row.row)
        self._out.append(
            KeepResult(row.stage, frame.node(slot), row.row, signature, value, origin, store)
        )

"""Calls from demand to result: equal ones are made once, and their results shared.

A call that another row, or another operator, has in flight is joined (single flight). A result that
is known from an earlier session, from another row (`ResultMemo`) or from the cache is reused. Only
deterministic calls are shared.

A value may stay with the processor that computed it (`_HeldValues`). If the processor dies with it,
the call that made the value is repeated by any processor (its lineage, as in Spark's RDDs), and
nothing else is: users of the value have only its id, which stays the same.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Generic, Literal, TypeVar

import msgspec

from kairos.workflows.compile.held import held_at, held_in, held_text
from kairos.workflows.compile.invalid import OperatorFailed
from kairos.workflows.compile.operators import (
    Asking,
    Embedding,
    Generation,
    Operator,
    Processing,
    RegisteredCall,
    Rerank,
    batch_size,
    kind_of,
)
from kairos.workflows.compile.passes.cached import is_kept
from kairos.workflows.compile.pipeline import Plan
from kairos.workflows.compile.retrieval import is_passing, settings, vectors_bytes
from kairos.workflows.execute.behaviours import WantsCall
from kairos.workflows.execute.commands import (
    DropCall,
    DropHeld,
    FetchCached,
    FlowCommand,
    IssueCall,
    KeepAnswer,
    KeepResult,
    RunFunction,
    RunProcessor,
)
from kairos.workflows.execute.evaluation import UNUSUAL, Evaluation
from kairos.workflows.execute.facts import CacheAnswered, CallAnswered, Stays
from kairos.workflows.execute.flight import Flight, key_of
from kairos.workflows.execute.frames import OpenRow, Slot, ValueFrame
from kairos.workflows.execute.limits import FlowFigures
from kairos.workflows.execute.observation import FlowObservation
from kairos.workflows.execute.requests import value_of
from kairos.workflows.execute.trials import EarlyFailure, EarlyResult, TrialRow

_T = TypeVar("_T")
Origin = Literal["called", "merged", "fetched"]

_FIRST_DELAY_US, _LONGEST_DELAY_US = 500_000, 30_000_000
_MOST_MADE_AGAIN = 8  # losses of a call's inputs, until it fails


class Flights:
    """Calls in flight, their sharing, and the commands that make them.

    `ready`: called for each call that must be made; `grew`: called with the bytes of vectors that a
    row gains.
    """

    def __init__(
        self,
        plan: Plan,
        memo_bytes: int,
        evaluation: Evaluation,
        *,
        figures: FlowFigures,
        observation: FlowObservation,
        out: list[FlowCommand],
        ready: Callable[[Flight], None],
        grew: Callable[[OpenRow, int], None],
    ) -> None:
        self._share, self._staying, self._depths = plan.passes.cse, plan.staying, plan.depths
        self._partial = {each.operator: each for each in plan.partial}
        self._memo, self._held = ResultMemo[object](memo_bytes), _HeldValues(out)
        self._evaluation, self._figures = evaluation, figures
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

    def request_value(self, frame: ValueFrame, slot: int, wants: WantsCall) -> None:
        """Get a slot's value: at once if it is known, else by a call."""
        if (known := self._known_result(frame, slot, wants)) is not None:
            self._figures.resumed += 1
            self._settle_slot(frame, slot, wants.signature, known[0])
            return
        if frame.row.early is not None and self._use_trial(frame, slot, wants.signature):
            return
        compiled = frame.scope.operators[slot]
        assert compiled.operator is not None
        shared = compiled.operator.purity == "pure" and self._share
        if shared and self._join_call(frame, slot, wants.signature):
            return
        flight = self._new_flight(compiled.operator, wants, (frame, slot))
        _note(frame, slot, flight)
        if shared:
            self._by_signature[flight.key] = flight
        if compiled.fetched:
            self._fetching.add(flight.number)
            self._out.append(FetchCached(flight.number, wants.signature, compiled.name))
        else:
            self._ready(flight)

    def _new_flight(self, operator: Operator, wants: WantsCall, first: Slot | Flight) -> Flight:
        self._number += 1
        flight = self._by_number[self._number] = Flight(self._number, operator, wants, first)
        return flight

    def _known_result(self, frame: ValueFrame, slot: int, wants: WantsCall) -> tuple[object] | None:
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

    def _join_call(self, frame: ValueFrame, slot: int, signature: str) -> bool:
        operator = frame.scope.operators[slot].operator
        assert operator is not None
        key = key_of(operator, signature)
        memo, held = self._memo.get(key), self._held.join(frame.row, signature)
        if memo is not None or held is not None:
            value = held.stays if held is not None else memo[0]  # type: ignore[index]
            self._keep_result((frame, slot), signature, value, origin="merged", store=False)
            self._settle_slot(frame, slot, signature, value)
            return True
        flight = self._by_signature.get(key)
        if flight is None:
            return False
        flight.waiting.append((frame, slot))
        _note(frame, slot, flight)
        return True

    def _use_trial(self, frame: ValueFrame, slot: int, signature: str) -> bool:
        """Return whether the same call was tried early for the node.

        If so, the slot is settled, or takes the place of the trial's slot.
        """
        assert frame.row.early is not None
        node = frame.node(slot)
        found = frame.row.early.calls.get(node)
        if isinstance(found, Flight):
            if found.wants.signature != signature or self[found.number] is not found:
                return False
            tried = (
                at for at, each in enumerate(found.waiting) if _is_trial_of(each, frame.row, node)
            )
            found.waiting[next(tried)] = (frame, slot)
            return True
        if found is None or found.signature != signature:
            return False
        if isinstance(found, EarlyResult):
            self._evaluation.settle(frame, slot, found.value)
        else:
            self._evaluation.fail(frame, slot, found.error)
        return True

    def on_cache_answer(self, fact: CacheAnswered) -> None:
        self._fetching.discard(fact.call)
        flight = self._by_number[fact.call]
        if fact.call in self._texts:
            self._texts.discard(fact.call)
            self._read_again(flight, fact)
        elif fact.hit:
            self._settle(flight, fact.value, origin="fetched")
        elif _is_lenient(flight.operator):
            self._texts.add(fact.call)
            self._fetching.add(fact.call)
            self._out.append(FetchCached(fact.call, _text_signature(flight), flight.operator.name))
        else:
            self._ready(flight)

    def _read_again(self, flight: Flight, fact: CacheAnswered) -> None:
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
            self._settle(flight, value, origin="fetched")

    def finish_call(self, flight: Flight, fact: CallAnswered) -> None:
        params = flight.operator.params
        assert isinstance(params, Asking)
        if isinstance(fact.value, Stays):
            assert flight.operator.name in self._staying, "it was asked for its value"
            self._settle(flight, fact.value, origin="called")
            return
        try:
            value = value_of(params, flight.wants.content, fact.value, cut=fact.cut)
        except OperatorFailed as error:
            is_whole = isinstance(fact.value, str) and fact.cut is None
            if is_whole and _answers_json(flight.operator) and is_kept(flight.operator):
                self._out.append(KeepAnswer(_text_signature(flight), str(fact.value)))
            self.fail_call(flight, str(error))
            return
        except UNUSUAL as error:
            self.fail_call(flight, f"{type(error).__name__}: {error}")
            return
        self._settle(flight, value, origin="called", whole=fact.cut is None)

    def fail_call(self, flight: Flight, error: str) -> None:
        """Fail a call, for all slots that wait for it."""
        self._forget_call(flight)
        for each in flight.then:
            if self[each.number] is each:
                self.fail_call(each, error)
        for frame, slot in flight.waiting:
            if frame.row.alive:
                _note(frame, slot, EarlyFailure(flight.wants.signature, error))
                self._evaluation.fail(frame, slot, error)

    def close_row(self, row: OpenRow) -> None:
        """Discard early work of a row that has ended, and values that only this row needed."""
        if row.early is not None:
            row.early.discard_trials()
        self._held.release_row(row)

    def _forget_call(self, flight: Flight) -> None:
        self._by_number.pop(flight.number, None)
        if self._by_signature.get(flight.key) is flight:
            del self._by_signature[flight.key]
        if self._made_again.get(flight.wants.signature) is flight:
            del self._made_again[flight.wants.signature]

    def drop_call(self, flight: Flight) -> None:
        """Drop a call that no row wants any more, and the calls that wait for it."""
        self._forget_call(flight)
        self._out.append(DropCall(flight.number))
        for each in flight.then:
            self.drop_call(each)

    def remake_lost(self, flight: Flight, lost: tuple[str, ...]) -> bool:
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
                made = self._made_again[value_id] = self._new_flight(
                    held.operator, held.wants, flight
                )
                self._ready(made)
        flight.missing = len(found)
        return True

    def _resume_after(self, flight: Flight, value: object) -> None:
        """Note where a recomputed value is held, and make the calls that waited only for it."""
        assert isinstance(value, Stays)
        held = self._held[flight.wants.signature]
        if held is not None:
            held.stays = value
        for each in flight.then:
            each.missing -= 1
            if not each.missing and self[each.number] is each:
                self._ready(each)

    def attempt_command(self, flight: Flight) -> IssueCall | RunFunction | RunProcessor:
        """Return the command of the call's next attempt."""
        frame, slot = flight.leader
        operator, wants = flight.operator, flight.wants
        params, node, row = operator.params, frame.node(slot), frame.row
        attempt = (  # the fields of a CallAttempt
            flight.number,
            row.stage,
            node,
            row.row,
            flight.attempt,
            operator.name,
            wants.signature,
            _delay_us(flight.attempt),
        )
        if isinstance(params, Generation):
            items = self._partial.get(operator.name)
            return IssueCall(*attempt, model=params.model, body=wants.content, items=items)
        key = f"{row.stage}/{node}/{row.row}" if operator.purity == "effect" else None
        if isinstance(params, RegisteredCall):
            return RunFunction(
                *attempt,
                function=params.function,
                arguments=wants.content,
                idempotency_key=key,
                batch=batch_size(params) if params.is_batched else None,
                depth=self._depths[operator.name],
                cpus=params.cpus,
            )
        assert isinstance(params, Processing)
        return RunProcessor(
            *attempt,
            kind=kind_of(params),  # type: ignore[arg-type]
            model=params.model if isinstance(params, Embedding | Rerank) else None,
            arguments={**wants.content, **settings(params)},
            idempotency_key=key,
            depth=self._depths[operator.name],
            stays=operator.name in self._staying,
            held=self._held.places(wants.content),
        )

    def _settle(
        self,
        flight: Flight,
        value: object,
        *,
        origin: Origin,
        whole: bool = True,
    ) -> None:
        self._forget_call(flight)
        if flight.then:
            self._resume_after(flight, value)
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
            self._keep_result((frame, slot), signature, value, origin=how, store=store)
            self._settle_slot(frame, slot, signature, value)
            first = False

    def _settle_slot(self, frame: ValueFrame, slot: int, signature: str, value: object) -> None:
        operator = frame.scope.operators[slot].operator
        if operator is not None and isinstance(operator.params, Embedding):
            size = value.size_bytes if isinstance(value, Stays) else vectors_bytes(value)
            self._grew(frame.row, size)
        self._evaluation.settle(frame, slot, _passed_value(signature, value))

    def _keep_result(
        self, at: Slot, signature: str, value: object, *, origin: Origin, store: bool
    ) -> None:
        frame, slot = at
        self._figures.merged += origin == "merged"
        self._figures.fetched += origin == "fetched"
        row = frame.row
        compiled = frame.scope.operators[slot]
        assert compiled.operator is not None
        params = compiled.operator.params
        self._observation.count_result(compiled.name, row.stage, row.row)
        _note(frame, slot, EarlyResult(signature, _passed_value(signature, value)))
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


def _delay_us(attempt: int) -> int:
    """Return the wait before an attempt: 0.5 s before the second, then twice as long each time."""
    if attempt == 1:
        return 0
    return min(_FIRST_DELAY_US << (attempt - 2), _LONGEST_DELAY_US)


def _answers_json(operator: Operator) -> bool:
    """Return whether an operator's value is JSON, read from an engine's text."""
    return isinstance(operator.params, Generation) and operator.params.schema is not None


def _is_lenient(operator: Operator) -> bool:
    params = operator.params
    is_lenient = isinstance(params, Generation) and params.parse == "lenient"
    return is_lenient and _answers_json(operator)


def _text_signature(flight: Flight) -> str:
    """Return the cache's signature of the text of an answer that is not valid JSON."""
    return f"{flight.wants.signature} text"


def _passed_value(signature: str, value: object) -> object:
    """Return the value that operators receive: the id of a held value, or the value itself."""
    return held_text(signature) if isinstance(value, Stays) else value


def _is_trial_of(waiting: Slot, row: OpenRow, node: str) -> bool:
    frame, slot = waiting
    return isinstance(frame.row, TrialRow) and frame.row.of is row and frame.node(slot) == node


def _note(frame: ValueFrame, slot: int, call: Flight | EarlyResult | EarlyFailure) -> None:
    """Note the result of a trial's call, for when the row itself makes the same call."""
    if isinstance(frame.row, TrialRow):
        assert frame.row.of.early is not None
        frame.row.of.early.calls[frame.node(slot)] = call


class _HeldValue(msgspec.Struct):
    """Held value. `rows`: the rows that still need it."""

    operator: Operator
    wants: WantsCall
    stays: Stays
    rows: set[OpenRow] = msgspec.field(default_factory=set)


class _HeldValues:
    """Held values by id, which is the signature of the call. O(1) for each value of a row."""

    def __init__(self, out: list[FlowCommand]) -> None:
        self._out = out
        self._values: dict[str, _HeldValue] = {}
        self._of_row: dict[OpenRow, list[str]] = {}

    def __getitem__(self, value_id: str) -> _HeldValue | None:
        return self._values.get(value_id)

    def add(self, row: OpenRow, operator: Operator, wants: WantsCall, stays: Stays) -> None:
        """Note that a row needs a value, and where the value is held."""
        held = self._values.get(wants.signature)
        if held is None:
            held = self._values[wants.signature] = _HeldValue(operator, wants, stays)
        held.stays = stays
        self.join(row, wants.signature)

    def join(self, row: OpenRow, value_id: str) -> _HeldValue | None:
        """Note that another row needs a value, and return the value; None if it is unknown."""
        held = self._values.get(value_id)
        owner = row.of if isinstance(row, TrialRow) else row
        if held is not None and owner not in held.rows:
            held.rows.add(owner)
            self._of_row.setdefault(owner, []).append(value_id)
        return held

    def places(self, arguments: Mapping[str, object]) -> dict[str, str]:
        """Return the places of the held values among some arguments.

        A text that only looks like a held value's id has no place.
        """
        found = ((each, self._values.get(each)) for each in held_in(arguments))
        return {each: held.stays.place for each, held in found if held is not None}

    def release_row(self, row: OpenRow) -> None:
        """Drop values that no other open row needs."""
        for value_id in self._of_row.pop(row, ()):
            held = self._values[value_id]
            held.rows.discard(row)
            if not held.rows:
                del self._values[value_id]
                self._out.append(DropHeld(value_id, held.stays.place))


class ResultMemo(Generic[_T]):
    """Results, bounded in bytes. An evicted result is fetched from the cache, or recomputed."""

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._held = 0
        self._entries: OrderedDict[str, tuple[_T, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, signature: str) -> tuple[_T] | None:
        """Return a result in a tuple, as it may be null; None: not there."""
        entry = self._entries.get(signature)
        if entry is None:
            return None
        self._entries.move_to_end(signature)
        return (entry[0],)

    def put(self, signature: str, value: _T) -> None:
        size = _OVERHEAD + _size(value)
        if size > self._most or signature in self._entries:
            return
        self._entries[signature] = (value, size)
        self._held += size
        while self._held > self._most:
            _, (_, gone) = self._entries.popitem(last=False)
            self._held -= gone


def _size(value: object) -> int:
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return sum(map(len, value))  # usually vectors: large, in characters of one byte
    return len(value) if isinstance(value, str | bytes) else len(msgspec.json.encode(value))


_OVERHEAD = 200  # bytes, overhead of an entry

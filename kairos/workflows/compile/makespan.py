"""Time that calls take on a pool, modelled as a fluid (`fluid_engine.py`).

A call's steps are not simulated one by one.

Calls follow the order that the run uses (`kept_order.py`), with as many open rows as it says.

Not modelled: preemption (a call is sent to an instance when its prompt and half of its answer fit),
what the balancer learns, failures, rows that stay open for calls of other rows, and prefixes that a
run of few rows prefills ahead.
"""

import heapq
from collections import Counter, deque
from collections.abc import Sequence

import msgspec

from kairos.core import ALIKE, ALIKE_BUT_FOR_LOAD, EngineProfile
from kairos.workflows.compile.fluid_engine import FluidCall, FluidInstance, Running
from kairos.workflows.compile.passes.order import AS_DECLARED, CallOrder

_COMES, _ENDS, _BEGINS, _FUNCTION = 0, 1, 2, 3
_FUNCTIONS = 32  # functions that a run has in flight at once


class Makespan(msgspec.Struct, frozen=True):
    time_us: float
    cached_tokens: float  # of prompts


def makespan(
    calls: Sequence[FluidCall],
    profile: EngineProfile,
    instances: int,
    order: CallOrder = AS_DECLARED,
    operators: Sequence[str] = (),
) -> Makespan:
    """Return the time from the first call to the end of the last.

    Rows come in their order; a ready call is sent to the instance on which it costs least. Takes
    O(log n) for each call and prefix.

    Args:
        calls: of rows, one row after another.
        profile: of each instance.
        instances: in the pool.
        order: of the run.
        operators: of each call; not needed if the order has no turns.
    """
    turns = _Turns(calls, order, operators)
    pool = _Pool(calls, profile, instances, turns)
    return pool.run()


class _Turns:
    """Open rows, and the order of ready calls."""

    def __init__(
        self, calls: Sequence[FluidCall], order: CallOrder, operators: Sequence[str]
    ) -> None:
        self._calls, self._order, self._operators = calls, order, operators
        self._left = Counter(call.row for call in calls)  # calls of rows that have not ended
        rows = list(self._left)
        self._most = len(rows) if order.open_rows is None else order.open_rows
        self._outside = deque(rows[self._most :])
        self._held_back: dict[int, list[int]] = {row: [] for row in self._outside}

    def key(self, index: int) -> tuple[int, int, int, int, int]:
        """Return the key of a call; the smallest goes first."""
        operator = self._operators[index] if self._operators else ""
        return *self._order.key(operator, self._calls[index].row), index

    def is_held_back(self, index: int) -> bool:
        """Return whether a call's row is not open yet; if so, the call waits for it."""
        held = self._held_back.get(self._calls[index].row)
        if held is not None:
            held.append(index)
        return held is not None

    def ended(self, index: int) -> Sequence[int]:
        """Count an ended call. Return the calls that become ready as a row opens."""
        row = self._calls[index].row
        self._left[row] -= 1
        if self._left[row]:
            return ()
        del self._left[row]
        return self._held_back.pop(self._outside.popleft()) if self._outside else ()


class _Pool:
    def __init__(
        self, calls: Sequence[FluidCall], profile: EngineProfile, instances: int, turns: _Turns
    ) -> None:
        self._calls, self._profile, self._turns = calls, profile, turns
        self._instances = [FluidInstance(profile) for _ in range(instances)]
        self._lacking = [len(call.after) for call in self._calls]
        self._behind: dict[int, list[int]] = {}
        self._ready: list[tuple[int, int, int, int, int]] = []  # a heap: keys, with the call
        # The same, of functions and of each kind of processor; and how many more these take.
        self._functions: dict[str, list[tuple[int, int, int, int, int]]] = {}
        self._free = {"": _FUNCTIONS}
        for index, call in enumerate(self._calls):
            for before in call.after:
                self._behind.setdefault(before, []).append(index)
            if not call.after:
                self._is_ready(index)
        # When, what, on which instance, and in which version of what it does.
        self._events: list[tuple[float, int, int, int]] = []
        self._sent: list[deque[Running]] = [deque() for _ in range(instances)]
        self._cached_tokens = 0.0

    def run(self) -> Makespan:
        self._dispatch(0.0)
        now = 0.0
        while self._events:
            now, what, number, version = heapq.heappop(self._events)
            if what == _FUNCTION:
                self._free[self._calls[number].processor] += 1
                self._call_ended(number)
                self._dispatch(now)
                continue
            instance = self._instances[number]
            if what == _COMES:
                self._comes(number, now)
            elif version == instance.version:
                if what == _ENDS:
                    self._ended(instance, now)
                if instance.has_work:
                    self._wake(number, instance.begin(now))
        return Makespan(now, self._cached_tokens)

    def _wake(self, number: int, at: float, what: int = _ENDS) -> None:
        heapq.heappush(self._events, (at, what, number, self._instances[number].version))

    def _comes(self, number: int, now: float) -> None:
        instance = self._instances[number]
        running = self._sent[number].popleft()
        instance.add(running)
        if instance.is_idle:
            instance.version += 1
            self._wake(number, now, _BEGINS)
        else:
            self._wake(number, instance.cut(now))

    def _is_ready(self, index: int) -> None:
        if not self._turns.is_held_back(index):
            call, ready = self._calls[index], self._ready
            if call.function_us:
                ready = self._functions.setdefault(call.processor, [])
            heapq.heappush(ready, self._turns.key(index))

    def _ended(self, instance: FluidInstance, now: float) -> None:
        for index in instance.end(self._calls):
            call = self._calls[index]
            instance.release(call)
            instance.remember_answer(call)
            self._call_ended(index)
        self._dispatch(now)

    def _call_ended(self, index: int) -> None:
        """Handle the end of a call: calls that waited only for it are ready."""
        for opened in self._turns.ended(index):
            self._is_ready(opened)
        for behind in self._behind.get(index, ()):
            self._lacking[behind] -= 1
            if not self._lacking[behind]:
                self._is_ready(behind)

    def _dispatch(self, now: float) -> None:
        """Send ready calls as far as there is room; the first without room holds back the rest."""
        for processor, waiting in self._functions.items():
            while waiting and self._free.setdefault(processor, 1):
                index = heapq.heappop(waiting)[-1]
                self._free[processor] -= 1
                ends = now + self._calls[index].function_us
                heapq.heappush(self._events, (ends, _FUNCTION, index, 0))
        while self._ready:
            index = self._ready[0][-1]
            number = self._place(self._calls[index])
            if number is None:
                break
            heapq.heappop(self._ready)
            self._send(index, number, now)

    def _place(self, call: FluidCall) -> int | None:
        """Choose an instance as Kairos's placement does; None if none has room.

        It is the instance on which the call costs least time, its own and that of the running
        calls; among similar ones the least loaded.
        """
        found: list[tuple[float, float, int]] = []  # what it costs there, what is taken, which
        cached = set()
        for number, each in enumerate(self._instances):
            full = each.calls >= self._profile.max_num_seqs
            if each.calls and (full or each.held + each.needs(call) > self._profile.kv_tokens):
                continue
            known = each.cached(call)
            cached.add(known)
            found.append((self._costs_us(call, each, known), each.taken, number))
        if not found:
            return None
        alike = ALIKE if len(cached) > 1 else ALIKE_BUT_FOR_LOAD
        most = min(found)[0] * (1 + alike)
        return min((taken, number) for cost, taken, number in found if cost <= most)[1]

    def _costs_us(self, call: FluidCall, instance: FluidInstance, cached: float) -> float:
        cost, running = self._profile.step, instance.calls
        compute = (call.prompt_tokens - cached) * cost.prefill_token_us * (1 + running)
        step = cost.fixed_us + max(cost.weights_us, cost.decode_seq_us * (1 + running))
        step += cost.kv_token_us * (instance.held + call.holds)
        slower = cost.decode_seq_us + cost.kv_token_us * call.holds
        return compute + call.completion_tokens * (step + running * slower)

    def _send(self, index: int, number: int, now: float) -> None:
        call, instance = self._calls[index], self._instances[number]
        cached = instance.cached(call)
        self._cached_tokens += cached
        instance.hold(call)
        running = Running(index, call.prompt_tokens, cached)
        instance.coming += running.left
        self._sent[number].append(running)
        instance.remember_prompt(call)
        self._wake(number, now + self._profile.call_us, _COMES)

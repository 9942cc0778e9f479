"""How long calls take on a pool, as a fluid: a call's steps are not looked at one by one
(`fluid_engine.py`).

Beginnings of prompts that the plan computes ahead go as `execution/prefills.py` has it: when a call
goes that the rest waits for, if engines have room then and few rows are open; else never.

Not modelled: preemption (a call goes to an instance when its prompt and half of its answer fit),
what the balancer learns, and anything that fails.
"""

import heapq
from collections import Counter, deque
from collections.abc import Iterator, Sequence

import msgspec

from kairos.dispatcher.survival_packing import ALIKE, ALIKE_BUT_FOR_LOAD
from kairos.engine_profile import EngineProfile
from kairos.plan.fluid_engine import Beginning, FluidCall, FluidInstance, Running
from kairos.plan.passes.prefill import goes_ahead

_COMES, _ENDS, _BEGINS, _FUNCTION = 0, 1, 2, 3
_FUNCTIONS = 32  # that a run has under way at once


class Makespan(msgspec.Struct, frozen=True):
    time_us: float
    cached_tokens: float  # of prompts


def makespan(calls: Sequence[FluidCall], profile: EngineProfile, instances: int) -> Makespan:
    """From the first call to the end of the last. Rows come in their order; what is ready goes to
    the instance on which it costs least. Takes O(log n) for each call and prefix."""
    pool = _Pool(calls, profile, instances)
    return pool.run()


class _Beginnings:
    """Owns which beginnings are ready, and which are due. Each is a call after all others."""

    def __init__(self, calls: Sequence[FluidCall]) -> None:
        self.calls: list[FluidCall] = []
        self._whole: dict[int, int] = {}  # the call that each is the beginning of
        self._beside: dict[int, list[int]] = {}
        self._ready: set[int] = set()
        self._begun: set[int] = set()  # calls, and beginnings beside which one has gone
        self._due: list[int] = []
        for index, call in enumerate(calls):
            if call.begins is not None:
                self._add(len(calls) + len(self.calls), index, call, call.begins)

    def ready(self, number: int) -> None:
        """What it needs is answered."""
        if number in self._begun:
            self._due.append(number)
        else:
            self._ready.add(number)

    def sent(self, index: int) -> None:
        """A call goes to an engine."""
        self._begun.add(index)
        for number in self._beside.get(index, ()):
            self._begun.add(number)
            if number in self._ready:
                self._ready.discard(number)
                self._due.append(number)

    def due(self) -> Iterator[int]:
        """Each once: what does not go now never does. Not those whose whole prompt went."""
        due, self._due = self._due, []
        return (number for number in due if self._whole[number] not in self._begun)

    def _add(self, number: int, index: int, call: FluidCall, part: Beginning) -> None:
        self._whole[number] = index
        for other in part.beside:
            self._beside.setdefault(other, []).append(number)
        prefixes = tuple(each for each in call.prefixes if each[1] <= part.tokens)
        self.calls.append(
            FluidCall(
                row=call.row,
                prompt_tokens=part.tokens,
                completion_tokens=1.0,
                prefixes=prefixes,
                after=part.after,
            )
        )


class _Pool:
    def __init__(self, calls: Sequence[FluidCall], profile: EngineProfile, instances: int) -> None:
        self._ahead, self._count = _Beginnings(calls), len(calls)
        self._calls, self._profile = [*calls, *self._ahead.calls], profile
        self._left = Counter(call.row for call in calls)  # calls of rows that are open
        self._under_way = 0  # beginnings are not counted
        self._instances = [FluidInstance(profile) for _ in range(instances)]
        self._lacking = [len(call.after) for call in self._calls]
        self._behind: dict[int, list[int]] = {}
        self._ready: list[tuple[int, int]] = []  # a heap: row, and call
        self._functions: list[tuple[int, int]] = []  # the same, of functions
        self._free = _FUNCTIONS
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
                self._free += 1
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
        if index < self._count:
            call = self._calls[index]
            ready = self._functions if call.function_us else self._ready
            heapq.heappush(ready, (call.row, index))
        else:
            self._ahead.ready(index)

    def _ended(self, instance: FluidInstance, now: float) -> None:
        for index in instance.end(self._calls):
            call = self._calls[index]
            if index >= self._count:
                instance.remember_prompt(call)  # not sooner: calls go by what is there
            else:
                self._under_way -= 1
            instance.held -= call.holds
            instance.calls -= 1
            if call.answered is not None:
                instance.remember(call.answered, call.completion_tokens)
            self._call_ended(index)
        self._dispatch(now)

    def _call_ended(self, index: int) -> None:
        """What waits for nothing else is ready now."""
        if index < self._count:
            row = self._calls[index].row
            self._left[row] -= 1
            if not self._left[row]:
                del self._left[row]
        for behind in self._behind.get(index, ()):
            self._lacking[behind] -= 1
            if not self._lacking[behind]:
                self._is_ready(behind)

    def _dispatch(self, now: float) -> None:
        """What is ready, as far as there is room; the first that has none holds back the rest. Then
        beginnings that are due."""
        while self._functions and self._free:
            index = heapq.heappop(self._functions)[1]
            self._free -= 1
            self._ahead.sent(index)
            ends = now + self._calls[index].function_us
            heapq.heappush(self._events, (ends, _FUNCTION, index, 0))
        while self._ready:
            index = self._ready[0][1]
            number = self._place(self._calls[index])
            if number is None:
                break
            heapq.heappop(self._ready)
            self._under_way += 1
            self._ahead.sent(index)
            self._send(index, number, now)
        capacity = self._profile.max_num_seqs * len(self._instances)
        has_room = goes_ahead(len(self._left), self._under_way + len(self._ready), capacity)
        for index in self._ahead.due():
            number = self._place(self._calls[index])
            if has_room and number is not None:
                self._send(index, number, now)

    def _place(self, call: FluidCall) -> int | None:
        """As Kairos's own placement: the instance on which the call costs least time, its own and
        that of those that run there; of those that are alike, the one of which least is taken."""
        found: list[tuple[float, float, int]] = []  # what it costs there, what is taken, which
        cached = set()
        for number, each in enumerate(self._instances):
            full = each.calls >= self._profile.max_num_seqs
            if each.calls and (full or each.held + call.holds > self._profile.kv_tokens):
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
        if index < self._count:
            self._cached_tokens += cached
        instance.held += call.holds
        instance.calls += 1
        running = Running(index, call.prompt_tokens, cached)
        instance.coming += running.left
        self._sent[number].append(running)
        if index < self._count:
            instance.remember_prompt(call)
        self._wake(number, now + self._profile.call_us, _COMES)

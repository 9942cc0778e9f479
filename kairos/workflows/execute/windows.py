"""Windows of calls: enough in flight that no engine idles, few enough to hold few rows.

Twice the engines' capacity is released: a call that ends has its successor at the engine already. A
limit (`--concurrency`) takes precedence. Ready calls are issued in the order that was found: of
rows that belong together by sequence, then of earlier rows, so that rows end, and few are open.
Enough rows are read that as many calls as the engines run are ready behind the released ones, or as
many more as belong together.
"""

import heapq
from collections.abc import Callable, Collection

from kairos.core import BYTES_PER_TOKEN, EXPECTED_COMPLETION_TOKENS
from kairos.workflows.compile.operators import Generation, RegisteredCall
from kairos.workflows.compile.passes.order import AS_DECLARED, CallOrder
from kairos.workflows.execute.flight import Flight
from kairos.workflows.execute.limits import MOST_IN_FLIGHT, FlowLimits
from kairos.workflows.execute.operator_gate import OperatorGate


class Lane:
    """Calls of one kind: of engines, of functions, or of processors and batched functions."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.in_flight = 0
        self.order = AS_DECLARED
        # Stage, rows together, sequence, row, place, number.
        self._ready: list[tuple[int, int, int, int, int, int, Flight]] = []

    def __len__(self) -> int:
        return len(self._ready)

    @property
    def free(self) -> int:
        return max(0, self.limit - self.in_flight)

    def push(self, flight: Flight) -> None:
        row, turn = flight.leader[0].row, self.order.turn(flight.operator.name)
        batch = row.row // self.order.together if self.order.together else 0
        key = (row.stage, batch, turn.sequence, row.row, turn.place, flight.number, flight)
        heapq.heappush(self._ready, key)

    def first(self) -> Flight | None:
        return self._ready[0][-1] if self._ready else None

    def pop(self) -> Flight:
        return heapq.heappop(self._ready)[-1]

    def keep(self, passes: Callable[[Flight], bool]) -> None:
        """Drop the ready calls that do not pass."""
        self._ready = [each for each in self._ready if passes(each[-1])]
        heapq.heapify(self._ready)


class RunBudget:
    """Remaining budget of a run.

    Until a call ends it counts with the tokens of the longest answer allowed.
    """

    def __init__(self, limits: FlowLimits) -> None:
        self._calls, self._tokens = limits.max_calls, limits.max_tokens
        self._reserved = 0

    def allows(self, flight: Flight) -> bool:
        if self._calls is not None and self._calls < 1:
            return False
        return self._tokens is None or self._reserved + expected_tokens(flight) <= self._tokens

    def reserve(self, flight: Flight) -> None:
        if self._calls is not None:
            self._calls -= 1
        flight.reserved_tokens = expected_tokens(flight)
        self._reserved += flight.reserved_tokens

    def used(self, flight: Flight, tokens: int) -> None:
        """Replace the reserved tokens of an ended call by the tokens it used."""
        self._reserved -= flight.reserved_tokens
        if self._tokens is not None:
            self._tokens -= tokens


def expected_tokens(flight: Flight) -> int:
    params = flight.operator.params
    assert isinstance(params, Generation)
    messages = flight.wants.content["messages"]
    assert isinstance(messages, list)
    return most_tokens(sum(len(each["content"]) for each in messages), params.max_tokens)


def most_tokens(prompt_size: int, max_tokens: int | None) -> int:
    """Return the tokens that a call reserves.

    Args:
        prompt_size: characters of all messages.
        max_tokens: the longest answer; None: the expected length is taken.
    """
    return prompt_size // BYTES_PER_TOKEN + (max_tokens or EXPECTED_COMPLETION_TOKENS)


class CallWindow:
    """Window of calls in flight. `issue`: makes a call."""

    def __init__(self, limits: FlowLimits, issue: Callable[[Flight], None]) -> None:
        self._issue = issue
        self._budget = RunBudget(limits)
        self.gate = OperatorGate()
        self.capacity = 0
        self._at_once = limits.at_once
        functions = limits.at_once or limits.functions
        self._calls, self._functions = Lane(0), Lane(functions)
        self._processors = Lane(limits.processors)
        self._lanes = (self._calls, self._functions, self._processors)
        self.resize(limits.capacity)
        self.blocked = False  # a call is ready that the budget does not allow

    def resize(self, capacity: int) -> None:
        self.capacity = max(1, capacity)
        self._calls.limit = min(self._at_once or 2 * self.capacity, MOST_IN_FLIGHT)

    def keep(self, order: CallOrder) -> None:
        """Order calls so, from the next ready one on."""
        for lane in self._lanes:
            lane.order = order

    @property
    def in_flight(self) -> int:
        return sum(lane.in_flight for lane in self._lanes)

    @property
    def calls(self) -> int:
        """Return the LLM calls in flight and ready."""
        return self._calls.in_flight + len(self._calls)

    @property
    def ready(self) -> int:
        return sum(map(len, self._lanes))

    @property
    def wanting(self) -> int:
        """Return how many more calls should be ready: for free places, and in reserve."""
        return self._calls.free + self.capacity - self.ready

    def push(self, flight: Flight) -> None:
        lane = self._lane(flight)
        if lane is not self._calls or self.gate.pushed(flight):
            lane.push(flight)

    def open(self, operators: Collection[str] | None) -> None:
        """Release only calls of these operators from now on; None: of all."""
        released = list(self.gate.open(operators))
        self._calls.keep(self.gate.passes)
        for flight in released:
            self._calls.push(flight)

    def release(self, forget: Callable[[Flight], None]) -> None:
        """Issue as many of the wanted ready calls as there is room for."""
        self.blocked = False
        for lane in self._lanes:
            while lane.free and (flight := lane.first()) is not None:
                if not flight.wanted:
                    forget(lane.pop())
                    if lane is self._calls:
                        self.gate.forgotten(flight)
                    continue
                if lane is self._calls:
                    if not self._budget.allows(flight):
                        self.blocked = True
                        break
                    self._budget.reserve(flight)
                    self.gate.issued(flight)
                lane.pop()
                lane.in_flight += 1
                self._issue(flight)

    def ended(self, flight: Flight, tokens: int) -> None:
        """Count the end of an attempt, with any result."""
        lane = self._lane(flight)
        lane.in_flight -= 1
        if lane is self._calls:
            self._budget.used(flight, tokens)
            self.gate.ended(flight)

    def _lane(self, flight: Flight) -> Lane:
        params = flight.operator.params
        if isinstance(params, Generation):
            return self._calls
        is_alone = isinstance(params, RegisteredCall) and not params.is_batched
        return self._functions if is_alone else self._processors

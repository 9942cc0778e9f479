"""Which calls are under way: so many that no engine idles, so few that millions of rows wait
outside.

Twice the engines' capacity is released: a call that ends has its successor at the engine already.
Where a limit is set (`--concurrency`), it is kept to.
Of those that are ready the kept order says which is next: of rows that go together by sequence,
then earlier rows, so rows end, and few are open. Of rows so many are read that as many calls as the
engines hold stand ready behind those that are released, or as many more as go together.
"""

import heapq
from collections.abc import Callable, Collection

from kairos.core.model import EXPECTED_COMPLETION_TOKENS
from kairos.workflows.compile.operators import Generation, RegisteredCall
from kairos.workflows.compile.passes.order import AS_DECLARED, CallOrder
from kairos.workflows.execute.flight import Flight
from kairos.workflows.execute.limits import MOST_IN_FLIGHT, FlowLimits
from kairos.workflows.execute.operator_gate import OperatorGate

_BYTES_PER_TOKEN = 4


class Lane:
    """Calls of one sort: engines', functions', or of what takes several at once."""

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
        """Of what is ready only what passes."""
        self._ready = [each for each in self._ready if passes(each[-1])]
        heapq.heapify(self._ready)


class RunBudget:
    """What a run may use. Tokens of a call in flight count as if its answer were as long as it may
    be, until it is known."""

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
        """It ended, having taken so many."""
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
        max_tokens: the longest answer; None: as long as answers are expected to be.
    """
    return prompt_size // _BYTES_PER_TOKEN + (max_tokens or EXPECTED_COMPLETION_TOKENS)


class CallWindow:
    """`issue`: makes a call."""

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
        self.blocked = False  # a call is ready, and the budget does not allow it

    def resize(self, capacity: int) -> None:
        self.capacity = max(1, capacity)
        self._calls.limit = min(self._at_once or 2 * self.capacity, MOST_IN_FLIGHT)

    def keep(self, order: CallOrder) -> None:
        """Order calls so from the next one on that is ready."""
        for lane in self._lanes:
            lane.order = order

    @property
    def in_flight(self) -> int:
        return sum(lane.in_flight for lane in self._lanes)

    @property
    def calls(self) -> int:
        """Of engines, under way and ready."""
        return self._calls.in_flight + len(self._calls)

    @property
    def ready(self) -> int:
        return sum(map(len, self._lanes))

    @property
    def wanting(self) -> int:
        """Calls that it has room for, those that are to stand ready among them."""
        return self._calls.free + self.capacity - self.ready

    def push(self, flight: Flight) -> None:
        lane = self._lane(flight)
        if lane is not self._calls or self.gate.pushed(flight):
            lane.push(flight)

    def open(self, operators: Collection[str] | None) -> None:
        """Calls of these operators alone are released from now on; None: of all."""
        released = list(self.gate.open(operators))
        self._calls.keep(self.gate.passes)
        for flight in released:
            self._calls.push(flight)

    def release(self, forget: Callable[[Flight], None]) -> None:
        """As many as there is room for, of those that are still wanted."""
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
        """An attempt has, whatever came of it."""
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

"""Windows of calls and rows: enough in flight that no engine idles, few enough to hold few rows.

Twice the engines' capacity is released: a call that ends has its successor at the engine already. A
limit (`--concurrency`) takes precedence. Ready calls are issued in the order that was found: of
rows that belong together by sequence, then of earlier rows, so that rows end, and few are open.
Enough rows are read (`RowIntake`) that as many calls as the engines run are ready behind the
released ones, or as many more as belong together. Calls of operators whose models are not loaded
are held back (`OperatorGate`).
"""

import heapq
from collections.abc import Callable, Collection, Iterator
from collections.abc import Set as AbstractSet

from kairos.core import BYTES_PER_TOKEN, EXPECTED_COMPLETION_TOKENS
from kairos.workflows.compile.operators import Generation, RegisteredCall
from kairos.workflows.compile.passes.order import AS_DECLARED, CallOrder
from kairos.workflows.execute.flight import Flight
from kairos.workflows.execute.limits import MOST_IN_FLIGHT, FlowLimits, open_rows

_FIRST_ROWS = 16  # rows asked for while no size is known
_LEAST_ROW_BYTES = 256  # assumed for a row


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
        row = flight.leader[0].row
        turn = self.order.key(flight.operator.name, row.row)
        heapq.heappush(self._ready, (row.stage, *turn, flight.number, flight))

    def first(self) -> Flight | None:
        return self._ready[0][-1] if self._ready else None

    def pop(self) -> Flight:
        return heapq.heappop(self._ready)[-1]

    def retain(self, passes: Callable[[Flight], bool]) -> None:
        """Drop the ready calls that do not pass."""
        self._ready = [each for each in self._ready if passes(each[-1])]
        heapq.heapify(self._ready)


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

    def set_order(self, order: CallOrder) -> None:
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

    def push_ready(self, flight: Flight) -> None:
        lane = self._lane(flight)
        if lane is not self._calls or self.gate.admit_call(flight):
            lane.push(flight)

    def open_operators(self, operators: Collection[str] | None) -> None:
        """Release only calls of these operators from now on; None: of all."""
        released = list(self.gate.open_for(operators))
        self._calls.retain(self.gate.pass_or_hold)
        for flight in released:
            self._calls.push(flight)

    def release_calls(self, forget: Callable[[Flight], None]) -> None:
        """Issue as many of the wanted ready calls as there is room for."""
        self.blocked = False
        for lane in self._lanes:
            while lane.free and (flight := lane.first()) is not None:
                if not flight.wanted:
                    forget(lane.pop())
                    if lane is self._calls:
                        self.gate.count_dropped(flight)
                    continue
                if lane is self._calls:
                    if not self._budget.allows(flight):
                        self.blocked = True
                        break
                    self._budget.reserve_tokens(flight)
                    self.gate.count_issued(flight)
                lane.pop()
                lane.in_flight += 1
                self._issue(flight)

    def finish_call(self, flight: Flight, tokens: int) -> None:
        """Count the end of an attempt, with any result."""
        lane = self._lane(flight)
        lane.in_flight -= 1
        if lane is self._calls:
            self._budget.settle_tokens(flight, tokens)
            self.gate.count_finished(flight)

    def _lane(self, flight: Flight) -> Lane:
        params = flight.operator.params
        if isinstance(params, Generation):
            return self._calls
        is_alone = isinstance(params, RegisteredCall) and not params.is_batched
        return self._functions if is_alone else self._processors


class RowIntake:
    """Rows of one stage: asked for, open, and whether there are more."""

    def __init__(self, limits: FlowLimits) -> None:
        self._set_rows, self._most_bytes = limits.max_open_rows, limits.max_open_bytes
        self._kept_rows: int | None = None  # limit by an order
        self._together = 1  # rows asked for together
        self.resize(limits.capacity)
        self._largest = 0
        self._held = 0
        self._read = 0
        self.asked = 0
        self.open = 0
        self.ended = False

    def resize(self, capacity: int) -> None:
        """Set the number of calls that the engines run at once."""
        most = open_rows(capacity) if self._set_rows is None else self._set_rows
        self._most_rows = min(most, self._kept_rows or most)
        self._together = min(self._together, self._most_rows)

    @property
    def done(self) -> bool:
        return self.ended and not self.open

    @property
    def may_open(self) -> bool:
        """Return whether another row may be opened."""
        return self.open < self._most_rows

    @property
    def holds_back(self) -> bool:
        """Return whether the order limits the open rows."""
        return self._kept_rows is not None and not self.ended

    def set_order(self, order: CallOrder) -> None:
        """Open rows by an order, as far as there is room."""
        self._kept_rows = order.open_rows
        self._most_rows = min(self._most_rows, order.open_rows or self._most_rows)
        self._together = min(order.together or 1, self._most_rows)

    def rows_to_ask(self, wanted: int) -> int:
        """Return how many rows may be asked for now.

        These are the rest of rows that belong together, and more of them as long as `wanted` is not
        reached. One row is allowed if none is open, however large it may be.
        """
        rest = -(self._read + self.asked) % self._together
        more = wanted - self.asked - rest
        more = max(0, -(-more // self._together) * self._together)
        if self.ended or not rest + more:
            return 0
        largest = max(self._largest, _LEAST_ROW_BYTES)
        by_size = (self._most_bytes - self._held) // largest - self.asked
        by_size = max(by_size, not self.open and not self.asked)
        if not self._largest:
            by_size = min(by_size, _FIRST_ROWS - self.asked)
        return max(0, min(rest + more, self._most_rows - self.open - self.asked, by_size))

    def open_row(self, size_bytes: int) -> None:
        self.count_read()
        self.open += 1
        self._held += size_bytes
        self._largest = max(self._largest, size_bytes, 1)

    def grow_row(self, size_bytes: int, whole_bytes: int) -> None:
        """Count the growth of an open row, and its size; later rows are assumed to grow like it."""
        self._held += size_bytes
        self._largest = max(self._largest, whole_bytes)

    def count_read(self) -> None:
        """Count a row that was read; one that is unreadable is not opened."""
        self._read += 1
        self.asked = max(0, self.asked - 1)

    def end_input(self) -> None:
        self.ended = True
        self.asked = 0

    def close_row(self, size_bytes: int) -> None:
        self.open -= 1
        self._held -= size_bytes


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

    def reserve_tokens(self, flight: Flight) -> None:
        if self._calls is not None:
            self._calls -= 1
        flight.reserved_tokens = expected_tokens(flight)
        self._reserved += flight.reserved_tokens

    def settle_tokens(self, flight: Flight, tokens: int) -> None:
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


class OperatorGate:
    """Gate by operator.

    `wanted`: calls that are ready, held or in flight; `in_flight`: the part of these in flight.
    """

    def __init__(self) -> None:
        self.wanted: dict[str, int] = {}
        self.in_flight: dict[str, int] = {}
        self._open: AbstractSet[str] | None = None  # None: all
        self._held: dict[str, list[Flight]] = {}

    @property
    def is_open_to_all(self) -> bool:
        """Return whether no engine has to load a model for calls."""
        return self._open is None

    def admit_call(self, flight: Flight) -> bool:
        """Count a ready call. Return whether it may be issued; otherwise it is held."""
        name = flight.operator.name
        self.wanted[name] = self.wanted.get(name, 0) + 1
        return self.pass_or_hold(flight)

    def pass_or_hold(self, flight: Flight) -> bool:
        name = flight.operator.name
        if self._open is None or name in self._open:
            return True
        self._held.setdefault(name, []).append(flight)
        return False

    def count_issued(self, flight: Flight) -> None:
        name = flight.operator.name
        self.in_flight[name] = self.in_flight.get(name, 0) + 1

    def count_finished(self, flight: Flight) -> None:
        self.in_flight[flight.operator.name] -= 1
        self.count_dropped(flight)

    def count_dropped(self, flight: Flight) -> None:
        self.wanted[flight.operator.name] -= 1

    def open_for(self, operators: Collection[str] | None) -> Iterator[Flight]:
        """Open the gate for these operators only (None: for all).

        Yield the held calls that may go now.
        """
        self._open = None if operators is None else frozenset(operators)
        for name in list(self._held):
            if self._open is None or name in self._open:
                yield from self._held.pop(name)

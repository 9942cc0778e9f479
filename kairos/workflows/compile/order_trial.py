"""Try an order of calls on a model of an engine: prefix cache hits, and time.

Rows are read and calls released as by the executor (`workflows/execute/windows.py`); of calls that
wait for the engine the one with the least remaining work goes first, as in the balancer. The engine
is modelled as far as it affects its cache: concurrent calls, memory held by running calls, and LRU
eviction of the rest, the end of a prompt before its beginning. A step of an answer takes as long as
STEP_TOKENS of a prompt. Not in the paper.
"""

import heapq
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from statistics import fmean

import msgspec

from kairos.workflows.compile.expected_calls import ExpectedCalls
from kairos.workflows.compile.passes.order import CallOrder

# A decoding step takes as long as this many prompt tokens: memory bandwidth for the weights against
# computation, bytes a second to operations a second; about 300 on current accelerators.
STEP_TOKENS = 300
_BLOCK_TOKENS = 16  # as in vLLM
_PROMPT_TOKENS = 100  # as much work as one answer token, for the balancer
_NEVER = 1 << 40

Keys = Sequence[tuple[int, int]]  # segments of a prompt, with the full blocks of each


class TrialEngine(msgspec.Struct, frozen=True):
    """Engine of trials.

    `sequences`: calls that run at once; `released`: calls in flight at most; `queues`: calls
    without room wait in the engine, first come, first served, instead of before it.
    """

    kv_tokens: int
    sequences: int
    released: int
    queues: bool = False
    step_tokens: float = STEP_TOKENS  # computed in the time of a decoding step


class Trial(msgspec.Struct, frozen=True):
    """Hit and total prompt tokens, and the time of all, in units of a prompt token."""

    found: int
    asked: int
    took: float


class SampleCall:
    """Call of a row of the sample.

    `keys`: segments of its prompt, negative if they are the same for all rows; `work` is its
    approximate cost, `left` the work of the longest path to the row's end.
    """

    __slots__ = ("after", "answer", "answer_tokens", "behind", "is_same", "keys", "left",
                 "operator", "tokens", "work")  # fmt: skip

    def __init__(
        self, operator: str, keys: Keys, answer: int, tokens: tuple[int, int], after: Sequence[int]
    ) -> None:
        """Make a call. `tokens`: of its prompt and its answer."""
        self.operator, self.keys, self.after = operator, keys, after
        self.tokens, self.answer_tokens = tokens
        # Includes the rest of the prompt's last block.
        blocks = -(-(self.tokens + self.answer_tokens) // _BLOCK_TOKENS)
        self.answer = answer, blocks - self.tokens // _BLOCK_TOKENS
        self.is_same = all(key < 0 for key, _ in keys)
        self.behind: list[int] = []
        self.work = self.left = 0.0


class Sample:
    """Calls of some rows. Further rows are like these, with texts of their own."""

    def __init__(self, expected: ExpectedCalls, rows: int) -> None:
        """Take the calls of `rows` rows, and of one more that represents all others."""
        marks = _Marks(expected, rows)
        self.calls: list[SampleCall] = []
        self.of_row: list[list[int]] = [[] for _ in range(rows)]
        self.joined: list[list[int]] = [[] for _ in range(rows)]  # calls of earlier ones, by row
        for at, (name, call) in enumerate(zip(expected.operators, expected.calls, strict=True)):
            assert call.answered is not None
            keys, answer = [*marks.keys(call.prefixes)], marks.number(call.answered)
            tokens = round(call.prompt_tokens), max(1, round(call.completion_tokens))
            self.calls.append(SampleCall(name, keys, answer, tokens, call.after))
            if call.row < rows:
                self.of_row[call.row].append(at)
            for each in call.after:
                self.calls[each].behind.append(at)
        for row, number in expected.joined:
            if row < rows and expected.calls[number].row != row:
                self.joined[row].append(number)
        self.keys = len(marks.numbers) + 1
        answers: dict[str, list[int]] = {}
        for sampled in self.calls:
            answers.setdefault(sampled.operator, []).append(sampled.answer_tokens)
        for sampled in reversed(self.calls):
            behind = (self.calls[each].left for each in sampled.behind)
            sampled.work = fmean(answers[sampled.operator]) + sampled.tokens / _PROMPT_TOKENS
            sampled.left = sampled.work + max(behind, default=0.0)

    @property
    def same_tokens(self) -> int:
        """Return the tokens that are the same for all rows."""
        same = {key: blocks for each in self.calls for key, blocks in each.keys if key < 0}
        return sum(same.values()) * _BLOCK_TOKENS


class _Marks:
    """Marks of prompts as segments: marks with the same calls are one segment."""

    def __init__(self, expected: ExpectedCalls, rows: int) -> None:
        self._uses: dict[int, list[int]] = {}  # by mark, the rows of the calls that have it
        self._answered = {each.answered for each in expected.calls}
        self._rows, self.numbers = rows, dict[int, int]()
        used = [(call.row, call) for call in expected.calls]
        used += [(row, expected.calls[number]) for row, number in expected.joined]
        for row, call in used:
            for mark, _ in call.prefixes:
                self._uses.setdefault(mark, []).append(row)

    def number(self, mark: int) -> int:
        return self.numbers.setdefault(mark, len(self.numbers) + 1)

    def keys(self, prefixes: Sequence[tuple[int, float]]) -> Iterator[tuple[int, int]]:
        begun, first, before, last = 0, 0, 0, -1
        for mark, up_to in prefixes:
            uses = self._uses[mark]
            # Each mark depends on the marks before it: an equal number of uses means the same ones.
            if len(uses) != last or mark in self._answered:
                if before > begun:
                    yield first, before - begun
                first, begun = self.number(mark), before
                if self._rows in uses or len({*uses}) >= max(3, self._rows):
                    first = -first
            before, last = int(up_to) // _BLOCK_TOKENS, -1 if mark in self._answered else len(uses)
        if before > begun:
            yield first, before - begun


def tried(sample: Sample, order: CallOrder, engine: TrialEngine, rows: int) -> Trial:
    """Return the result for `rows` rows. Takes some 10 µs a call."""
    return _Run(sample, order, engine, rows).run()


class _Run:
    """Trial in progress. Calls are numbered through: the sample's, then its replicas'."""

    def __init__(self, sample: Sample, order: CallOrder, engine: TrialEngine, rows: int) -> None:
        self._sample, self._engine, self._rows = sample, engine, rows
        self._calls, self._count = sample.calls, len(sample.calls)
        self._order, self._batch = order, order.together or 1
        self._most = order.open_rows or _NEVER
        self._cache = _Cache(engine.kv_tokens // _BLOCK_TOKENS)
        self._ready: list[tuple[int, int, int, int, int]] = []
        self._queue: list[int] = []
        self._sent: deque[int] = deque()  # to the engine, which has had no room for them yet
        self._in_flight_of: dict[int, list[int]] = {}  # by row
        self._levels: dict[int, float] = {}  # by row, what is left of it
        self._running: list[tuple[float, int, Keys, int]] = []
        self._row: dict[int, int] = {}
        self._open: dict[int, int] = {}  # by row, the calls that it waits for
        self._joined: dict[int, list[int]] = {}  # by call, other rows that wait for it
        self._lacks: dict[int, int] = {}  # by call that waits, how many it waits for
        self._ended: set[int] = set()
        self._read = self._in_flight = self._found = self._asked = 0
        self._step = 0.0

    def run(self) -> Trial:
        while True:
            self._release()
            while self._read_some():
                self._release()
            self._dispatch()
            if not self._running:
                break
            self._end()
        took = self._asked - self._found + self._step * self._engine.step_tokens
        return Trial(self._found, self._asked, took)

    def _dispatch(self) -> None:
        most = self._engine.sequences - len(self._running) - len(self._sent)
        while self._sent and self._begin(self._sent[0]):
            self._sent.popleft()
        for _ in range(min(most, len(self._queue))):
            at = min(self._queue, key=self._goes)
            if self._sent or not self._begin(at):
                if not self._engine.queues:
                    break
                self._sent.append(at)
            self._queue.remove(at)

    def _read_some(self) -> bool:
        """Read rows in whole batches, as `execute/windows.py` does; return whether any came."""
        engine, rest = self._engine, -self._read % self._batch
        wanted = engine.released - self._in_flight + engine.sequences - len(self._ready)
        if wanted > rest:
            rest += -(-(wanted - rest) // self._batch) * self._batch
        count = min(rest, self._most - len(self._open), self._rows - self._read)
        for _ in range(count):
            self._begin_row(self._read)
            self._read += 1
        return count > 0

    def _begin_row(self, row: int) -> None:
        replica, place = divmod(row, len(self._sample.of_row))
        first = replica * self._count
        for number in self._sample.of_row[place]:
            call, at = self._calls[number], first + number
            if call.is_same and replica:
                continue  # made for an earlier row
            self._row[at] = row
            self._open[row] = self._open.get(row, 0) + 1
            needs = (each if self._calls[each].is_same else first + each for each in call.after)
            self._lacks[at] = sum(each not in self._ended for each in needs)
            if not self._lacks[at]:
                self._is_ready(at)

        for number in self._sample.joined[place]:
            at = number if self._calls[number].is_same else first + number
            if at not in self._ended:
                self._open[row] = self._open.get(row, 0) + 1
                self._joined.setdefault(at, []).append(row)

    def _is_ready(self, at: int) -> None:
        operator = self._calls[at % self._count].operator
        heapq.heappush(self._ready, (*self._order.key(operator, self._row[at]), at))

    def _release(self) -> None:
        while self._ready and self._in_flight < self._engine.released:
            *_, row, _, at = heapq.heappop(self._ready)
            self._queue.append(at)
            self._in_flight += 1
            self._in_flight_of.setdefault(row, []).append(at)
            self._levels.pop(row, None)

    def _goes(self, at: int) -> tuple[float, int, float]:
        row = self._row[at]
        if row not in self._levels:
            calls = [self._calls[each % self._count] for each in self._in_flight_of[row]]
            longest = max(calls, key=lambda each: each.left)
            self._levels[row] = longest.left + sum(each.work for each in calls) - longest.work
        return self._levels[row], row, -self._calls[at % self._count].left

    def _begin(self, at: int) -> bool:
        replica, number = divmod(at, self._count)
        call, own = self._calls[number], replica * self._sample.keys
        keys = [(key + own if key > 0 else key, blocks) for key, blocks in call.keys]
        answer, is_alone = call.answer[0] + own, not self._running
        found = self._cache.begin(keys, (answer, call.answer[1]), is_alone=is_alone)
        if found is None:
            return False
        found = min(found, (call.tokens - 1) // _BLOCK_TOKENS) * _BLOCK_TOKENS
        self._found += found
        self._asked += call.tokens
        steps = call.answer_tokens + (call.tokens - found) / self._engine.step_tokens
        heapq.heappush(self._running, (self._step + steps, at, keys, answer))
        return True

    def _end(self) -> None:
        self._step, at, keys, answer = heapq.heappop(self._running)
        self._cache.end(keys, answer)
        self._in_flight -= 1
        self._ended.add(at)
        replica, number = divmod(at, self._count)
        for each in self._calls[number].behind:
            replicas = range(self._read) if self._calls[number].is_same else (replica,)
            for one in replicas:
                behind = one * self._count + each
                if behind in self._lacks:
                    self._lacks[behind] -= 1
                    if not self._lacks[behind]:
                        self._is_ready(behind)
        row = self._row[at]
        self._in_flight_of[row].remove(at)
        self._levels.pop(row, None)
        for each in (row, *self._joined.pop(at, ())):
            self._open[each] -= 1
            if not self._open[each]:
                del self._open[each]


class _Cache:
    """Cached blocks of each segment."""

    def __init__(self, blocks: int) -> None:
        self._free, self._idle_blocks = blocks, 0
        self._held: dict[int, int] = {}
        self._users: dict[int, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()  # without users, longest ago first

    def begin(self, keys: Keys, answer: tuple[int, int], *, is_alone: bool) -> int | None:
        """Reserve room for a call; return the blocks that hit; None if there is not enough room.

        A call without others always has room, however large it is.
        """
        held, idle = self._held, self._idle
        found = asked = kept = 0
        goes_on = True
        for key, blocks in keys:
            asked += blocks
            if goes_on:
                there = held.get(key, 0)
                found += min(there, blocks)
                kept += there if key in idle else 0
                goes_on = there >= blocks
        room = self._free + self._idle_blocks - kept
        if asked - found + answer[1] > room and not is_alone:
            return None
        for key, blocks in (*keys, answer):
            there = held.get(key, 0)
            if key in idle:
                del idle[key]
                self._idle_blocks -= there
            self._users[key] = self._users.get(key, 0) + 1
            if there < blocks:
                self._free -= blocks - there
                held[key] = blocks
        self._drop()
        return found

    def end(self, keys: Keys, answer: int) -> None:
        for key in (answer, *(key for key, _ in reversed(keys))):  # the end is evicted first
            self._users[key] -= 1
            if not self._users[key]:
                del self._users[key]
                self._idle[key] = None
                self._idle_blocks += self._held[key]

    def _drop(self) -> None:
        while self._free < 0 and self._idle:
            oldest = next(iter(self._idle))
            there = self._held[oldest]
            gone = min(there, -self._free)
            self._free += gone
            self._idle_blocks -= gone
            self._held[oldest] = there - gone
            if gone == there:
                del self._idle[oldest], self._held[oldest]

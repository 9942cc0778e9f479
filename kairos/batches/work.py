"""Batch in progress: its lines to send, and its calls in flight."""

import heapq
from collections import deque
from collections.abc import Collection
from itertools import islice
from pathlib import Path

import msgspec

from kairos.batches.batch_input import PlacedLine, placed_lines
from kairos.batches.batch_turns import Pace
from kairos.batches.records import BatchRecord, State
from kairos.gateway import InnerCall

_LOW, _READ_LINES, _READ_BYTES = 32, 128, 8 << 20
_LONGEST_PAUSE_S = 30.0


class ReadyLine(msgspec.Struct, frozen=True):
    """Line to send: number of this attempt, and of earlier attempts that failed at engines."""

    place: PlacedLine
    data: bytes
    attempt: int = 1
    failures: int = 0


class SentLine(msgspec.Struct, frozen=True):
    line: ReadyLine
    custom_id: str
    call: InnerCall
    charged: int  # tokens: see `BatchTurns`


class BatchWork:
    def __init__(self, record: BatchRecord, path: Path, done: Collection[int], at: int) -> None:
        """Open the input.

        `done`: the lines that have results. Raises OSError: it cannot be read.
        """
        self.record = record
        self.service_class = record.service_class
        self.has_risen = False
        self.pace = Pace(at)
        self.in_flight: dict[str, SentLine] = {}  # by request id
        self.ends_as: State | None = None  # state of the end; set once nothing more is sent
        self.left = record.total - len(done)  # lines without a result
        self._done = set(done)
        self._file = path.open("rb")
        self._lines = ((p, d) for p, d in placed_lines(self._file) if p.number not in self._done)
        self._is_at_end = False
        self._ready: deque[ReadyLine] = deque()
        self._again: list[tuple[float, int, ReadyLine]] = []  # by due time, in s
        self._paused_until_s = 0.0
        self._refusals = 0  # one after the other

    def close(self) -> None:
        self._file.close()

    def leave(self) -> None:
        """Cancel all calls, and close the input."""
        for sent in self.in_flight.values():
            sent.call.leave()
        self.close()

    @property
    def is_low(self) -> bool:
        """Return whether few of the read lines are left."""
        return not self._is_at_end and len(self._ready) < _LOW

    def read_some(self) -> list[ReadyLine]:
        """Return the next lines, from disk. Raises OSError."""
        found, size = [], 0
        for place, data in islice(self._lines, _READ_LINES):
            found.append(ReadyLine(place, data))
            size += len(data)
            if size >= _READ_BYTES:
                break
        return found

    def add_lines(self, lines: list[ReadyLine]) -> None:
        self._is_at_end |= not lines
        self._ready += lines

    @property
    def is_over(self) -> bool:
        """Return whether nothing is in flight, and nothing more is to be sent."""
        if self.in_flight:
            return False
        has_lines = self._ready or self._again or not self._is_at_end
        return self.ends_as is not None or not has_lines

    def has_line(self, now_s: float) -> bool:
        if self.ends_as is not None or now_s < self._paused_until_s:
            return False
        return bool(self._ready) or bool(self._again and self._again[0][0] <= now_s)

    def take_line(self, now_s: float) -> ReadyLine:
        """Take the next line; there must be one."""
        if self._again and self._again[0][0] <= now_s:
            return heapq.heappop(self._again)[2]
        return self._ready.popleft()

    def put_back(self, line: ReadyLine) -> None:
        """Put back a line whose call was not begun."""
        self._ready.appendleft(line)

    def retry_later(self, line: ReadyLine, due_s: float, *, has_failed: bool = False) -> None:
        """Schedule another attempt for a line."""
        next_try = msgspec.structs.replace(
            line, attempt=line.attempt + 1, failures=line.failures + has_failed
        )
        heapq.heappush(self._again, (due_s, line.place.number, next_try))

    def pause_after_refusal(self, now_s: float, retry_after_s: int | None) -> None:
        """Pause: a line was refused for now, and others would be, too."""
        pause_s = min(max(2.0**self._refusals, retry_after_s or 0), _LONGEST_PAUSE_S)
        if now_s >= self._paused_until_s:
            self._refusals = min(self._refusals + 1, 5)
        self._paused_until_s = max(self._paused_until_s, now_s + pause_s)

    def count_result(self, at: int) -> None:
        self.left -= 1
        self._refusals = 0
        self.pace.count_line(at)

"""Values held by a processor in memory, bounded in bytes (overall and by run) and in age.

An evicted value can be recomputed. So room for a new value is made by the least recently used
values: first of its own run, then of all runs. Each step is O(1).
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable

import msgspec

from kairos.core import InvalidRequest

KEEP_S = 600.0  # since its last use
_OVERHEAD = 500  # bytes, overhead of a value
_PART = 4  # a run may have the bytes of all divided by this

Run = tuple[str, str]  # tenant that runs the flow, and the run's id


class HeldFigures(msgspec.Struct):
    """Counts since the process began."""

    kept: int = 0  # values
    kept_bytes: int = 0
    evicted: int = 0  # for lack of room, or because of its age


class HeldStore:
    def __init__(self, most_bytes: int, now_s: Callable[[], float] = time.monotonic) -> None:
        self._most, self._now_s = most_bytes, now_s
        self._values: OrderedDict[tuple[Run, str], tuple[bytes, float]] = OrderedDict()
        self._runs: dict[Run, OrderedDict[str, None]] = {}  # the latest used last
        self._bytes_of: dict[Run, int] = {}
        self.held_bytes = 0
        self.figures = HeldFigures()

    def __len__(self) -> int:
        return len(self._values)

    def put(self, run: Run, value_id: str, value: bytes) -> None:
        """Store a value. Raises InvalidRequest: it is larger than a run may have."""
        size, of_run = len(value) + _OVERHEAD, self._most // _PART
        if size > of_run:
            raise InvalidRequest(
                f"a value of {len(value)} bytes exceeds the {of_run} bytes that a processor holds "
                "for a run: start it with a larger --hold-mb"
            )
        self._take(run, value_id)
        self.forget_old()
        while self._bytes_of.get(run, 0) + size > of_run:
            self._evict(run, next(iter(self._runs[run])))
        while self.held_bytes + size > self._most:
            self._evict(*next(iter(self._values)))
        self._values[run, value_id] = value, self._now_s()
        self._runs.setdefault(run, OrderedDict())[value_id] = None
        self._bytes_of[run] = self._bytes_of.get(run, 0) + size
        self.held_bytes += size
        self.figures.kept += 1
        self.figures.kept_bytes += len(value)

    def get(self, run: Run, value_id: str) -> bytes | None:
        """Return a value; None: it is not there."""
        self.forget_old()
        found = self._values.get((run, value_id))
        if found is None:
            return None
        self._values[run, value_id] = found[0], self._now_s()
        self._values.move_to_end((run, value_id))
        self._runs[run].move_to_end(value_id)
        return found[0]

    def drop(self, run: Run, ids: Iterable[str]) -> None:
        for each in ids:
            self._take(run, each)

    def drop_run(self, run: Run) -> None:
        self.drop(run, list(self._runs.get(run, ())))

    def forget_old(self) -> None:
        """Evict values that were not used for `KEEP_S`."""
        oldest = self._now_s() - KEEP_S
        while self._values and next(iter(self._values.values()))[1] < oldest:
            self._evict(*next(iter(self._values)))

    def _evict(self, run: Run, value_id: str) -> None:
        self._take(run, value_id)
        self.figures.evicted += 1

    def _take(self, run: Run, value_id: str) -> None:
        found = self._values.pop((run, value_id), None)
        if found is None:
            return
        size = len(found[0]) + _OVERHEAD
        self.held_bytes -= size
        self._bytes_of[run] -= size
        del self._runs[run][value_id]
        if not self._runs[run]:
            del self._runs[run], self._bytes_of[run]

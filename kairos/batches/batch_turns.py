"""Choose the next line among batches, the number of queued lines, and when a batch is promoted.

A batch is many calls without a waiting user. They run in a best-effort class of service (`batch`),
so the queue puts them behind all online calls, and they use the remaining capacity. For this some
lines always wait in the queue: they are dispatched within the step in which there is room.

*Turns.* The batches of a tenant share by stride scheduling (Waldspurger and Weihl, 1995), as
tenants do in `core/scheduler/fair_queueing.py`, whose tags these are: each line is charged the mean
cost of the batch's lines so far, in tokens, and the charge is corrected when it ends.

*Promotion.* A batch whose work may not end within its window runs as `standard` from then on: so
its lines get their tenant's share, and no more. It is promoted once the remaining work, at the best
rate so far, takes longer than the rest of the window less a tenth of the window; or in the last
tenth. It is not demoted: its rate would then be the best-effort rate, and it would be promoted and
demoted in turn. Not in the paper. Pure: times are arguments, without I/O.
"""

from collections.abc import Iterable

from kairos.core import EXPECTED_COMPLETION_TOKENS, StartTags

AHEAD = 128  # lines of a tenant that wait in the queue
AHEAD_OF_ALL = 1_000  # queued lines of all tenants: a tenth of the queue
_MARGIN = 10  # the window is divided by this for the safety margin
_PACE_LINES = 16  # lines that have to end before a rate is known


def lines_ahead(tenants: int) -> int:
    """Return the number of queued lines for each of `tenants` tenants with batches."""
    return max(1, min(AHEAD, AHEAD_OF_ALL // max(1, tenants)))


class BatchTurns:
    def __init__(self) -> None:
        self._tags = StartTags({})
        self._costs: dict[str, tuple[int, int]] = {}  # ended lines, and their tokens
        self._waits: set[str] = set()  # batches with lines left

    def __len__(self) -> int:
        return len(self._costs)

    def add_batch(self, batch: str) -> None:
        self._costs[batch] = (0, 0)

    def remove_batch(self, batch: str) -> None:
        self._wait(batch, has_lines=False)
        del self._costs[batch]

    def next(self, having_lines: Iterable[str]) -> str | None:
        """Return the batch whose turn it is, among those with lines to send."""
        having = set(having_lines)
        for each in self._waits - having:
            self._wait(each, has_lines=False)
        for each in sorted(having - self._waits):
            self._wait(each, has_lines=True)
        return min(sorted(having), key=self._tags.tag, default=None)

    def charge_line(self, batch: str) -> int:
        """Charge the batch for its next line; return the charge in tokens."""
        lines, tokens = self._costs[batch]
        charged = tokens // lines if lines else EXPECTED_COMPLETION_TOKENS
        self._tags.charge(batch, charged)
        return charged

    def correct_charge(self, batch: str, charged: int, tokens: int | None) -> None:
        """Correct the charge of an ended line to its `tokens`; None: it was not served."""
        if tokens is not None:
            lines, all_tokens = self._costs[batch]
            self._costs[batch] = lines + 1, all_tokens + tokens
        self._tags.correct(batch, (tokens or 0) - charged)

    def _wait(self, batch: str, *, has_lines: bool) -> None:
        if has_lines and batch not in self._waits:
            self._waits.add(batch)
            self._tags.open_queue(batch)
        elif not has_lines and batch in self._waits:
            self._waits.discard(batch)
            self._tags.close_queue(batch)


class Pace:
    """Best rate of a batch: µs for each line, over some consecutive lines."""

    def __init__(self, at: int) -> None:
        self._since, self._lines = at, 0
        self.line_us: float | None = None  # None: not known

    def count_line(self, at: int) -> None:
        self._lines += 1
        if self._lines >= _PACE_LINES:
            line_us = (at - self._since) / self._lines
            self.line_us = line_us if self.line_us is None else min(self.line_us, line_us)
            self._since, self._lines = at, 0


def rises(lines_left: int, line_us: float | None, at: int, began_at: int, ends_at: int) -> bool:
    """Return whether a batch is promoted: its window is too short for best-effort calls."""
    left_us = ends_at - at - (ends_at - began_at) // _MARGIN
    return lines_left > 0 and (left_us <= 0 or lines_left * (line_us or 0.0) > left_us)

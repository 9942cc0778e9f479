"""Whose line goes next among batches, how many go ahead, and when a batch rises.

A batch is many calls that nobody waits for. They go as a class of service that takes what is spare
(`batch`), so the order puts them behind all that is online, and fills what that leaves. For this
some lines always wait in the queue: they go within the step in which there is room.

*Turns.* The batches of a tenant share by stride (Waldspurger and Weihl, 1995), as tenants do in
`core/scheduler/fair_queueing.py`, whose tags these are: each line is charged what the batch's
lines cost so far, in tokens, and the charge is put right when it ends.

*Rising.* A batch whose work may not be done within its window goes as `standard` from then on: so
its lines have their tenant's share, and no more than that. It rises once the work that is left, at
the best pace that it had, takes longer than what is left of the window less a tenth of it; or in
the last tenth. It does not fall again: then its pace would be that of what is spare, and it would
rise and fall in turn. Ours. Pure: instants come in, and nothing is looked up.
"""

from collections.abc import Iterable

from kairos.core.model import EXPECTED_COMPLETION_TOKENS
from kairos.core.scheduler.fair_queueing import StartTags

AHEAD = 128  # lines of a tenant that wait in the queue
AHEAD_OF_ALL = 1_000  # lines that do, of all tenants: a tenth of what may wait
_MARGIN = 10  # the part of the window that is kept for what nobody foresees
_PACE_LINES = 16  # that have to end until a pace is known


def lines_ahead(tenants: int) -> int:
    """How many lines of each wait in the queue, where so many have batches."""
    return max(1, min(AHEAD, AHEAD_OF_ALL // max(1, tenants)))


class BatchTurns:
    """Of one tenant's batches."""

    def __init__(self) -> None:
        self._tags = StartTags({})
        self._costs: dict[str, tuple[int, int]] = {}  # lines that ended, tokens of them
        self._waits: set[str] = set()  # have lines left

    def __len__(self) -> int:
        return len(self._costs)

    def begin(self, batch: str) -> None:
        self._costs[batch] = (0, 0)

    def end(self, batch: str) -> None:
        self._wait(batch, has_lines=False)
        del self._costs[batch]

    def next(self, having_lines: Iterable[str]) -> str | None:
        """Whose turn it is, of those that have lines to send."""
        having = set(having_lines)
        for each in self._waits - having:
            self._wait(each, has_lines=False)
        for each in sorted(having - self._waits):
            self._wait(each, has_lines=True)
        return min(sorted(having), key=self._tags.tag, default=None)

    def goes(self, batch: str) -> int:
        """A line of it. Returns what it is charged, in tokens."""
        lines, tokens = self._costs[batch]
        charged = tokens // lines if lines else EXPECTED_COMPLETION_TOKENS
        self._tags.charge(batch, charged)
        return charged

    def ended(self, batch: str, charged: int, tokens: int | None) -> None:
        """A line of it, which took so many tokens; None: it was not served."""
        if tokens is not None:
            lines, all_tokens = self._costs[batch]
            self._costs[batch] = lines + 1, all_tokens + tokens
        self._tags.correct(batch, (tokens or 0) - charged)

    def _wait(self, batch: str, *, has_lines: bool) -> None:
        if has_lines and batch not in self._waits:
            self._waits.add(batch)
            self._tags.came(batch)
        elif not has_lines and batch in self._waits:
            self._waits.discard(batch)
            self._tags.left(batch)


class Pace:
    """The best that a batch had: µs for each line, over some lines that ended one after the
    other."""

    def __init__(self, at: int) -> None:
        self._since, self._lines = at, 0
        self.line_us: float | None = None  # None: not known

    def ended(self, at: int) -> None:
        """A line."""
        self._lines += 1
        if self._lines >= _PACE_LINES:
            line_us = (at - self._since) / self._lines
            self.line_us = line_us if self.line_us is None else min(self.line_us, line_us)
            self._since, self._lines = at, 0


def rises(lines_left: int, line_us: float | None, at: int, began_at: int, ends_at: int) -> bool:
    """Whether a batch's window, from `began_at` to `ends_at`, is too near for what is spare."""
    left_us = ends_at - at - (ends_at - began_at) // _MARGIN
    return lines_left > 0 and (left_us <= 0 or lines_left * (line_us or 0.0) > left_us)

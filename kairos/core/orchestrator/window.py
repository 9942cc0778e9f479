"""Recent calls of one agent, with tests of convergence and of change.

Kairos paper, 4.3: sampling doubles, and a distribution is converged if its Wasserstein distance to
the distribution at half as many samples is small. Not in the paper: the window, the relative
threshold (the paper gives neither a threshold nor a unit), and the test of change. Also, decisions
use a distribution before it has converged, since that is better (`experiments/e60_convergence.py`).
"""

import math
from typing import Literal

import numpy as np
import numpy.typing as npt

from kairos.core.learnt import QUANTILES, AgentProfile, Floats, parts

_AT_ONCE = 32  # rows
REMAINING, CALL, TOKENS, STAGES, FIRST = range(5)  # columns of a window
CONVERGED_FROM = 16  # minimum calls: fewer agree by chance; not in the paper
# Number of newest calls compared with the calls before them: a small number detects a large change
# soon, a larger one detects small changes.
_NEWEST = (32, 128)
_TESTED_AFTER = math.gcd(*(n // 2 for n in _NEWEST))  # a test after each half of these
# Bonferroni correction: in 100,000 calls an agent is tested 2 x (6,250 + 1,562) times; the
# probability that any of these tests reports a change that did not happen is 1 %.
_CHANGE_P = 0.01 / 15_624


def is_restorable(profile: AgentProfile) -> bool:
    told = (profile.remaining_us, profile.call_us, profile.completion_tokens)
    return profile.samples > 0 and all(d is None or len(d.quantiles) == QUANTILES for d in told)


def is_milestone(count: int, size: int, step: int) -> bool:
    """Return whether `count` is 1, 2, 4, ... up to `size`, or a multiple of `step` beyond it."""
    return count & (count - 1) == 0 if count <= size else count % step == 0


class Ring:
    """Ring buffer of the most recent rows. Grows as it fills: 4 bytes a number."""

    def __init__(self, size: int, columns: int) -> None:
        self._size, self._next, self._filled = size, 0, 0
        self._rows = np.empty((min(size, 16), columns), np.float32)
        self._new: list[tuple[float, ...]] = []  # not stored yet: storing in batches costs less

    def __len__(self) -> int:
        return min(self._filled + len(self._new), self._size)

    def append(self, row: tuple[float, ...]) -> None:
        self._new.append(row)
        if len(self._new) == _AT_ONCE:
            self._settle()

    def rows(self) -> Floats:
        """Return a copy, oldest first: [rows, columns]."""
        self._settle()
        if self._filled < self._size:
            return self._rows[: self._filled].copy()
        return np.concatenate((self._rows[self._next :], self._rows[: self._next]))

    def keep(self, which: npt.NDArray[np.bool_]) -> None:
        """Drop all rows except those selected by `which`, a mask in the order of `rows`."""
        kept = self.rows()[which]
        self._rows[: len(kept)] = kept
        self._filled = len(kept)
        self._next = self._filled % self._size

    def _settle(self) -> None:
        if not self._new:
            return
        new = np.array(self._new[-self._size :], np.float32)
        self._new.clear()
        self._grow(min(self._filled + len(new), self._size))
        first = min(len(new), self._size - self._next)
        self._rows[self._next : self._next + first] = new[:first]
        self._rows[: len(new) - first] = new[first:]
        self._next = (self._next + len(new)) % self._size
        self._filled = min(self._filled + len(new), self._size)

    def _grow(self, filled: int) -> None:
        """Enlarge the array to at least `filled` rows."""
        while len(self._rows) < filled:
            more = np.empty_like(self._rows[: self._size - len(self._rows)])
            self._rows = np.concatenate((self._rows, more))


class Window:
    """The most recent `size` calls of one agent, or of a pool, and statistics of them.

    `testable` enables tests of change. It is off for a pool, whose mixture changes with the
    traffic.
    """

    def __init__(self, size: int, convergence: float, *, testable: bool) -> None:
        self._size, self._convergence, self._testable = size, convergence, testable
        self._ring = Ring(size, 5)
        self._count = 0  # calls since the last detected change
        self._firsts = 0  # calls in total that were the agent's first in their workflow
        self._checked: Floats | None = None  # the distributions at the last check, [2, QUANTILES]
        self.converged = False
        self.distance: float | None = None  # at the last check, over the mean; None before two
        self.checks = 0
        self.reopened = 0
        self.is_due = False  # due to be published

    def __len__(self) -> int:
        return len(self._ring)

    def rows(self) -> Floats:
        """Return a copy, oldest first: [calls, columns]."""
        return self._ring.rows()

    def add(self, row: tuple[float, ...]) -> bool:
        """Add one call, and return whether a change was detected (older calls are then dropped).

        Takes a few µs amortised; some tenths of a millisecond at a check.
        """
        self._ring.append(row)
        self._count += 1
        if row[FIRST]:
            self._firsts += 1
            if self._testable and self._forget_before_change():
                return True
        if is_milestone(self._count, self._size, self._size // 2):
            self._check()
        if is_milestone(self._count, self._size, self._size // 4):
            self.is_due = True
        return False

    def restore(self, profile: AgentProfile) -> None:
        """Restore what was known before a restart as a few representative calls.

        They are few, so that new calls soon outweigh them, and are left out of the tests of change.
        """
        count = min(profile.samples, QUANTILES, self._size)
        tokens = profile.completion_tokens
        columns = (
            parts(np.array(profile.remaining_us.quantiles), count),
            parts(np.array(profile.call_us.quantiles), count),
            np.full(count, np.nan) if tokens is None else parts(np.array(tokens.quantiles), count),
        )
        for remaining, call, completion in zip(*columns, strict=True):
            self._ring.append((remaining, call, completion, profile.remaining_stages, 0.0))
        self._count = count
        self._checked = self._distributions()
        self.converged, self.is_due = profile.converged, True

    def _distributions(self) -> Floats:
        rows = self._ring.rows()
        return np.stack((parts(rows[:, REMAINING]), parts(rows[:, CALL])))

    def _check(self) -> None:
        now = self._distributions()
        self.checks += 1
        if self._checked is not None:
            distances = np.abs(now - self._checked).mean(axis=1) / np.maximum(1, now.mean(axis=1))
            self.distance = float(distances.max())
            is_close = self.distance < self._convergence
            self.converged = is_close and self._count >= CONVERGED_FROM
        self._checked = now

    def _forget_before_change(self) -> bool:
        """Compare the newest calls with the calls before them; if they differ, drop the older ones.

        Only the agent's first call in each workflow counts: later calls depend on it, and the test
        needs independent samples.
        """
        if self._firsts % _TESTED_AFTER:
            return False
        sizes = [n for n in _NEWEST if self._firsts % (n // 2) == 0]
        rows = self._ring.rows()
        firsts = np.flatnonzero(rows[:, FIRST])
        for n in sizes:
            older, newer = rows[firsts[:-n]], rows[firsts[-n:]]
            if len(older) >= n and any(
                has_changed(older[:, column], newer[:, column], self._convergence)
                for column in (REMAINING, CALL)
            ):
                # A change is detected when about half of the newest calls come after it.
                self._reopen(rows, firsts[-n // 2])
                return True
        return False

    def _reopen(self, rows: Floats, since: np.intp) -> None:
        self._ring.keep(np.arange(len(rows)) >= since)
        self._count = len(self._ring)
        self._checked = self._distributions()
        self.converged, self.distance = False, None
        self.reopened += 1
        self.is_due = True


def has_changed(older: Floats, newer: Floats, tolerance: float) -> bool:
    """Return whether two samples differ significantly and by more than the tolerance.

    Two-sample Kolmogorov-Smirnov test at `_CHANGE_P`: p <= 2 exp(-2 D² nm / (n + m)), the bound of
    Dvoretzky, Kiefer, Wolfowitz and Massart. In addition, the Wasserstein distance over the mean of
    the older sample must exceed `tolerance`, so that the change matters.
    """
    n, m = len(older), len(newer)
    older, newer = np.sort(older), np.sort(newer)
    difference = kolmogorov_smirnov(older, newer)
    if 2 * math.exp(-2 * difference**2 * n * m / (n + m)) >= _CHANGE_P:
        return False
    moved = np.abs(parts(newer) - parts(older)).mean()
    return bool(moved > tolerance * max(1.0, float(older.mean())))


def kolmogorov_smirnov(older: Floats, newer: Floats) -> float:
    """Return the maximum distance between the empirical distributions of two ascending samples.

    Between two neighbouring newer values only the older sample's distribution grows. So the maximum
    is at a newer value, on its left or right side, and only these (they are fewer) are evaluated.
    """
    sides: tuple[Literal["right", "left"], ...] = ("right", "left")
    return max(
        float(
            np.abs(
                older.searchsorted(newer, side) / len(older)
                - newer.searchsorted(newer, side) / len(newer)
            ).max()
        )
        for side in sides
    )

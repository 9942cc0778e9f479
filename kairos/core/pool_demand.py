"""Forecast of a pool's demand: calls in flight at a future time.

There are two parts. Open workflows go on: a group with `c` calls in flight and `w` seconds of work
left needs w/c more seconds at that width, and, since only the mean is known, is still there after
`u` seconds with the probability exp(-u c/w). And new workflows begin: at the recent rate,
extrapolated along its trend (double exponential smoothing: R. G. Brown, Smoothing, Forecasting and
Prediction of Discrete Time Series, 1963), or along the daily pattern if that is known; each brings
as much work as workflows have brought so far. Their calls in flight grow as the calls of the open
ones decrease: in a steady state the two balance for any distribution of durations (the remaining
part of a current duration has the equilibrium distribution of renewal theory: D. R. Cox, Renewal
Theory, 1962).

Work is in seconds of calls' execution, as Kairos learns it; queueing does not count. Divided by the
number of concurrent calls of an instance (its seats) it is seconds of an instance.

This module has no clock: times come with the snapshots, in seconds.
"""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

# Time constant of the smoothed rate. With a trend it varies 2.5 times as much as an equally smooth
# plain mean, so it is long. After half of it, 70 % of a sudden rise are included.
LEVEL_S = 1_200.0
SEATS_S = 600.0  # time constant of the seats of an instance
WORK_S = 3_600.0  # time constant of a workflow's work
DAY_S = 86_400.0
_FEWEST = 3.0  # workflows needed before their work is used
_LEAST_RATE = 1e-9  # lower bound of a day's shape, which is divided by


class OpenWork(NamedTuple):
    """A group of similar workflows with calls in flight: one workflow, or several."""

    workflows: float
    calls: float  # their waiting or running calls together
    left_s: float  # expected execution latency of all their remaining work together


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """Snapshot of a pool."""

    at_s: float
    begun: int  # workflows begun since the counting process started
    open_work: Sequence[OpenWork]
    running: int  # calls on instances
    seats: float | None = None  # concurrent calls of one instance; None: nothing runs


class DayShape(msgspec.Struct, frozen=True):
    """Relative load over a day, in equal parts from its beginning, in any unit."""

    rates: tuple[float, ...]
    begins_at_s: float = 0.0  # a time, by the snapshots' clock, at which a day begins

    def at(self, at_s: float) -> float:
        """Return the load at a time, interpolated linearly between the middles of the parts."""
        place = (at_s - self.begins_at_s) % DAY_S / DAY_S * len(self.rates) - 0.5
        before = math.floor(place)
        share = place - before
        low, high = (self.rates[each % len(self.rates)] for each in (before, before + 1))
        return max(_LEAST_RATE, low * (1 - share) + high * share)


class Demand:
    """Forecast of a pool's demand, from snapshots in order of time."""

    def __init__(self, *, day: DayShape | None = None) -> None:
        self.seats: float | None = None  # smoothed seats of an instance
        self._day = day
        self._last: Look | None = None
        self._seen_s = 0.0
        # Workflows per second, relative to the day's shape: smoothed once, and twice.
        self._once, self._twice = 0.0, 0.0
        # Fading sums: workflows begun, and seconds of running calls; fading integrals: calls in
        # flight, and remaining seconds of their workflows' work.
        self._begun, self._worked_s = 0.0, 0.0
        self._in_flight, self._left_s = 0.0, 0.0

    def add_look(self, look: Look) -> None:
        """Add a snapshot; one that is not later than the last is ignored."""
        last = self._last
        if last is not None and look.at_s <= last.at_s:
            return
        self._last = look
        if last is None:
            self.seats = look.seats
            return
        gap_s = look.at_s - last.at_s
        # A count that has decreased was reset by a restart of the counting process.
        begun = look.begun - last.begun if look.begun >= last.begun else look.begun
        self._note_rate(begun / gap_s / self._shape(look.at_s), gap_s)
        keep = math.exp(-gap_s / WORK_S)
        self._begun = self._begun * keep + begun
        self._worked_s = self._worked_s * keep + look.running * gap_s
        in_flight = sum(each.calls for each in look.open_work)
        self._in_flight = self._in_flight * keep + in_flight * gap_s
        left_s = sum(each.left_s for each in look.open_work)
        self._left_s = self._left_s * keep + left_s * gap_s
        if look.seats is not None:
            known = look.seats if self.seats is None else self.seats
            self.seats = known + (1 - math.exp(-gap_s / SEATS_S)) * (look.seats - known)

    def _note_rate(self, rate: float, gap_s: float) -> None:
        """Update the smoothed rate; until the time constant has passed, it is a plain mean."""
        self._seen_s += gap_s
        weight = max(1 - math.exp(-gap_s / LEVEL_S), gap_s / self._seen_s)
        self._once += weight * (rate - self._once)
        self._twice += weight * (self._once - self._twice)

    def _shape(self, at_s: float) -> float:
        return 1.0 if self._day is None else self._day.at(at_s)

    @property
    def work_s(self) -> float | None:
        """Return the mean work of a workflow, in seconds of execution; None: too few have begun."""
        return self._worked_s / self._begun if self._begun >= _FEWEST else None

    @property
    def left_s(self) -> float | None:
        """Return the mean remaining time of a workflow per call in flight; None without data."""
        return self._left_s / self._in_flight if self._in_flight else None

    def rate_per_s(self, ahead_s: float) -> float:
        """Return the workflows per second that begin `ahead_s` after the last snapshot."""
        if self._last is None:
            return 0.0
        if self._day is not None:
            return self._once * self._day.at(self._last.at_s + ahead_s)
        level, step = 2 * self._once - self._twice, (self._once - self._twice) / LEVEL_S
        return max(0.0, level + step * ahead_s)

    def ahead(self, ahead_s: float, seats: float = math.inf) -> float:
        """Return the expected calls in flight `ahead_s` after the last snapshot.

        If more calls are in flight now than the pool has `seats`, open workflows are slowed down in
        proportion.
        """
        if self._last is None:
            return 0.0
        open_work = self._last.open_work
        in_flight = sum(work.calls for work in open_work)
        pace_s = ahead_s * min(1.0, seats / in_flight) if in_flight else 0.0
        known = sum(
            work.calls * math.exp(-pace_s * work.calls / work.left_s)
            for work in open_work
            if work.left_s > 0
        )
        return known + self._of_new(ahead_s)

    def _of_new(self, ahead_s: float) -> float:
        """Return the calls of workflows that have not begun, at the rate halfway there."""
        work_s, left_s = self.work_s, self.left_s
        if work_s is None or not left_s:
            return 0.0
        begun_by_then = 1 - math.exp(-ahead_s / left_s)
        return self.rate_per_s(ahead_s / 2) * work_s * begun_by_then

    def most(self, ahead_s: Iterable[float], seats: float = math.inf) -> float:
        """Return the maximum over several times; 0 for none."""
        return max((self.ahead(each, seats) for each in ahead_s), default=0.0)

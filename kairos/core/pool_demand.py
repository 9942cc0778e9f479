"""What a pool will have to do: calls that will be in flight some time ahead.

Two things make them. Workflows that are open now go on: those with `c` calls in flight and `w`
seconds of work left need w/c seconds more at that width, and, since of their end no more than the
mean is told, are still there after `u` seconds with the probability exp(-u c/w). And workflows will
begin: at the rate of late, drawn on along its trend (double exponential smoothing: R. G. Brown,
Smoothing, Forecasting and Prediction of Discrete Time Series, 1963), or along the shape that days
have, where that is known; each brings the work that workflows brought so far. What they have in
flight grows as what is open now goes: in a steady state one makes up for the other, whatever stays
are like (what is left of a stay that is under way is the equilibrium distribution of renewal
theory: D. R. Cox, Renewal Theory, 1962).

Work is in seconds of calls' execution, as Kairos learns it; time in the queue is none. Over the
calls that an instance holds at once (its seats) it is seconds of an instance.

Nothing here has a clock: instants come with the looks, in seconds.
"""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

# Over which the rate of late is smoothed. With its trend it varies 2.5 times as much as a plain
# mean as smooth, so this is long. Of a sudden rise 70 % are believed after half of it.
LEVEL_S = 1_200.0
SEATS_S = 600.0  # over which the seats of an instance are
WORK_S = 3_600.0  # over which a workflow's work is
DAY_S = 86_400.0
_FEWEST = 3.0  # workflows, before what they brought is believed
_LEAST_RATE = 1e-9  # of a day's shape, so that a rate can be told by it


class OpenWork(NamedTuple):
    """Workflows with calls in flight that are alike: one, or several."""

    workflows: float
    calls: float  # of all of them that wait or run
    left_s: float  # expected execution latency of all that they still need, together


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """A pool at one instant."""

    at_s: float
    begun: int  # workflows, since whoever counts them began to
    open_work: Sequence[OpenWork]
    running: int  # calls on instances
    seats: float | None = None  # calls that one instance holds; None: nothing runs that tells


class DayShape(msgspec.Struct, frozen=True):
    """How busy each part of a day is, in equal parts from its beginning, in any unit."""

    rates: tuple[float, ...]
    begins_at_s: float = 0.0  # an instant of the looks' clock at which a day begins

    def at(self, at_s: float) -> float:
        """By straight lines between the middles of the parts; midnight joins them."""
        place = (at_s - self.begins_at_s) % DAY_S / DAY_S * len(self.rates) - 0.5
        before = math.floor(place)
        share = place - before
        low, high = (self.rates[each % len(self.rates)] for each in (before, before + 1))
        return max(_LEAST_RATE, low * (1 - share) + high * share)


class Demand:
    """Follows a pool by looks at it, in order of time; `ahead` tells what is to come."""

    def __init__(self, *, level_s: float = LEVEL_S, day: DayShape | None = None) -> None:
        self.seats: float | None = None  # of an instance, smoothed
        self._level_s, self._day = level_s, day
        self._last: Look | None = None
        self._seen_s = 0.0
        # Workflows per second, over what the day's shape says: smoothed once, and twice.
        self._once, self._twice = 0.0, 0.0
        # Sums that fade: workflows that began, and seconds of calls that ran; over time, calls in
        # flight, and seconds of work that their workflows still needed.
        self._begun, self._worked_s = 0.0, 0.0
        self._in_flight, self._left_s = 0.0, 0.0

    def see(self, look: Look) -> None:
        """One that is not later than the last changes nothing."""
        last = self._last
        if last is not None and look.at_s <= last.at_s:
            return
        self._last = look
        if last is None:
            self.seats = look.seats
            return
        gap_s = look.at_s - last.at_s
        # A count that has fallen began anew, with the process that counts.
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
        """While less was seen than is smoothed over, the first is a plain mean."""
        self._seen_s += gap_s
        weight = max(1 - math.exp(-gap_s / self._level_s), gap_s / self._seen_s)
        self._once += weight * (rate - self._once)
        self._twice += weight * (self._once - self._twice)

    def _shape(self, at_s: float) -> float:
        return 1.0 if self._day is None else self._day.at(at_s)

    @property
    def work_s(self) -> float | None:
        """Of one workflow, in seconds of its calls' execution; None: too few have begun."""
        return self._worked_s / self._begun if self._begun >= _FEWEST else None

    @property
    def left_s(self) -> float | None:
        """How long it is to the end of a workflow's work for each call that it has in flight, in
        the mean of all of them; None: none was seen."""
        return self._left_s / self._in_flight if self._in_flight else None

    def rate_per_s(self, ahead_s: float) -> float:
        """Workflows that begin per second, so long after the last look; at least 0."""
        if self._last is None:
            return 0.0
        if self._day is not None:
            return self._once * self._day.at(self._last.at_s + ahead_s)
        level, step = 2 * self._once - self._twice, (self._once - self._twice) / self._level_s
        return max(0.0, level + step * ahead_s)

    def ahead(self, ahead_s: float, seats: float = math.inf) -> float:
        """Calls in flight so long after the last look. `seats`: of the pool; where more are in
        flight now than these, open workflows go on as many times as slowly."""
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
        """Of workflows that have not begun yet, at the rate of half the way."""
        work_s, left_s = self.work_s, self.left_s
        if work_s is None or not left_s:
            return 0.0
        begun_by_then = 1 - math.exp(-ahead_s / left_s)
        return self.rate_per_s(ahead_s / 2) * work_s * begun_by_then

    def most(self, ahead_s: Iterable[float], seats: float = math.inf) -> float:
        """The most of several moments; 0 of none."""
        return max((self.ahead(each, seats) for each in ahead_s), default=0.0)

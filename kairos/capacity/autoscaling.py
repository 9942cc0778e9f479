"""Decide how many instances a pool should have, from its forecast work.

An instance started now serves after `start_s`; so the calls in flight at that time count, not the
present ones. An instance is drained only if fewer are enough over the next `calm_s` (or `start_s`,
if that is longer). A replacement could serve only after both together; but the maximum of several
forecasts has an upward bias, growing with their distance, and would keep instances that nobody
needs. For the same reason fewer instances must have been enough for only up to a minute.

A share of the slots is kept free (`utilisation`), for calls that cannot be foreseen, and since
calls are slower on a full engine. Keeping the root of the calls free (square-root staffing) gives
small and large pools the same wait of a call; for whole workflows it costs more instances at the
same P95, above all at night.

It never flaps: at least `calm_s` lie between starting and draining, in either order. Only a pool
outside its bounds is corrected at once.
"""

import math
from collections import deque

import msgspec

from kairos.core import DayShape, Demand, Look, SetupError

MOST_INSTANCES = 1_000
LONGEST_S = 86_400.0
_STEPS = 4  # times in the forecast that are evaluated
SETTLED_S = 60.0  # at most: see `settled_s`


class ScalingRules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Rules of an operator for a pool."""

    least: int = 1  # instances
    most: int = 10
    start_s: float = 120.0  # from the start of an instance until it serves
    calm_s: float = 300.0  # at least, between starting and draining
    utilisation: float = 0.9  # share of the slots that calls should take
    seats: float | None = None  # calls that an instance can hold; None: from its memory
    slack: float = 0.1  # of an instance: a smaller need does not start another one

    @property
    def settled_s(self) -> float:
        """Return how long fewer instances must have been enough, before one is drained."""
        return min(SETTLED_S, self.calm_s)

    @property
    def missed_s(self) -> float:
        """Return how far the forecast must look before an instance is drained."""
        return max(self.calm_s, self.start_s)

    def check(self) -> None:
        """Raise SetupError if rules contradict each other, or a number is out of range."""
        if not 1 <= self.least <= self.most <= MOST_INSTANCES:
            raise SetupError(
                f"least and most: from 1 to {MOST_INSTANCES}, and least no more than most; "
                f"they are {self.least} and {self.most}"
            )
        for name, top in (("start_s", LONGEST_S), ("calm_s", LONGEST_S), ("slack", 0.9)):
            if not 0 <= (value := getattr(self, name)) <= top:
                raise SetupError(f"{name} must be from 0 to {top:g}; it is {value:g}")
        if not 0.05 <= self.utilisation <= 1.5:
            raise SetupError(f"utilisation must be from 0.05 to 1.5; it is {self.utilisation:g}")
        if self.seats is not None and not 1 <= self.seats <= 1e6:
            raise SetupError(f"seats must be from 1 to 1000000; they are {self.seats:g}")


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """Change to make now, with the reason."""

    change: int  # instances to start; below 0: to drain
    instances: int  # existing ones, the starting ones included
    needed: float  # instances, when one started now would serve
    why: str


class Autoscaler:
    """Decides for one pool, from observations in order of time. Call `decide` once for each."""

    def __init__(self, rules: ScalingRules, *, day: DayShape | None = None) -> None:
        """Take the rules. Raises SetupError: they are invalid."""
        rules.check()
        self.demand = Demand(day=day)
        self._rules = rules
        self._up_at, self._down_at = -math.inf, -math.inf
        self._first_at: float | None = None
        self._held = math.inf  # calls that the serving instances hold
        self._needs: deque[tuple[float, float]] = deque()  # recent ones: time, need

    def decide(self, look: Look, serving: int, starting: int = 0) -> Decision:
        """Decide on a change, which is assumed to be carried out.

        `serving`: instances that take calls; `starting`: that will. Draining ones count as neither.
        """
        rules, at_s = self._rules, look.at_s
        self._first_at = at_s if self._first_at is None else self._first_at
        self.demand.add_look(look)
        there = serving + starting
        seats = rules.seats or self.demand.seats
        self._held = math.inf if seats is None else max(1, serving) * seats
        needed, later = self.needed(), self._needed_later()
        self._needs.append((at_s, max(needed, later)))
        while self._needs[0][0] < at_s - rules.settled_s:
            self._needs.popleft()
        if there < rules.least or there > rules.most:
            return self._back_in_bounds(there, needed, at_s)
        wanted = self._whole_number(needed)
        if wanted > there:
            return self._start_more(wanted - there, there, needed, at_s)
        settled = self._whole_number(max(need for _, need in self._needs))
        if settled < there:
            return self._drain_some(there - settled, there, needed, at_s)
        why = "" if wanted == there else "more were needed recently; "
        return self._decision(0, there, needed, why + self._forecast_text())

    def needed(self) -> float:
        """Return the instances needed when one started now would serve."""
        return self._instances(self.demand.ahead(self._rules.start_s, self._held))

    def _needed_later(self) -> float:
        """Return the most instances needed while a drained one could not be replaced."""
        until_s = self._rules.missed_s
        moments = [until_s * step / _STEPS for step in range(_STEPS + 1)]
        return self._instances(self.demand.most(moments, self._held))

    def _instances(self, calls: float) -> float:
        seats = self._rules.seats or self.demand.seats
        if seats is None:
            return 0.0
        return calls / (seats * self._rules.utilisation)

    def _whole_number(self, needed: float) -> int:
        """Return a whole number of instances, within the bounds."""
        whole = math.ceil(min(needed, MOST_INSTANCES) - self._rules.slack)
        return max(self._rules.least, min(self._rules.most, whole))

    def _back_in_bounds(self, there: int, needed: float, at_s: float) -> Decision:
        rules = self._rules
        if there < rules.least:
            self._up_at = at_s
            return self._decision(rules.least - there, there, needed, "below the minimum")
        self._down_at = at_s
        return self._decision(rules.most - there, there, needed, "above the maximum")

    def _start_more(self, count: int, there: int, needed: float, at_s: float) -> Decision:
        if at_s < self._down_at + self._rules.calm_s:
            why = f"more are needed, but one was drained {at_s - self._down_at:.0f} s ago"
            return self._decision(0, there, needed, why)
        self._up_at = at_s
        return self._decision(count, there, needed, self._forecast_text())

    def _drain_some(self, count: int, there: int, needed: float, at_s: float) -> Decision:
        assert self._first_at is not None
        calm_s = self._rules.calm_s
        if at_s < self._first_at + calm_s:
            why = "fewer would do, but the pool was not observed for calm_s yet"
            return self._decision(0, there, needed, why)
        if at_s < self._up_at + calm_s:
            why = f"fewer would do, but one was started {at_s - self._up_at:.0f} s ago"
            return self._decision(0, there, needed, why)
        self._down_at = at_s
        why = (
            f"no more were needed for {self._rules.settled_s:.0f} s, nor will be for "
            f"{self._rules.missed_s:.0f} s; {self._forecast_text()}"
        )
        return self._decision(-count, there, needed, why)

    def _forecast_text(self) -> str:
        demand, start_s = self.demand, self._rules.start_s
        seats = self._rules.seats or demand.seats
        if seats is None:
            return "nothing has run yet that shows how many calls an instance holds"
        then = demand.ahead(start_s, self._held)
        return (
            f"{demand.ahead(0):.0f} calls in flight, {then:.0f} in {start_s:.0f} s"
            f" ({demand.rate_per_s(start_s):.3g} workflows/s), {seats:.0f} to an instance"
        )

    @staticmethod
    def _decision(change: int, there: int, needed: float, why: str) -> Decision:
        return Decision(change=change, instances=there, needed=needed, why=why)

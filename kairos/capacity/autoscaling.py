"""How many instances a pool should have, from what it will have to do.

An instance that is started now serves `start_s` later; so it is asked what will be in flight then,
not now. Before one is drained it is asked what will be for `calm_s` from now (`start_s`, where that
is longer). It could be there again only after both together; but of several forecasts the largest
errs upwards, more so the farther ahead they look, and then instances stay that nobody needs. For
the same reason fewer must have done for a minute at most.

A share of the seats is kept free (`utilisation`), for calls that nobody could foresee, and since
calls are slower on a full engine. Keeping the root of the calls free (square-root staffing) holds
the wait of a call alike on small pools and large ones; of whole workflows it costs more instances
at the same P95, by night above all.

It never flaps: between starting and draining, whichever comes first, there are `calm_s` at least.
What takes the pool out of its bounds is put right at once all the same.
"""

import math
from collections import deque

import msgspec

from kairos.core.errors import SetupError
from kairos.core.pool_demand import LEVEL_S, DayShape, Demand, Look

MOST_INSTANCES = 1_000
LONGEST_S = 86_400.0
_STEPS = 4  # moments of the time ahead that are looked at
SETTLED_S = 60.0  # at most: see `settled_s`


class ScalingRules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an operator says of a pool."""

    least: int = 1  # instances
    most: int = 10
    start_s: float = 120.0  # until an instance that is started serves
    calm_s: float = 300.0  # at least, between starting and draining
    utilisation: float = 0.9  # share of the seats that calls are to take
    seats: float | None = None  # calls that an instance holds well; None: as its memory tells
    slack: float = 0.1  # of an instance: so much more is not worth starting one

    @property
    def settled_s(self) -> float:
        """Fewer instances must have done for so long, before one is drained."""
        return min(SETTLED_S, self.calm_s)

    @property
    def missed_s(self) -> float:
        """So far ahead it is looked before an instance is drained."""
        return max(self.calm_s, self.start_s)

    def check(self) -> None:
        """Raises SetupError: they contradict each other, or a number is out of its range."""
        if not 1 <= self.least <= self.most <= MOST_INSTANCES:
            raise SetupError(
                f"least and most: from 1 to {MOST_INSTANCES}, and least no more than most; "
                f"they are {self.least} and {self.most}"
            )
        for name, value, top in (
            ("start_s", self.start_s, LONGEST_S),
            ("calm_s", self.calm_s, LONGEST_S),
            ("slack", self.slack, 0.9),
        ):
            if not 0 <= value <= top:
                raise SetupError(f"{name} must be from 0 to {top:g}; it is {value:g}")
        if not 0.05 <= self.utilisation <= 1.5:
            raise SetupError(f"utilisation must be from 0.05 to 1.5; it is {self.utilisation:g}")
        if self.seats is not None and not 1 <= self.seats <= 1e6:
            raise SetupError(f"seats must be from 1 to 1000000; they are {self.seats:g}")


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """What to do now, and why."""

    change: int  # instances to start; below 0: to drain
    instances: int  # there are, with those that start
    needed: float  # instances, when one that is started now serves
    why: str


class Autoscaler:
    """Decides for one pool, by looks at it in order of time. `decide` once for each."""

    def __init__(
        self, rules: ScalingRules, *, level_s: float = LEVEL_S, day: DayShape | None = None
    ) -> None:
        """Raises SetupError: the rules are none that can be kept."""
        rules.check()
        self.demand = Demand(level_s=level_s, day=day)
        self._rules = rules
        self._up_at, self._down_at = -math.inf, -math.inf
        self._first_at: float | None = None
        self._held = math.inf  # calls that those that serve hold
        self._needs: deque[tuple[float, float]] = deque()  # of late: instant, need

    def decide(self, look: Look, serving: int, starting: int = 0) -> Decision:
        """`serving`: instances that take calls; `starting`: that will. Those that drain are none.
        What it says to do counts as done."""
        rules, at_s = self._rules, look.at_s
        self._first_at = at_s if self._first_at is None else self._first_at
        self.demand.see(look)
        there = serving + starting
        seats = rules.seats or self.demand.seats
        self._held = math.inf if seats is None else max(1, serving) * seats
        needed, later = self.needed(), self._needed_later()
        self._needs.append((at_s, max(needed, later)))
        while self._needs[0][0] < at_s - rules.settled_s:
            self._needs.popleft()
        if there < rules.least or there > rules.most:
            return self._bounded(there, needed, at_s)
        wanted = self._whole(needed)
        if wanted > there:
            return self._up(wanted - there, there, needed, at_s)
        settled = self._whole(max(need for _, need in self._needs))
        if settled < there:
            return self._down(there - settled, there, needed, at_s)
        return self._stay(there, needed, self._kept(wanted, there))

    def needed(self) -> float:
        """Instances, when one that is started now serves."""
        return self._instances(self.demand.ahead(self._rules.start_s, self._held))

    def _needed_later(self) -> float:
        """The most while one that is drained now would be missed."""
        until_s = self._rules.missed_s
        moments = [until_s * step / _STEPS for step in range(_STEPS + 1)]
        return self._instances(self.demand.most(moments, self._held))

    def _instances(self, calls: float) -> float:
        seats = self._rules.seats or self.demand.seats
        if seats is None:
            return 0.0
        return calls / (seats * self._rules.utilisation)

    def _whole(self, needed: float) -> int:
        """Within the bounds."""
        whole = math.ceil(min(needed, MOST_INSTANCES) - self._rules.slack)
        return max(self._rules.least, min(self._rules.most, whole))

    def _bounded(self, there: int, needed: float, at_s: float) -> Decision:
        rules = self._rules
        if there < rules.least:
            self._up_at = at_s
            return self._decision(rules.least - there, there, needed, "there are to be that many")
        self._down_at = at_s
        return self._decision(rules.most - there, there, needed, "there are to be no more")

    def _up(self, count: int, there: int, needed: float, at_s: float) -> Decision:
        if at_s < self._down_at + self._rules.calm_s:
            return self._stay(there, needed, f"more are needed, but {self._since('drained', at_s)}")
        self._up_at = at_s
        return self._decision(count, there, needed, self._said())

    def _down(self, count: int, there: int, needed: float, at_s: float) -> Decision:
        assert self._first_at is not None
        calm_s = self._rules.calm_s
        if at_s < self._first_at + calm_s:
            return self._stay(there, needed, "fewer would do, but it was not watched for long yet")
        if at_s < self._up_at + calm_s:
            return self._stay(there, needed, f"fewer would do, but {self._since('started', at_s)}")
        self._down_at = at_s
        why = (
            f"no more were needed for {self._rules.settled_s:.0f} s, nor will be for "
            f"{self._rules.missed_s:.0f} s; {self._said()}"
        )
        return self._decision(-count, there, needed, why)

    def _since(self, what: str, at_s: float) -> str:
        since_s = at_s - (self._up_at if what == "started" else self._down_at)
        return f"one was {what} {since_s:.0f} s ago"

    def _kept(self, wanted: int, there: int) -> str:
        return self._said() if wanted == there else f"more were needed of late; {self._said()}"

    def _said(self) -> str:
        demand, start_s = self.demand, self._rules.start_s
        seats = self._rules.seats or demand.seats
        if seats is None:
            return "nothing has run yet that tells how many calls an instance holds"
        then = demand.ahead(start_s, self._held)
        return (
            f"{demand.ahead(0):.0f} calls in flight, {then:.0f} in {start_s:.0f} s"
            f" ({demand.rate_per_s(start_s):.3g} workflows/s), {seats:.0f} to an instance"
        )

    def _stay(self, there: int, needed: float, why: str) -> Decision:
        return self._decision(0, there, needed, why)

    @staticmethod
    def _decision(change: int, there: int, needed: float, why: str) -> Decision:
        return Decision(change=change, instances=there, needed=needed, why=why)

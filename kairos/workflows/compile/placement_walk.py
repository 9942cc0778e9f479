"""Random walk over plans of devices, in Python: the reference of `placement_moves.c`.

Positions are indices in the order of a plan; a set of devices has a bit for each. Sums are made in
the same order as in C.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

_LOOKING = 4  # steps of a move, in addition to the evaluated devices
_ALL = (1 << 64) - 1

Cost = tuple[float, float, int]  # end of the last operator, balanced end of all devices, loads
Device = tuple[float, int, int, int, int]  # free, known models, resident, context, before


class Problem(NamedTuple):
    """Operators by number. For each: `needs`, `followers`, and `parts`, how many may share it.

    `run`: by the number of devices that share it; `last`: -1, as long as all; `context`: -1, none.
    `tails`: from the end of each to the end of all its dependants. `load`, `wake` and `stay` are by
    model.
    """

    devices: int
    needs: Sequence[Sequence[int]]
    followers: Sequence[Sequence[int]]
    model: Sequence[int]
    context: Sequence[int]
    parts: Sequence[int]
    run: Sequence[Sequence[float]]
    last: Sequence[float]
    reused: Sequence[float]
    tails: Sequence[float]
    load: Sequence[float]
    wake: Sequence[float]
    stay: Sequence[float]


class Walk(NamedTuple):
    """Limits of a walk: steps, one for each evaluated device of an operator, and idle moves.

    `history`: length of the history; `slack`: of the time, that may be lost at first.
    """

    steps: int
    idle_most: int
    history: int
    slack: float
    seed: int


class Walked(NamedTuple):
    """Operators in their order, the devices of each, and the steps taken."""

    order: list[int]
    on: list[int]
    steps: int


def walk_in_python(of: Problem, order: Sequence[int], on: Sequence[int], how: Walk) -> Walked:
    """Return the best plan of a walk.

    Late acceptance: a plan no worse than the one `history` moves before is accepted.
    """
    now = Reckoned(of, list(order), list(on))
    best, best_cost = now, now.cost
    begun = (now.cost[0] * (1.0 + how.slack), *now.cost[1:])
    history = [begun] * how.history
    moves, steps, turn, idle = _Moves(of, how.seed), 0, 0, 0
    while steps < how.steps and idle < how.idle_most:
        before = history[turn % how.history]
        steps += _LOOKING
        other = moves.another(now)
        if other is not None:
            found = now.moved(*other, limit=max(before, now.cost))
            steps += now.looked
            now = found or now
            if now.cost < best_cost:
                best, best_cost, idle = now, now.cost, 0
            if now.cost < before:
                history[turn % how.history] = now.cost
        turn += 1
        idle += 1
    return Walked(best.order, best.on, steps)


class Reckoned:
    """Plan with its times, stored so that a plan that differs late is evaluated from there."""

    def __init__(self, of: Problem, order: list[int], on: list[int]) -> None:
        self.order, self.on, self._of = order, on, of
        count = len(order)
        self.first, self.ends = [0.0] * count, [0.0] * count
        self.place, self.cause = [0] * count, [-1] * count
        self.states: list[tuple[list[Device], int]] = [([(0.0, 0, -1, -1, -1)] * of.devices, 0)]
        self.looked = 0
        self.cost: Cost = (0.0, 0.0, 0)
        self._reckon(0, math.inf)

    def moved(self, order: list[int], on: list[int], start: int, limit: Cost) -> "Reckoned | None":
        """Return another plan, equal up to `start`, if it is within the limit.

        `looked` counts the steps taken.
        """
        other = Reckoned.__new__(Reckoned)
        other.order, other.on, other._of = order, on, self._of
        other.first, other.ends = self.first.copy(), self.ends.copy()
        other.place, other.cause = self.place.copy(), self.cause.copy()
        other.states, other.looked = self.states[: start + 1], 0
        is_within = other._reckon(start, limit[0] + 1e-9)
        self.looked = other.looked
        return other if is_within and other.cost <= limit else None

    def blame(self) -> list[int]:
        """Return the places of the operators that the end waits for, the last first."""
        found = []
        at = self.place[max(range(len(self.ends)), key=self.ends.__getitem__)]
        while at >= 0:
            found.append(at)
            at = self.cause[at]
        return found

    def _reckon(self, start: int, limit: float) -> bool:  # noqa: C901 - one loop: a call costs as much
        """Evaluate the plan from `start` on; return whether it may be within the limit."""
        of, first, ends, place = self._of, self.first, self.ends, self.place
        devices, loads = self.states[start]
        for at in range(start, len(self.order)):
            n = self.order[at]
            on = bits(self.on[n])
            devices, parts, model, ours = devices.copy(), len(on), of.model[n], of.context[n]
            share = of.run[n][parts - 1]
            ready, ready_by, end, slow = -1.0, -1, 0.0, -1
            for needed in of.needs[n]:
                if first[needed] > ready:
                    ready, ready_by = first[needed], place[needed]
                if ends[needed] > end:
                    end, slow = ends[needed], place[needed]
            first_at, ends_at, why = -1.0, 0.0, -1
            for device in on:
                free, known, resident, context, because = devices[device]
                run = share
                if ours >= 0 and context == ours:
                    run = max(0.0, share - of.reused[n] / parts)
                last = run if of.last[n] < 0.0 or of.last[n] > run else of.last[n]
                begins = free + _load(of, model, resident, known)
                loads += resident != model
                if ready > begins:
                    begins, because = ready, ready_by
                free = begins + run
                if end + last > free:
                    free, because = end + last, slow
                devices[device] = free, known | 1 << model, model, ours, at
                if first_at < 0.0 or begins + last < first_at:
                    first_at = begins + last
                if free > ends_at:
                    ends_at, why = free, because
            self.looked += parts
            if ends_at + of.tails[n] > limit:
                return False
            first[n], ends[n], place[n], self.cause[at] = first_at, ends_at, at, why
            self.states.append((devices, loads))
        together = 0.0
        for free, *_ in devices:
            together += free
        self.cost = max(ends, default=0.0), together, loads
        return True


class _Moves:
    def __init__(self, of: Problem, seed: int) -> None:
        self._of, self._dice = of, seed

    def another(self, now: Reckoned) -> tuple[list[int], list[int], int] | None:
        """Return an order, devices, and the first difference; None if nothing changes."""
        of = self._of
        places = now.blame() if self._drawn(2) else range(len(now.order))
        at = places[self._drawn(len(places))]
        n = now.order[at]
        low = max((now.place[each] + 1 for each in of.needs[n]), default=0)
        high = min((now.place[each] - 1 for each in of.followers[n]), default=len(now.order) - 1)
        kind = self._drawn(16)
        if kind >= 12 and of.parts[n] > 1:
            return self._shared(now, at, (low, high), kind)
        if kind == 11:
            return self._together(now, at)
        if kind in (9, 10):
            return self._exchanged(now, at)
        if 3 <= kind < 6:
            return self._beside(now, at, (low, high))
        to = low + self._drawn(high - low + 1)
        return _moved(now, at, to, 1 << self._drawn(of.devices) if kind >= 6 else now.on[n])

    def _drawn(self, below: int) -> int:
        self._dice = self._dice * 6364136223846793005 + 1442695040888963407 & _ALL
        return (self._dice >> 33) % below

    def _one_of(self, on: int) -> int:
        devices = bits(on)
        return 1 << devices[self._drawn(len(devices))]

    def _beside(
        self, now: Reckoned, at: int, within: tuple[int, int]
    ) -> tuple[list[int], list[int], int] | None:
        """Move an operator next to one of the same model, to its devices or one of them."""
        low, high = within
        n, model, count = now.order[at], self._of.model, high - low + 1
        start = self._drawn(count)
        for k in range(count):
            other = low + (start + k) % count
            if other != at and model[now.order[other]] == model[n]:
                on = now.on[now.order[other]]
                if on.bit_count() > self._of.parts[n]:
                    on = self._one_of(on)
                is_behind = self._drawn(2) and at > other and other < high
                return _moved(now, at, other + bool(is_behind), on)
        return None

    def _exchanged(self, now: Reckoned, at: int) -> tuple[list[int], list[int], int] | None:
        """Exchange the devices of two operators."""
        with_ = self._drawn(len(now.order))
        n, other = now.order[at], now.order[with_]
        one, two, parts = now.on[n], now.on[other], self._of.parts
        if one == two or two.bit_count() > parts[n] or one.bit_count() > parts[other]:
            return None
        on = now.on.copy()
        on[n], on[other] = two, one
        return now.order.copy(), on, min(at, with_)

    def _together(self, now: Reckoned, at: int) -> tuple[list[int], list[int], int] | None:
        """Move a run of consecutive operators of one model to another device."""
        order, model = now.order, self._of.model
        n = order[at]
        device, to = self._one_of(now.on[n]), 1 << self._drawn(self._of.devices)
        if device == to or device != now.on[n]:
            return None
        on, start = now.on.copy(), at
        for places in (range(at, -1, -1), range(at + 1, len(order))):
            for k in places:
                if now.on[order[k]] & device:
                    if model[order[k]] != model[n]:
                        break
                    if now.on[order[k]] == device:
                        on[order[k]] = to
                        start = min(start, k)
        return order.copy(), on, start

    def _shared(
        self, now: Reckoned, at: int, within: tuple[int, int], kind: int
    ) -> tuple[list[int], list[int], int] | None:
        """Share an operator among the devices that begin it first; or add, drop or replace one."""
        of, n, (low, high) = self._of, now.order[at], within
        to = at if self._drawn(2) else low + self._drawn(high - low + 1)
        if kind < 14:
            model = of.model[n]
            devices, _ = now.states[to]
            begins = [
                free + _load(of, model, resident, known) for free, known, resident, *_ in devices
            ]
            first = sorted(range(of.devices), key=begins.__getitem__)
            on = sum(1 << device for device in first[: 1 + self._drawn(of.parts[n])])
        else:
            on = now.on[n] ^ 1 << self._drawn(of.devices)
            if kind == 15:
                on ^= 1 << self._drawn(of.devices)
            if not 0 < on.bit_count() <= of.parts[n]:
                return None
        return _moved(now, at, to, on)


def _moved(now: Reckoned, at: int, to: int, on: int) -> tuple[list[int], list[int], int] | None:
    n = now.order[at]
    if to == at and on == now.on[n]:
        return None
    order, devices = now.order.copy(), now.on.copy()
    order.insert(to, order.pop(at))
    devices[n] = on
    return order, devices, min(at, to)


def _load(of: Problem, model: int, resident: int, known: int) -> float:
    if resident == model:
        return of.stay[model]
    return of.wake[model] if known >> model & 1 else of.load[model]


def bits(on: int) -> Sequence[int]:
    """Return the devices of a set in rising order."""
    if not on & (on - 1):
        return (on.bit_length() - 1,)
    return [n for n in range(on.bit_length()) if on >> n & 1]

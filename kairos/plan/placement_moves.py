"""Plans of devices made better by moves: a local search after the beam search of `placement.py`.

An operator that the end waits for is put elsewhere: on any device, between any two of its
operators, or shared by several. What helps is kept, until no move helps; then some operators are
moved at will, and the search goes on from there, as long as there are steps. Deterministic. Not in
the papers.
"""

import math
from collections.abc import Iterator, Mapping, Sequence

from kairos.plan.device_work import DeviceChoice, LoadTime, OperatorWork

Placed = tuple[int, tuple[int, ...]]  # an operator, and the devices that share it
Cost = tuple[float, float, int]  # when the last ends, when devices end together, loads


class _Reckoning:
    """The times of a plan, kept so that another that parts from it late is reckoned from there."""

    def __init__(self, moves: "PlanMoves", plan: list[Placed]) -> None:
        self.plan = plan
        self._of = moves
        count = len(plan)
        self.first, self.ends = [0.0] * count, [0.0] * count
        self.place, self.cause = [0] * count, [-1] * count
        devices = moves.devices
        self._states = [
            ([0.0] * devices, [-1] * devices, [0] * devices, [-1] * devices, [-1] * devices, 0)
        ]
        self.cost: Cost = (math.inf, 0.0, 0)
        self._go_through(0)

    def betters(self, plan: list[Placed], start: int) -> "_Reckoning | None":
        """Return what comes of another plan, if that is better; it is the same up to `start`."""
        other = _Reckoning.__new__(_Reckoning)
        other.plan, other._of = plan, self._of
        other.first, other.ends = self.first.copy(), self.ends.copy()
        other.place, other.cause = self.place.copy(), self.cause.copy()
        other._states = self._states[: start + 1]
        other.cost = self.cost
        return other if other._go_through(start) else None

    def blame(self) -> list[int]:
        """Return the places of the operators that the end waits for, the last first."""
        found = []
        at = self.place[max(range(len(self.ends)), key=self.ends.__getitem__)]
        while at >= 0:
            found.append(at)
            at = self.cause[at]
        return found

    def _go_through(self, start: int) -> bool:  # noqa: C901 - one loop: a call costs as much
        """Return whether it is better than the cost that is known; then that is its own."""
        of, plan = self._of, self.plan
        first, ends, place, cause = self.first, self.ends, self.place, self.cause
        limit, *_ = self.cost
        a, b, c, d, e, loads = self._states[start]
        for at in range(start, len(plan)):
            n, devices = plan[at]
            free, resident, known, context, before = (
                a.copy(),
                b.copy(),
                c.copy(),
                d.copy(),
                e.copy(),
            )
            parts, model, ours = len(devices), of.model[n], of.context[n]
            share = of.run[n][min(parts, len(of.run[n])) - 1]
            needs, may_last = of.needs[n], of.last[n]
            first_at, ends_at, why = -1.0, 0.0, -1
            for device in devices:
                run = share
                if ours >= 0 and context[device] == ours:
                    run = max(0.0, share - of.reused[n] / parts)
                last = run if may_last is None or may_last > run else may_last
                begins, because = free[device], before[device]
                if resident[device] == model:
                    begins += of.stay[model]
                else:
                    loads += 1
                    begins += of.wake[model] if known[device] >> model & 1 else of.load[model]
                end, slow = 0.0, -1
                for needed in needs:
                    if first[needed] > begins:
                        begins, because = first[needed], place[needed]
                    if ends[needed] > end:
                        end, slow = ends[needed], place[needed]
                if end + last > begins + run:
                    end, because = end + last, slow
                else:
                    end = begins + run
                free[device], resident[device] = end, model
                known[device] |= 1 << model
                context[device], before[device] = ours, at
                if first_at < 0 or begins + last < first_at:
                    first_at = begins + last
                if end > ends_at:
                    ends_at, why = end, because
            if ends_at + of.tails[n] > limit + 1e-9:
                return False
            first[n], ends[n], place[n], cause[at] = first_at, ends_at, at, why
            a, b, c, d, e = free, resident, known, context, before
            self._states.append((a, b, c, d, e, loads))
        cost = (max(ends, default=0.0), sum(a), loads)
        if cost < self.cost:
            self.cost = cost
            return True
        return False


class PlanMoves:
    """Reckons plans quickly, and makes them better."""

    def __init__(
        self, works: Sequence[OperatorWork], loads: Mapping[str, LoadTime], devices: int
    ) -> None:
        self._names = [each.name for each in works]
        number = self._number = {name: at for at, name in enumerate(self._names)}
        self.needs = [[number[name] for name in w.needs if name in number] for w in works]
        self._followers: list[list[int]] = [[] for _ in works]
        for at, needs in enumerate(self.needs):
            for needed in needs:
                self._followers[needed].append(at)
        models = list(dict.fromkeys(each.model for each in works))
        self.model = [models.index(each.model) for each in works]
        self.load = [loads[name].load_us for name in models]
        self.wake = [
            loads[name].load_us if (wake := loads[name].wake_us) is None else wake
            for name in models
        ]
        self.stay = [loads[name].stay_us for name in models]
        self.run = [each.run_us for each in works]
        self.last = [each.last_us for each in works]
        contexts = [(each.model, each.context) for each in works]
        self.context = [
            -1 if each.context is None else contexts.index((each.model, each.context))
            for each in works
        ]
        self.reused = [each.reused_us for each in works]
        self._calls = [each.calls for each in works]
        self._is_heavy = [each.run_us[0] > loads[each.model].load_us for each in works]
        self.devices = devices
        self.tails = [0.0] * len(works)  # from the end of each to the end of all that needs it
        for at in reversed(range(len(works))):
            least = max(0.0, min(self.run[at]) - self.reused[at])
            last = self.last[at]
            least = least if last is None else min(least, last)
            for needed in self.needs[at]:
                self.tails[needed] = max(self.tails[needed], least + self.tails[at])

    def improve(
        self, choices: Sequence[DeviceChoice], steps: int, *, replicas: bool
    ) -> tuple[list[DeviceChoice], int]:
        """Return a plan that no move makes better, or the best when the steps are used up, and
        the steps that are left."""
        plan, _, steps = self._descend(self._placed(choices), steps, replicas=replicas)
        return self._chosen(plan), steps

    def shake(
        self, choices: Sequence[DeviceChoice], steps: int, *, replicas: bool
    ) -> list[DeviceChoice]:
        """Move some operators at will, then make that better, as long as there are steps.

        Return the best plan. Deterministic.
        """
        best = self._placed(choices)
        cost, state = _Reckoning(self, best).cost, 1
        while steps > 0:
            plan = best
            for _ in range(2 + state % 4):
                state = state * 6364136223846793005 + 1442695040888963407 & (1 << 64) - 1
                moves = [*self._moves(plan, (state >> 33) % len(plan), replicas=replicas)]
                if moves:
                    plan = moves[(state >> 13) % len(moves)][1]
            steps -= len(plan)  # also where nothing can be moved
            plan, found, steps = self._descend(plan, steps, replicas=replicas)
            if found < cost:
                best, cost = plan, found
        return self._chosen(best)

    def _descend(
        self, best: list[Placed], steps: int, *, replicas: bool
    ) -> tuple[list[Placed], Cost, int]:
        """Move operators that the end waits for, as long as that helps."""
        base = _Reckoning(self, best)
        is_better = True
        while is_better and steps > 0:
            is_better = False
            for at in base.blame():
                for first, moved in self._moves(base.plan, at, replicas=replicas):
                    steps -= len(moved) - first
                    other = base.betters(moved, first)
                    if other is not None:
                        base, is_better = other, True
                        break
                if is_better or steps <= 0:
                    break
        return base.plan, base.cost, steps

    def cost(self, choices: Sequence[DeviceChoice]) -> Cost:
        """Return what a plan comes to; the less goes first."""
        return _Reckoning(self, self._placed(choices)).cost

    def _placed(self, choices: Sequence[DeviceChoice]) -> list[Placed]:
        return [(self._number[each.operator], each.devices) for each in choices]

    def _chosen(self, plan: Sequence[Placed]) -> list[DeviceChoice]:
        return [DeviceChoice(self._names[n], devices) for n, devices in plan]

    def _moves(
        self, plan: Sequence[Placed], at: int, *, replicas: bool
    ) -> Iterator[tuple[int, list[Placed]]]:
        """Put an operator elsewhere: on each device, before or behind each of its operators."""
        n, devices = plan[at]
        rest = [*plan[:at], *plan[at + 1 :]]
        needs, followers = set(self.needs[n]), set(self._followers[n])
        lowest = max((to + 1 for to, (each, _) in enumerate(rest) if each in needs), default=0)
        highest = min(
            (to for to, (each, _) in enumerate(rest) if each in followers), default=len(rest)
        )
        for device in range(self.devices):
            slots = [to for to in range(lowest, highest) if device in rest[to][1]]
            for to in (*slots, highest):
                if (to, (device,)) != (at, devices):
                    yield min(at, to), [*rest[:to], (n, (device,)), *rest[to:]]
        if replicas and self._is_heavy[n]:
            for parts in range(2, min(self.devices, self._calls[n]) + 1):
                shared = self._shares(rest, lowest, highest, parts)
                for to in (lowest, highest):
                    yield min(at, to), [*rest[:to], (n, shared), *rest[to:]]

    def _shares(
        self, rest: Sequence[Placed], lowest: int, highest: int, parts: int
    ) -> tuple[int, ...]:
        """Return the devices that have least to do between."""
        busy = [0] * self.devices
        for _, devices in rest[lowest:highest]:
            for device in devices:
                busy[device] += 1
        return tuple(sorted(sorted(range(self.devices), key=lambda d: (busy[d], d))[:parts]))

"""Kairos's default placement: packing by the survival probability of calls. Not in the paper.

`SurvivalPacking` decides, by the compiled kernel if there is one; `Weighing` reports the cost of a
call on each instance instead.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Final

import numpy as np

from kairos.core.dispatcher.compiled import NO_CHOICE, Choice, CompiledChoice, expected_tokens
from kairos.core.dispatcher.compiled_table import Margins
from kairos.core.dispatcher.demand import SLOT_AT_US, SLOTS, Floats, Future, limit_of
from kairos.core.dispatcher.ledger import Ledger
from kairos.core.dispatcher.native import KERNEL, Kernel
from kairos.core.dispatcher.occupancy import (
    FEW,
    FREE,
    RENEWED_US,
    BySurvival,
    Occupancy,
    of_request,
)
from kairos.core.dispatcher.slots import SlotPlacement
from kairos.core.dispatcher.warm_waits import WarmWaits
from kairos.core.model import Instance, Request

SPREAD = 2.0  # safety margin above the expected use, in standard deviations: `kairos`
# Maximum of this margin as a share of the memory. If memory fits only a few calls, two standard
# deviations are a quarter of it, and idle memory costs more than preempted calls.
WIDEST = 0.1
# Relative difference below which costs count as equal: `kairos`. The second applies if all
# instances have equally much of the prompt cached, so that they differ only in load or speed.
ALIKE, ALIKE_BUT_FOR_LOAD = 0.01, 0.2

BEGINS_US = np.append(SLOT_AT_US, np.inf)  # beginning of each slot; last: never
_AT_ONCE = 1024  # maximum of kinds x instances that are computed together


class _Best:
    """Best instance for a request among those with capacity now."""

    def __init__(self, instance: Instance, least_us: float, with_room: Sequence[Instance]) -> None:
        self.instance: Final = instance
        self.least_us: Final = least_us  # lowest cost of the request on any of `with_room`
        self.with_room: Final = with_room  # all instances with capacity


class SurvivalPacking(SlotPlacement):
    """Lowest cost among instances never over their memory in any slot. Not in the paper.

    The memory forecast has a margin of `SPREAD` standard deviations. The cost is the time of the
    request itself plus the time it adds to the calls running there. Among about equal costs, the
    instance with the lowest load is chosen: its peak share of memory plus the share of a step's
    budget used by prompts under way. (Prompts computed together delay all calls that decode there;
    a few prompt tokens hide behind the reading of the weights.) Cached tokens need not be computed,
    so a workflow stays where its history is cached while that pays. It even waits for that instance
    if the expected wait is shorter than the time saved.
    """

    def __init__(self, ledger: Ledger, kernel: Kernel | None = KERNEL) -> None:
        """Create the placement. `kernel`: compiled code to use; None: use numpy."""
        super().__init__(ledger, Occupancy(ledger, BySurvival()))
        self._waits = WarmWaits()
        self._compiled: CompiledChoice | None = None
        if kernel is not None:
            margins = Margins(SPREAD, WIDEST, ALIKE, ALIKE_BUT_FOR_LOAD, FREE, RENEWED_US, FEW)
            self._compiled = CompiledChoice(ledger, kernel, margins, self._waits)
        self._warm: tuple[str, Instance] | None = None  # request id, and the instance it waits for

    def choose(
        self, request: Request, instances: Sequence[Instance], busy: Sequence[Instance], at: int
    ) -> Instance | None:
        self._warm = None
        choice = self._choice(request, instances, busy, at)
        if choice.warm is not None:
            self._warm = request.id, choice.warm
            self._waits.start_wait(request.id, at)
        elif choice.instance is not None:
            self._waits.end_wait(request.id)
        return choice.instance

    def _choice(
        self, request: Request, instances: Sequence[Instance], busy: Sequence[Instance], at: int
    ) -> Choice:
        if self._compiled is not None:
            return self._compiled.choose(request, instances, busy, at)
        waited_us = self._waits.waited_us(request.id, at)
        cached = self._ledger.prefixes.match(request) if request.prefix else {}
        best = self._best(request, instances, cached, at)
        if best is None:
            return NO_CHOICE
        here = cached.get(best.instance.id, 0)
        warmer = {name for name, tokens in cached.items() if tokens > here}
        warmer.difference_update([each.id for each in best.with_room] if warmer else ())
        tokens = expected_tokens(self._ledger, request)
        for place, each in enumerate((*instances, *busy) if warmer else ()):
            if each.id in warmer:
                if place >= len(instances):
                    self._occupancy.renew([each], at)  # always, as the kernel does
                there = np.array([float(cached[each.id])])
                cost_us = float(self._costs_us(request, [each], there, tokens)[0])
                if waited_us + self._wait_us(request, each, at) + cost_us < best.least_us:
                    return Choice(warm=each)
        return Choice(best.instance)

    def refused(
        self,
        requests: Sequence[Request],
        instances: Sequence[Instance],
        busy: Sequence[Instance],
        at: int,
    ) -> tuple[int, Instance | None] | None:
        if self._compiled is None:
            return None
        self._warm = None
        waits, chosen = self._compiled.refused(requests, instances, busy, at)
        if 1 in waits:
            for request, does in zip(requests, waits, strict=False):
                if does:
                    self._waits.start_wait(request.id, at)
        if chosen is not None:
            self._waits.end_wait(requests[len(waits)].id)
        return len(waits), chosen

    def headroom(self, instances: Sequence[Instance], at: int) -> float:
        if self._compiled is None:
            return super().headroom(instances, at)
        return self._compiled.headroom(instances, at)

    def _best(
        self, request: Request, instances: Sequence[Instance], cached: Mapping[str, int], at: int
    ) -> _Best | None:
        """Return the best instance with capacity. `cached`: cached prompt tokens by instance."""
        with_room, peaks = self._with_room(request, instances, at)
        if not with_room:
            return None
        tokens, here = expected_tokens(self._ledger, request), _column(with_room, cached)
        costs = self._costs_us(request, with_room, here, tokens)
        least_us = costs.min()
        margin = ALIKE if here.min() < here.max() else ALIKE_BUT_FOR_LOAD
        alike = np.flatnonzero(costs <= least_us * (1 + margin))
        best = alike[0]
        if len(alike) > 1:
            rows = self._table.rows(with_room)[alike]
            best = alike[(peaks[alike] + self._table.computing(rows, at)).argmin()]
        return _Best(with_room[int(best)], float(least_us), with_room)

    def expected_back(self, at: int) -> Iterator[str]:
        return self._ledger.retention.waiting(at)

    def _wait_us(self, request: Request, instance: Instance, at: int) -> float:
        """Return the expected time until the instance can take the request."""
        if self._ledger.health.is_suspended(instance.id, at) or instance.kv_tokens is None:
            return float("inf")
        loads = self._loads(request, [instance], self._held(request, [instance], at), at)
        room_in_us = float(BEGINS_US[self._room_begins(loads, [instance], at)[0]])
        return max(room_in_us, self._ledger.takes_more_in_us(instance, at))

    def reserve(self, request: Request, instances: Sequence[Instance], at: int) -> None:
        if self._warm is not None and self._warm[0] == request.id:
            instances = [self._warm[1]]
        if self._compiled is None:
            super().reserve(request, instances, at)
        else:
            self._compiled.reserve(request, instances, at)

    def forget_reservation(self) -> None:
        if self._compiled is None:
            super().forget_reservation()
        else:
            self._compiled.forget_reservation()

    def _costs_us(
        self,
        request: Request,
        instances: Sequence[Instance],
        cached: Floats,
        tokens: float,
    ) -> Floats:
        """Return the time that the request costs on each instance.

        That is its own duration, plus the delay of calls running there, which wait while its prompt
        is computed and are slowed down by its tokens.
        """
        table, rows = self._table, self._table.rows(instances)
        running = table.running(rows)
        compute_us = table.compute_us(rows, request.prompt_tokens - cached) * (1 + running)
        decode_us = tokens * table.token_us(rows)
        slowed_us = running * tokens * table.token_slope_us(rows)
        costs: Floats = compute_us + decode_us + slowed_us
        return costs

    def _kind(self, request: Request) -> Hashable:
        return self._ledger.curve_of(request), limit_of(request)

    def _close_kinds(self, state: tuple[int, ...], instances: Sequence[Instance], at: int) -> None:
        """Close kinds in one batch, for all that waited in the last turn.

        In a full pool there is often no capacity even for their answers alone.
        """
        n = len(instances)
        kinds = self._refused.awaited(state, at_most=_AT_ONCE // n)
        if not kinds:
            return
        curves, limits = np.array(kinds).repeat(n, axis=0).T
        none, rows = np.zeros(len(limits)), np.tile(self._table.rows(instances), len(kinds))
        token_us, delays_us = self._table.token_us(rows), self._table.begins_us(rows)
        own = self._ledger.curves.surviving(
            curves.astype(np.intp), none, none, limits, token_us, delays_us
        )
        others = self._occupancy.of(instances, at)[:, None]
        loads = self._beside(others, own.reshape(3, len(kinds), n, SLOTS), instances)
        has_room = self._peaks(loads, instances, at) <= self._capacities(instances, at)
        for number in np.flatnonzero(~has_room.any(axis=1)):
            self._refused.close(kinds[number], instances)

    def _held(self, request: Request, instances: Sequence[Instance], at: int) -> Floats:
        """Return the tokens that the request would use on each from the beginning.

        Prefixes shared with calls in flight, or retained for it, are in use already. Half of its
        last block stays free, on average.
        """
        held = super()._held(request, instances, at)
        held += self._table.unfilled(self._table.rows(instances))
        if in_use := self._ledger.prefixes.in_use(request):
            held -= _column(instances, in_use)
        if (kept := self._ledger.retention.kept_for(request, at)) is not None:
            held -= _column(instances, dict([kept]))
        return held

    def _loads(
        self, request: Request, instances: Sequence[Instance], held: Floats, at: int
    ) -> Floats:
        rows = self._table.rows(instances)
        token_us, delays_us = self._table.token_us(rows), self._table.begins_us(rows)
        own = of_request(self._ledger, request, held, token_us, delays_us)
        return self._beside(self._occupancy.of(instances, at), own, instances)

    def _beside(self, others: Future, own: Future, instances: Sequence[Instance]) -> Floats:
        """Return the sum with the safety margin, at most what is used if no call ends.

        If few calls end, the rest is far from normally distributed.
        """
        means, variances, most = own + others
        widest = WIDEST * self._table.memory(self._table.rows(instances))
        margins = np.minimum(SPREAD * np.sqrt(variances), widest[:, None])
        loads: Floats = np.minimum(means + margins, most)
        return loads


def _column(instances: Sequence[Instance], known: Mapping[str, int]) -> Floats:
    """Return the known values by instance; 0 if unknown."""
    values = map(known.get, [each.id for each in instances], repeat(0))
    return np.fromiter(values, np.float64, len(instances))


class Weighed:
    """Cost and memory use of a call on one instance."""

    def __init__(
        self, instance: Instance, cost_us: float, cached_tokens: int, peak: float, capacity: float
    ) -> None:
        self.instance: Final = instance
        self.cost_us: Final = cost_us  # time that the call would add there
        self.cached_tokens: Final = cached_tokens  # prompt tokens expected in the prefix cache
        self.peak: Final = peak  # maximum tokens in use there with the call
        self.capacity: Final = capacity  # tokens that may be in use


class Weighing(SurvivalPacking):
    """Placement that reports its costs. Reservations for other requests are ignored."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger, kernel=None)

    def weigh(self, request: Request, serving: Sequence[Instance], at: int) -> list[Weighed]:
        if not serving:
            return []
        cached = self._ledger.prefixes.match(request) if request.prefix else {}
        here = np.array([float(cached.get(each.id, 0)) for each in serving])
        costs_us = self._costs_us(request, serving, here, expected_tokens(self._ledger, request))
        held = self._held(request, serving, at)
        peaks = self._loads(request, serving, held, at).max(axis=-1)
        room = self._capacities(serving, at)
        return [
            Weighed(each, cost_us, cached.get(each.id, 0), peak, capacity)
            for each, cost_us, peak, capacity in zip(
                serving, costs_us.tolist(), peaks.tolist(), room.tolist(), strict=True
            )
        ]

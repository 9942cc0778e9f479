"""Placements that go by what instances are expected to hold in each slot of the future."""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import partial
from itertools import repeat

import msgspec
import numpy as np

from kairos.dispatcher.compiled import (
    NOWHERE,
    Choice,
    CompiledChoice,
    CompiledOccupancy,
    Margins,
    expected_tokens,
)
from kairos.dispatcher.demand import SLOT_US, SLOTS, Floats, Future, Ints, expected, limit_of
from kairos.dispatcher.ledger import Ledger
from kairos.dispatcher.native import KERNEL, Kernel
from kairos.dispatcher.no_room import NoRoom
from kairos.dispatcher.occupancy import (
    BySurvival,
    Occupancy,
    by_modes,
    of_request,
    paper_token_us,
)
from kairos.model import Instance, Request

SPREAD = 2.0  # standard deviations of what is expected that are kept free: `kairos`
# Costs that differ by less are taken for the same: `kairos`. The second: where all have the same of
# the prompt cached, so that the load differs, or how quick they are.
ALIKE, ALIKE_BUT_FOR_LOAD = 0.01, 0.2

_MAX_WAITS = 10_000  # requests that wait for a warm instance
_AT_ONCE = 1024  # kinds x instances that are looked at together
# By slot in which a call begins, and slot: how many later that is.
_SINCE = np.arange(SLOTS) - np.arange(SLOTS)[:, None]


class _Best(msgspec.Struct, frozen=True):
    """Where a request would go that may go at once."""

    instance: Instance
    least_us: float  # what the request costs there, or where it costs less
    with_room: Sequence[Instance]  # all that it could have gone to


class _Slots:
    """Goes by what instances are expected to hold in each future slot."""

    def __init__(self, ledger: Ledger, occupancy: Occupancy) -> None:
        self._ledger, self._occupancy, self._board = ledger, occupancy, occupancy.board
        self._reserved: tuple[str, Floats] | None = None
        self._refused = NoRoom()

    def _kind(self, request: Request) -> Hashable:
        """Of requests of the same, one that holds more from the beginning needs more room."""
        raise NotImplementedError

    def _held(self, request: Request, instances: Sequence[Instance], at: int) -> Floats:  # noqa: ARG002
        """Tokens that the request would hold on each from the beginning, beside what is held."""
        return np.full(len(instances), float(request.prompt_tokens))

    def _loads(
        self, request: Request, instances: Sequence[Instance], held: Floats, at: int
    ) -> Floats:
        """What each would hold with the request, at most, as far as is planned for: tokens,
        instances x SLOTS."""
        raise NotImplementedError

    def _capacities(self, instances: Sequence[Instance], at: int) -> Floats:
        return self._board.capacities(self._board.rows(instances), at)

    def _not_suspended(self, instances: Sequence[Instance], at: int) -> Sequence[Instance]:
        rows = self._board.rows(instances)
        if not self._board.any_suspended(at):
            return instances
        suspended = self._board.suspended(rows, at)
        return [i for i, out in zip(instances, suspended, strict=True) if not out]

    def headroom(self, instances: Sequence[Instance], at: int) -> float:
        open_to = self._not_suspended(instances, at)
        if not open_to:
            return 0.0
        means, *_ = self._occupancy.of(open_to, at)
        return float((self._capacities(open_to, at) - means[:, 0]).max())

    def _with_room(
        self, request: Request, instances: Sequence[Instance], at: int
    ) -> tuple[list[Instance], Floats]:
        """Those that have room in every slot, and the share of their memory that is taken then, at
        its peak."""
        open_to = self._not_suspended(instances, at)
        if not open_to:
            return [], np.zeros(0)
        kind, ledger = self._kind(request), self._ledger
        state = ledger.changes, ledger.health.changes, ledger.curves.changes, at
        if self._reserved is not None:
            self._close_kinds(state, open_to, at)
        if self._refused.is_closed(state, kind, open_to):
            return [], np.zeros(0)
        held = self._held(request, open_to, at)
        if self._refused.covers(kind, open_to, held):
            return [], np.zeros(0)
        peaks = self._peaks(self._loads(request, open_to, held, at), open_to, at)
        capacities = self._capacities(open_to, at)
        fitting = np.flatnonzero(peaks <= capacities)
        if not len(fitting):
            self._refused.add(kind, open_to, held)
        shares = peaks / self._board.sizes(self._board.rows(open_to))
        return [open_to[row] for row in fitting.tolist()], shares[fitting]

    def _close_kinds(self, state: tuple[int, ...], instances: Sequence[Instance], at: int) -> None:
        """Find kinds of requests that have room nowhere, whatever they hold at first."""

    def _peaks(self, loads: Floats, instances: Sequence[Instance], at: int) -> Floats:
        """Over the slots, beside what is reserved. `loads`: (kinds x) instances x SLOTS."""
        if self._reserved is not None:
            for row, instance in enumerate(instances):
                if instance.id == self._reserved[0]:
                    loads[..., row, :] = self._beside_reserved(
                        loads[..., row, :], instance, self._reserved[1], at
                    )
        peaks: Floats = loads.max(axis=-1)
        return peaks

    def _beside_reserved(
        self, loads: Floats, instance: Instance, reserved: Floats, at: int
    ) -> Floats:
        """A call is there to the end of the slot in which it ends, where others wait for that."""
        means, *_ = self._occupancy.of([instance], at)
        own = loads - means[0]
        own[..., 1:] = np.maximum(own[..., 1:], own[..., :-1])
        beside: Floats = np.where(reserved > 0, means[0] + own + reserved, loads)
        return beside

    def reserve(self, request: Request, instances: Sequence[Instance], at: int) -> None:
        """Its room on the instance that is expected to have it soonest, from then on."""
        open_to = self._not_suspended(instances, at)
        if not open_to:
            return
        loads = self._loads(request, open_to, self._held(request, open_to, at), at)
        begins = self._room_begins(loads, open_to, at)
        row = int(begins.argmin())
        instance = open_to[row]
        [means], *_ = self._occupancy.of([instance], at)
        [capacity] = self._capacities([instance], at)
        # It grows from when it begins, by slot; more than all would be taken for all.
        alone = np.minimum(np.maximum(0.0, loads[row] - means), capacity)
        rooms = np.where(_SINCE >= 0, alone[_SINCE], 0.0)
        fits = (rooms + means <= capacity) | (_SINCE < 0)
        if (begins := np.flatnonzero(fits.all(axis=1))).size:
            self._reserved = instance.id, rooms[begins[0]]

    def _room_begins(self, loads: Floats, instances: Sequence[Instance], at: int) -> Ints:
        """The slot from which on each instance has room: after the last in which it has not."""
        over = loads > self._capacities(instances, at)[:, None]
        begins: Ints = np.where(over.any(axis=1), SLOTS - over[:, ::-1].argmax(axis=1), 0)
        return begins

    def returned(self, at: int) -> Iterator[str]:  # noqa: ARG002
        return iter(())

    def forget_reservation(self) -> None:
        self._reserved = None
        self._refused.forget()


class TimeSlot(_Slots):
    """The paper's (6): an instance that would be over its memory in any slot is out; of the others,
    the one with the lowest peak."""

    def __init__(self, ledger: Ledger, slot_us: float = SLOT_US) -> None:
        """`slot_us`: how long a slot is; their number is fixed, so shorter ones look less far."""
        self._slot_at_us = slot_us * np.arange(SLOTS, dtype=np.float64)
        super().__init__(ledger, Occupancy(ledger, partial(by_modes, slot_at_us=self._slot_at_us)))

    def choose(
        self,
        request: Request,
        instances: Sequence[Instance],
        busy: Sequence[Instance],  # noqa: ARG002
        at: int,
    ) -> Instance | None:
        with_room, peaks = self._with_room(request, instances, at)
        return with_room[int(peaks.argmin())] if with_room else None

    def _kind(self, request: Request) -> Hashable:
        return self._ledger.lasts_us(request)

    def _loads(
        self, request: Request, instances: Sequence[Instance], held: Floats, at: int
    ) -> Floats:
        means, *_ = self._occupancy.of(instances, at)
        lasts_us = np.array([self._ledger.lasts_us(request)])
        prompt, new = held[:1], np.zeros(1)
        speeds = [paper_token_us(self._ledger, instance) for instance in instances]
        needs = {
            us: expected(prompt, new, lasts_us, us, self._slot_at_us)
            for us in dict.fromkeys(speeds)
        }
        loads: Floats = means + np.array([needs[us] for us in speeds])
        return loads


class SurvivalPacking(_Slots):
    """Ours: an instance is out that would be over its memory in any slot, with `SPREAD` standard
    deviations kept free; of the others, the one on which the request costs least time, its own and
    that of those that run there; where that is alike, the one of which least is taken: of its
    memory at the peak, and of a step by prompts under way, as shares. (Prompts that are computed
    together hold up all that decode there; a few tokens of them hide behind the reading of the
    weights.) What an instance has of its prompt in the cache need not be computed, so a workflow
    stays where its history is while that pays. It even waits for that instance where what it saves
    is more than the wait is likely to be.
    """

    def __init__(self, ledger: Ledger, kernel: Kernel | None = KERNEL) -> None:
        """`kernel`: None, numpy does its work."""
        self._compiled: CompiledChoice | None = None
        if kernel is None:
            super().__init__(ledger, Occupancy(ledger, BySurvival()))
        else:
            occupancy = CompiledOccupancy(ledger, kernel)
            super().__init__(ledger, occupancy)
            margins = Margins(SPREAD, ALIKE, ALIKE_BUT_FOR_LOAD)
            self._compiled = CompiledChoice(occupancy, kernel, margins)
        self._warm: tuple[str, Instance] | None = None  # who waits for which instance
        self._waits_since: dict[str, int] = {}  # by request id: no wait is longer than it saves

    def choose(
        self, request: Request, instances: Sequence[Instance], busy: Sequence[Instance], at: int
    ) -> Instance | None:
        self._warm = None
        choice = self._choice(request, instances, busy, at)
        if choice.warm is not None:
            self._wait_for(choice.warm, request.id, at)
        elif choice.instance is not None:
            self._waits_since.pop(request.id, None)
        return choice.instance

    def _choice(
        self, request: Request, instances: Sequence[Instance], busy: Sequence[Instance], at: int
    ) -> Choice:
        waited_us = at - self._waits_since.get(request.id, at)
        if self._compiled is not None:
            open_to = self._not_suspended(instances, at)
            return self._compiled.choose(request, open_to, busy, self._reserved, waited_us, at)
        cached = self._ledger.prefixes.match(request) if request.prefix else {}
        best = self._best(request, instances, cached, at)
        if best is None:
            return NOWHERE
        here = cached.get(best.instance.id, 0)
        warmer = {name for name, tokens in cached.items() if tokens > here}
        warmer.difference_update(each.id for each in best.with_room if warmer)
        tokens = expected_tokens(self._ledger, request)
        for each in (*instances, *busy) if warmer else ():
            if each.id in warmer:
                there = np.array([float(cached[each.id])])
                cost_us = float(self._costs_us(request, [each], there, tokens)[0])
                if waited_us + self._wait_us(request, each, at) + cost_us < best.least_us:
                    return Choice(warm=each)
        return Choice(best.instance)

    def headroom(self, instances: Sequence[Instance], at: int) -> float:
        if self._compiled is None:
            return super().headroom(instances, at)
        open_to = self._not_suspended(instances, at)
        return self._compiled.headroom(open_to, at) if open_to else 0.0

    def _best(
        self, request: Request, instances: Sequence[Instance], cached: Mapping[str, int], at: int
    ) -> _Best | None:
        """`cached`: tokens of its prompt, by instance."""
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
            rows = self._board.rows(with_room)[alike]
            best = alike[(peaks[alike] + self._board.computing(rows, at)).argmin()]
        return _Best(with_room[int(best)], float(least_us), with_room)

    def returned(self, at: int) -> Iterator[str]:
        return self._ledger.returns.waiting(at)

    def _wait_for(self, warm: Instance, request_id: str, at: int) -> None:
        self._warm = request_id, warm
        self._waits_since.setdefault(request_id, at)
        if len(self._waits_since) > _MAX_WAITS:  # of those that were cancelled meanwhile, the first
            del self._waits_since[next(iter(self._waits_since))]

    def _wait_us(self, request: Request, instance: Instance, at: int) -> float:
        """Until it is likely to take the request."""
        if self._ledger.health.is_suspended(instance.id, at) or instance.kv_tokens is None:
            return float("inf")
        loads = self._loads(request, [instance], self._held(request, [instance], at), at)
        room_in_us = float(self._room_begins(loads, [instance], at)[0]) * SLOT_US
        return max(room_in_us, self._ledger.takes_more_in_us(instance, at))

    def reserve(self, request: Request, instances: Sequence[Instance], at: int) -> None:
        if self._warm is not None and self._warm[0] == request.id:
            instances = [self._warm[1]]
        super().reserve(request, instances, at)

    def _costs_us(
        self,
        request: Request,
        instances: Sequence[Instance],
        cached: Floats,
        tokens: float,
    ) -> Floats:
        """Time that it adds on each: until its own end, and to the calls that run beside it, which
        wait while its prompt is computed and are slowed down by its tokens."""
        board, rows = self._board, self._board.rows(instances)
        running = board.running(rows)
        compute_us = board.compute_us(rows, request.prompt_tokens - cached) * (1 + running)
        decode_us = tokens * board.token_us(rows)
        slowed_us = running * tokens * board.token_slope_us(rows)
        costs: Floats = compute_us + decode_us + slowed_us
        return costs

    def _kind(self, request: Request) -> Hashable:
        return self._ledger.curve_of(request), limit_of(request)

    def _close_kinds(self, state: tuple[int, ...], instances: Sequence[Instance], at: int) -> None:
        """All at once that waited in the last turn: where all is full, there is often no room even
        for their answers."""
        n = len(instances)
        kinds = self._refused.awaited(state, at_most=_AT_ONCE // n)
        if not kinds:
            return
        curves, limits = np.array(kinds).repeat(n, axis=0).T
        none, rows = np.zeros(len(limits)), np.tile(self._board.rows(instances), len(kinds))
        token_us, delays_us = self._board.token_us(rows), self._board.begins_us(rows)
        own = self._ledger.curves.surviving(
            curves.astype(np.intp), none, none, limits, token_us, delays_us
        )
        others = self._occupancy.of(instances, at)[:, None]
        loads = _beside(others, own.reshape(3, len(kinds), n, SLOTS))
        has_room = self._peaks(loads, instances, at) <= self._capacities(instances, at)
        for number in np.flatnonzero(~has_room.any(axis=1)):
            self._refused.close(kinds[number], instances)

    def _held(self, request: Request, instances: Sequence[Instance], at: int) -> Floats:
        """What calls in flight there have in common with it is held already, or kept for it. Of its
        last block it leaves half free, on average."""
        held = super()._held(request, instances, at)
        held += self._board.unfilled(self._board.rows(instances))
        if in_use := self._ledger.prefixes.in_use(request):
            held -= _column(instances, in_use)
        if (kept := self._ledger.returns.kept_for(request, at)) is not None:
            held -= _column(instances, dict([kept]))
        return held

    def _loads(
        self, request: Request, instances: Sequence[Instance], held: Floats, at: int
    ) -> Floats:
        rows = self._board.rows(instances)
        token_us, delays_us = self._board.token_us(rows), self._board.begins_us(rows)
        own = of_request(self._ledger, request, held, token_us, delays_us)
        return _beside(self._occupancy.of(instances, at), own)


def _column(instances: Sequence[Instance], known: Mapping[str, int]) -> Floats:
    """What is known by id; 0 where nothing is."""
    values = map(known.get, [each.id for each in instances], repeat(0))
    return np.fromiter(values, np.float64, len(instances))


def _beside(others: Future, own: Future) -> Floats:
    """With `SPREAD` standard deviations, but no more than if nobody ended: where few do, what is
    left is anything but normally distributed."""
    means, variances, most = own + others
    loads: Floats = np.minimum(means + SPREAD * np.sqrt(variances), most)
    return loads

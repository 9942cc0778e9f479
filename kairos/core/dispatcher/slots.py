"""Placements by the expected memory use of instances in future slots.

Refused demand is cached (not in the paper): while nothing changes, a request that needs at least as
much is refused, too. So of the many requests that wait for a full pool, most need no closer check.
"""

from collections.abc import Hashable, Sequence
from functools import partial

import numpy as np

from kairos.core.dispatcher.demand import SLOT_AT, SLOT_US, SLOTS, Floats, Ints, expected
from kairos.core.dispatcher.ledger import Ledger
from kairos.core.dispatcher.occupancy import Occupancy, by_modes, paper_token_us
from kairos.core.dispatcher.placement import Placement
from kairos.core.model import Instance, Request

# [slot in which a call begins, slot]: the slots of the call's own course, from the first to the
# last, that this slot may see.
_LATER = np.array(SLOT_AT) - np.array(SLOT_AT)[:, None]
_WIDTHS = np.diff(SLOT_AT, append=SLOT_AT[-1] + 1)
_FIRST = np.searchsorted(SLOT_AT, _LATER, side="right") - 1
_LAST = np.searchsorted(SLOT_AT, _LATER + _WIDTHS - 1, side="right") - 1
_SEEN = (_FIRST[..., None] <= np.arange(SLOTS)) & (np.arange(SLOTS) <= _LAST[..., None])
_SEEN &= (_LATER >= 0)[..., None]


class SlotPlacement(Placement):
    """Placement by the expected memory use in each future slot."""

    def __init__(self, ledger: Ledger, occupancy: Occupancy) -> None:
        self._ledger, self._occupancy, self._table = ledger, occupancy, occupancy.table
        self._reserved: tuple[str, Floats] | None = None
        self._refused = NoRoom()

    def _kind(self, request: Request) -> Hashable:
        """Return a key; among requests with the same key, more initial tokens mean more demand."""
        raise NotImplementedError

    def _held(self, request: Request, instances: Sequence[Instance], at: int) -> Floats:  # noqa: ARG002
        """Return the tokens that the request would add on each from the beginning."""
        return np.full(len(instances), float(request.prompt_tokens))

    def _loads(
        self, request: Request, instances: Sequence[Instance], held: Floats, at: int
    ) -> Floats:
        """Return the planned maximum use of each with the request: tokens, instances x SLOTS."""
        raise NotImplementedError

    def _capacities(self, instances: Sequence[Instance], at: int) -> Floats:
        return self._table.capacities(self._table.rows(instances), at)

    def _not_suspended(self, instances: Sequence[Instance], at: int) -> Sequence[Instance]:
        rows = self._table.rows(instances)
        if not self._table.any_suspended(at):
            return instances
        suspended = self._table.suspended(rows, at)
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
        """Return instances with capacity in every slot, and their peak use as a share of memory."""
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
        shares = peaks / self._table.sizes(self._table.rows(open_to))
        return [open_to[row] for row in fitting.tolist()], shares[fitting]

    def _close_kinds(self, state: tuple[int, ...], instances: Sequence[Instance], at: int) -> None:
        """Find kinds of requests that fit nowhere even if they use nothing at first."""

    def _peaks(self, loads: Floats, instances: Sequence[Instance], at: int) -> Floats:
        """Return the maximum over the slots, reservations included.

        `loads` are tokens, (kinds x) instances x SLOTS.
        """
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
        """Return the loads plus the reservation.

        A call counts until the end of the slot in which it ends if others wait for that.
        """
        means, *_ = self._occupancy.of([instance], at)
        own = loads - means[0]
        own[..., 1:] = np.maximum(own[..., 1:], own[..., :-1])
        beside: Floats = np.where(reserved > 0, means[0] + own + reserved, loads)
        return beside

    def reserve(self, request: Request, instances: Sequence[Instance], at: int) -> None:
        """Reserve the request's demand on the instance expected to have capacity soonest."""
        open_to = self._not_suspended(instances, at)
        if not open_to:
            return
        loads = self._loads(request, open_to, self._held(request, open_to, at), at)
        begins = self._room_begins(loads, open_to, at)
        row = int(begins.argmin())
        instance = open_to[row]
        [means], *_ = self._occupancy.of([instance], at)
        [capacity] = self._capacities([instance], at)
        # The demand grows from the start of the call, by slot; it is capped to the whole capacity.
        alone = np.minimum(np.maximum(0.0, loads[row] - means), capacity)
        rooms = np.where(_SEEN, alone, 0.0).max(axis=-1)
        fits = (rooms + means <= capacity) | (_LATER < 0)
        if (begins := np.flatnonzero(fits.all(axis=1))).size:
            self._reserved = instance.id, rooms[begins[0]]

    def _room_begins(self, loads: Floats, instances: Sequence[Instance], at: int) -> Ints:
        """Return from which slot on each instance has capacity: after the last one without."""
        over = loads > self._capacities(instances, at)[:, None]
        begins: Ints = np.where(over.any(axis=1), SLOTS - over[:, ::-1].argmax(axis=1), 0)
        return begins

    def forget_reservation(self) -> None:
        self._reserved = None
        self._refused.forget()


class TimeSlot(SlotPlacement):
    """Placement of the paper (6): lowest peak among instances never over their memory."""

    def __init__(self, ledger: Ledger, slot_us: float = SLOT_US) -> None:
        """Create the placement.

        With a shorter first slot the same number of slots covers less time.
        """
        self._slot_at_us = slot_us * np.array(SLOT_AT, dtype=np.float64)
        derive = partial(by_modes, slot_at_us=self._slot_at_us)
        super().__init__(ledger, Occupancy(ledger, derive, paper_token_us))

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
        return self._ledger.latencies.typical_us(request)

    def _loads(
        self, request: Request, instances: Sequence[Instance], held: Floats, at: int
    ) -> Floats:
        means, *_ = self._occupancy.of(instances, at)
        lasts_us = np.array([self._ledger.latencies.typical_us(request)])
        prompt, new = held[:1], np.zeros(1)
        speeds = [paper_token_us(self._ledger, instance) for instance in instances]
        needs = {
            us: expected(prompt, new, lasts_us, us, self._slot_at_us)
            for us in dict.fromkeys(speeds)
        }
        loads: Floats = means + np.array([needs[us] for us in speeds])
        return loads


class NoRoom:
    """Refused demand by kind of request, valid for one state of all that decisions depend on.

    Within a kind, a request that uses more from the beginning needs more throughout.
    """

    def __init__(self) -> None:
        self._state: tuple[int, ...] = ()
        self._held: dict[Hashable, tuple[list[Instance], Floats]] = {}
        self._closed: dict[Hashable, list[Instance]] = {}  # kinds refused for any initial use
        self._asked: dict[Hashable, None] = {}  # kinds checked since the last `forget`
        self._awaited: list[Hashable] = []  # kinds checked before it

    def forget(self) -> None:
        self._awaited, self._asked = list(self._asked), {}
        self._held.clear()
        self._closed.clear()

    def awaited(self, state: tuple[int, ...], at_most: int) -> list[Hashable]:
        """Return and clear the kinds that were checked before the last `forget`."""
        self._begin(state)
        kinds, self._awaited = self._awaited[:at_most], []
        return kinds

    def is_closed(
        self, state: tuple[int, ...], kind: Hashable, instances: Sequence[Instance]
    ) -> bool:
        """Return whether all requests of the kind are refused, regardless of their initial use."""
        self._begin(state)
        self._asked[kind] = None
        return kind in self._closed and self._closed[kind] == instances

    def _begin(self, state: tuple[int, ...]) -> None:
        if state != self._state:
            self._state = state
            self._held.clear()
            self._closed.clear()

    def close(self, kind: Hashable, instances: Sequence[Instance]) -> None:
        self._closed[kind] = list(instances)

    def covers(self, kind: Hashable, instances: Sequence[Instance], held: Floats) -> bool:
        """Return whether a request of the kind that uses at most `held` was refused.

        Each instance counts: it must use no more than `held` on any of them.
        """
        refused = self._held.get(kind)
        return refused is not None and refused[0] == instances and bool((held >= refused[1]).all())

    def add(self, kind: Hashable, instances: Sequence[Instance], held: Floats) -> None:
        self._held[kind] = list(instances), held

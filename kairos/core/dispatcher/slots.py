"""Placements that go by what instances are expected to hold in each slot of the future."""

from collections.abc import Hashable, Sequence
from functools import partial

import numpy as np

from kairos.core.dispatcher.demand import SLOT_AT, SLOT_US, SLOTS, Floats, Ints, expected
from kairos.core.dispatcher.ledger import Ledger
from kairos.core.dispatcher.no_room import NoRoom
from kairos.core.dispatcher.occupancy import Occupancy, by_modes, paper_token_us
from kairos.core.dispatcher.placement import Placement
from kairos.core.model import Instance, Request

# By slot in which a call begins, and slot: the slots between which it then is in its own course.
_LATER = np.array(SLOT_AT) - np.array(SLOT_AT)[:, None]
_FROM = np.maximum(np.searchsorted(SLOT_AT, _LATER, side="right") - 1, 0)
_TO = np.minimum(np.searchsorted(SLOT_AT, _LATER), SLOTS - 1)


class SlotPlacement(Placement):
    """Goes by what instances are expected to hold in each future slot."""

    def __init__(self, ledger: Ledger, occupancy: Occupancy) -> None:
        self._ledger, self._occupancy, self._table = ledger, occupancy, occupancy.table
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
        shares = peaks / self._table.sizes(self._table.rows(open_to))
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
        rooms = np.where(_LATER >= 0, np.maximum(alone[_FROM], alone[_TO]), 0.0)
        fits = (rooms + means <= capacity) | (_LATER < 0)
        if (begins := np.flatnonzero(fits.all(axis=1))).size:
            self._reserved = instance.id, rooms[begins[0]]

    def _room_begins(self, loads: Floats, instances: Sequence[Instance], at: int) -> Ints:
        """The slot from which on each instance has room: after the last in which it has not."""
        over = loads > self._capacities(instances, at)[:, None]
        begins: Ints = np.where(over.any(axis=1), SLOTS - over[:, ::-1].argmax(axis=1), 0)
        return begins

    def forget_reservation(self) -> None:
        self._reserved = None
        self._refused.forget()


class TimeSlot(SlotPlacement):
    """The paper's (6): an instance that would be over its memory in any slot is out; of the others,
    the one with the lowest peak."""

    def __init__(self, ledger: Ledger, slot_us: float = SLOT_US) -> None:
        """Begin with slots of `slot_us` at first; shorter ones look less far, being as many."""
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

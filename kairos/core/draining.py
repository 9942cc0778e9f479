"""State while the wait queues are drained. Not in the paper.

It has the order of turns, the queues with nothing that fits, and the free capacity.
"""

from collections.abc import Set as AbstractSet
from operator import itemgetter

from kairos.core.dispatcher.available import AvailableInstances
from kairos.core.scheduler.fair_queueing import SPARE, FairQueueing, Share
from kairos.core.scheduler.queue import WaitQueue
from kairos.core.scheduler.queues import Place

_SHARES_TRIED = 9  # shares with nothing that fits after which a drain stops

_by_key = itemgetter(0)

Room = tuple[str | None, bool]  # key of free capacity: model, and whether for best-effort calls


def room_of(place: Place) -> Room:
    return place[1], place[0][0] == SPARE


class Drain:
    """State of one drain of the queues."""

    def __init__(self, queues: dict[Place, WaitQueue]) -> None:
        self.open = queues  # queues to try; capacity only shrinks, so none is tried twice
        self.kept: set[str] = set()  # ids of instances reserved for overdue requests
        self.unfit: dict[Place, WaitQueue] = {}  # queues with nothing that fits
        self._unfit_of: dict[Room, int] = {}  # number of these
        self._turns: list[list[Place]] = []  # queues of each share, the next share last
        # Free capacity, until something is dispatched.
        self.rooms: dict[Room, AvailableInstances] = {}

    def next(self, fairness: FairQueueing, at: int) -> tuple[Place, WaitQueue]:
        """Return the next queue: of the share whose turn it is, the one whose head comes first."""
        if len(self.open) == 1:
            [only] = self.open.items()
            return only
        places: list[Place] = []
        while not places:
            if not self._turns:
                self._turns = self._next_turns(fairness)
            places = [each for each in self._turns.pop() if each in self.open]
        self._turns.append(places)
        heads = [(self.open[each].head_key(at), each) for each in places]
        _, place = min(heads, key=_by_key)
        return place, self.open[place]

    def _next_turns(self, fairness: FairQueueing) -> list[list[Place]]:
        by_share: dict[Share, list[Place]] = {}
        for place in self.open:
            by_share.setdefault(place[0], []).append(place)
        order = fairness.order(by_share, _SHARES_TRIED)
        return [by_share[each] for each in reversed(order)]

    def leave_out(self, tenants: AbstractSet[str]) -> None:
        """Leave out the queues of these tenants, so that nothing overtakes their calls."""
        for place in [each for each in self.open if each[0][1] in tenants]:
            del self.open[place]

    def goes(self, place: Place) -> None:
        """Record that a request of this queue was dispatched."""
        self._turns.clear()
        self.rooms.clear()
        if not self.open[place]:
            del self.open[place]

    def does_not_fit(self, place: Place) -> None:
        """Record that nothing in this queue fits.

        After enough such shares, or without a free instance, the model's other queues are skipped.
        """
        self.unfit[place] = self.open.pop(place)
        if not self.open:
            return
        model, is_spare = which = room_of(place)
        self._unfit_of[which] = unfit = self._unfit_of.get(which, 0) + 1
        room = self.rooms.get(which)
        is_over = room is None or not room.instances
        if is_over or unfit >= _SHARES_TRIED:  # best-effort calls have no more capacity than others
            for each in [e for e in self.open if e[1] == model and room_of(e)[1] >= is_spare]:
                del self.open[each]

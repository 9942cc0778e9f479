"""What is found while the wait queues are drained: whose turn it is, of what nothing fits, and what
is free of the instances. Ours."""

from collections.abc import Set as AbstractSet
from operator import itemgetter

from kairos.core.dispatcher.available import AvailableInstances
from kairos.core.scheduler.fair_queueing import SPARE, FairQueueing, Share
from kairos.core.scheduler.queue import WaitQueue
from kairos.core.scheduler.queues import Place

_SHARES_TRIED = 9  # in one drain, of which nothing fits: so much is looked at, however many wait

_by_key = itemgetter(0)

Room = tuple[str | None, bool]  # what is free for a model; and whether for calls that go as spare


def room_of(place: Place) -> Room:
    return place[1], place[0][0] == SPARE


class Drain:
    """What has been found while the queues are drained."""

    def __init__(self, queues: dict[Place, WaitQueue]) -> None:
        self.open = queues  # room only shrinks while draining: none need be tried twice
        self.kept: set[str] = set()  # ids of instances left alone for requests that are overdue
        self.unfit: dict[Place, WaitQueue] = {}  # those of which nothing fits,
        self._unfit_of: dict[Room, int] = {}  # and how many of each room
        self._turns: list[list[Place]] = []  # of each share; whose turn it is comes last
        # What is free, until something goes.
        self.rooms: dict[Room, AvailableInstances] = {}

    def next(self, fairness: FairQueueing, at: int) -> tuple[Place, WaitQueue]:
        """Of the share whose turn it is, the queue whose head goes before those of the others."""
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
        """They get no turn, whatever fits, so nothing overtakes their calls."""
        for place in [each for each in self.open if each[0][1] in tenants]:
            del self.open[place]

    def goes(self, place: Place) -> None:
        """Something of it."""
        self._turns.clear()
        self.rooms.clear()
        if not self.open[place]:
            del self.open[place]

    def does_not_fit(self, place: Place) -> None:
        """Nothing of it does. Where so many shares have nothing that fits, or there is no instance
        left, no more is tried for the model."""
        self.unfit[place] = self.open.pop(place)
        if not self.open:
            return
        model, is_spare = which = room_of(place)
        self._unfit_of[which] = unfit = self._unfit_of.get(which, 0) + 1
        room = self.rooms.get(which)
        is_over = room is None or not room.instances
        if is_over or unfit >= _SHARES_TRIED:  # for what goes as spare there is no more than that
            for each in [e for e in self.open if e[1] == model and room_of(e)[1] >= is_spare]:
                del self.open[each]

"""What `SurvivalPacking` does by numpy, by the kernel: the same, to a rounding. Ours."""

from array import array
from collections.abc import Sequence

import msgspec

from kairos.dispatcher.compiled_table import CompiledTable, Margins
from kairos.dispatcher.ledger import Ledger
from kairos.dispatcher.native import (
    ANSWER,
    ANSWER_PLACE,
    ASKED,
    COMPUTING_UNKNOWN,
    NOWHERE,
    RESERVED_PLACE,
    WARM,
    Block,
    Kernel,
)
from kairos.dispatcher.wanted import WantedRequests
from kairos.model import Instance, Request


class Choice(msgspec.Struct, frozen=True):
    """Where a request goes at once; or for which instance it waits, though others have room."""

    instance: Instance | None = None
    warm: Instance | None = None


NO_CHOICE = Choice()


def expected_tokens(ledger: Ledger, request: Request) -> float:
    """Of its answer."""
    known = ledger.lengths.completion_tokens(request)
    return request.completion_tokens if known is None else known.mean


class CompiledChoice:
    """Each answer is one call of the kernel, for all instances at once."""

    def __init__(self, ledger: Ledger, kernel: Kernel, margins: Margins) -> None:
        self._ledger, self._kernel = ledger, kernel
        self._table = CompiledTable(ledger, kernel, margins)
        self._wanted = WantedRequests(ledger, self._table)
        self._asked = Block(ANSWER_PLACE + ANSWER.size)
        self._reserved_row = NOWHERE
        self._times_us = array("d", [0.0, 0.0])

    def headroom(self, instances: Sequence[Instance], at: int) -> float:
        """The most that is free now on any of them."""
        self._ask(instances, (), at)
        free: float = self._kernel.headroom(self._table.pool_at, self._asked.at)
        return free

    def choose(
        self,
        request: Request,
        instances: Sequence[Instance],
        busy: Sequence[Instance],
        waited_us: int,
        at: int,
    ) -> Choice:
        """`busy`: instances that take nothing now; `waited_us`: for how long the request has waited
        for an instance by now."""
        if not instances:
            return NO_CHOICE
        self._ask(instances, busy if request.prefix else (), at)
        alone = len(instances) == 1 and not busy
        where = *self._where(request, waited_us, at, alone=alone), self._asked.at
        place = self._kernel.choose(*where)
        if place == COMPUTING_UNKNOWN:
            self._table.write_computing(self._table.places(self._answer()[1]), at)
            place = self._kernel.choose(*where)
        if place < 0:
            return NO_CHOICE if place == NOWHERE else Choice(warm=instances[WARM - place])
        if request.prefix and busy:
            warm = self._worth_a_wait(busy, where, waited_us, at)
            if warm is not None:
                return Choice(warm=warm)
        return Choice(instances[place])

    def refused(self, requests: Sequence[Request], instances: Sequence[Instance], at: int) -> int:
        """How many of the requests, from the first on, have room nowhere."""
        self._ask(instances, (), at)
        places = array("q")
        for each in requests:
            # A curve is drawn when it is the request's turn: it is of calls in flight, too.
            if places and self._wanted.draws(each):
                break
            places.append(self._where(each, 0, at)[1])
        found: int = self._kernel.refused(
            self._table.pool_at, places.buffer_info()[0], len(places), self._asked.at
        )
        return found

    def reserve(self, request: Request, instances: Sequence[Instance], at: int) -> None:
        """See `SlotPlacement.reserve`."""
        self._ask(instances, (), at)
        where = *self._where(request, 0, at, alone=True), self._asked.at
        row = self._kernel.reserve(*where, self._asked.at + RESERVED_PLACE)
        if row != NOWHERE:
            self._reserved_row = row

    def forget_reservation(self) -> None:
        self._reserved_row = NOWHERE

    def _ask(self, instances: Sequence[Instance], busy: Sequence[Instance], at: int) -> None:
        table = self._table
        table.renew(at)
        rows = table.rows(instances)
        others = (0, 0)
        if busy:
            found = table.rows(busy)
            others = found.count, found.at
        ASKED.pack_into(self._asked.bytes, 0, at, rows.count, rows.at, *others, self._reserved_row)

    def _where(
        self, request: Request, waited_us: int, at: int, *, alone: bool = False
    ) -> tuple[int, int]:
        """Of the pool and of the request, for the kernel. After `_ask`."""
        wanted_at = self._wanted.at(request, waited_us, at, alone=alone)
        self._table.renew_curves()
        return self._table.pool_at, wanted_at

    def _answer(self) -> tuple[float, int]:
        """The least cost, and how many places were found."""
        least_us, found = ANSWER.unpack_from(self._asked.bytes, ANSWER_PLACE)
        return least_us, found

    def _worth_a_wait(
        self, busy: Sequence[Instance], where: tuple[int, int, int], waited_us: int, at: int
    ) -> Instance | None:
        """The first of those that the kernel found that will take the request so soon that it
        pays."""
        least_us, found = self._answer()
        for place in self._table.places(found):
            row = self._table.row(busy[place].id)
            self._kernel.wait(*where, row, self._times_us.buffer_info()[0])
            cost_us, room_us = self._times_us
            wait_us = max(room_us, self._ledger.takes_more_in_us(busy[place], at))
            if waited_us + wait_us + cost_us < least_us:
                return busy[place]
        return None

"""`SurvivalPacking` computed by the compiled kernel instead of numpy. Not in the paper.

Both give the same results, except for rounding.
"""

from array import array
from collections.abc import Sequence
from typing import Final

from kairos.core.dispatcher.compiled_table import CompiledTable, Margins
from kairos.core.dispatcher.ledger import Ledger
from kairos.core.dispatcher.native import (
    ASKED,
    ASKED_SIZE,
    CHOSEN_PLACE,
    COMPUTING_UNKNOWN,
    FOUND_PLACE,
    NOWHERE,
    NUMBER,
    RESERVED_PLACE,
    WARM,
    Block,
    Kernel,
)
from kairos.core.dispatcher.wanted import WantedRequests
from kairos.core.dispatcher.warm_waits import WarmWaits
from kairos.core.model import Instance, Request


class Choice:
    """Instance for a request, or the warm instance it waits for although others have capacity."""

    def __init__(self, instance: Instance | None = None, warm: Instance | None = None) -> None:
        self.instance: Final = instance
        self.warm: Final = warm


NO_CHOICE = Choice()


def expected_tokens(ledger: Ledger, request: Request) -> float:
    """Return the expected number of tokens of the answer."""
    known = ledger.lengths.completion_tokens(request)
    return request.completion_tokens if known is None else known.mean


class CompiledChoice:
    """Placement decisions by the kernel: each is one call for all instances together."""

    def __init__(self, ledger: Ledger, kernel: Kernel, margins: Margins, waits: WarmWaits) -> None:
        self._ledger, self._kernel = ledger, kernel
        self._table = CompiledTable(ledger, kernel, margins)
        self._wanted = WantedRequests(ledger, self._table, waits)
        self._asked = Block(ASKED_SIZE)
        self._reserved_row = NOWHERE

    def headroom(self, instances: Sequence[Instance], at: int) -> float:
        """Return the maximum of free tokens on any of the instances now."""
        self._ask(instances, (), at)
        free: float = self._kernel.headroom(self._table.pool_at, self._asked.at)
        return free

    def choose(
        self,
        request: Request,
        instances: Sequence[Instance],
        busy: Sequence[Instance],
        at: int,
    ) -> Choice:
        """Choose an instance for the request among the ones with room for it now.

        `busy` ones take nothing.
        """
        if not instances:
            return NO_CHOICE
        self._ask(instances, busy if request.prefix else (), at)
        alone = len(instances) == 1 and not busy
        where = *self._where(request, at, alone=alone), self._asked.at
        while (place := self._kernel.choose(*where)) == COMPUTING_UNKNOWN:
            self._write_computing(at)
        if place >= 0:
            return Choice(instances[place])
        if place == NOWHERE:
            return NO_CHOICE
        place = WARM - place
        there = len(instances)
        return Choice(warm=instances[place] if place < there else busy[place - there])

    def refused(
        self,
        requests: Sequence[Request],
        instances: Sequence[Instance],
        busy: Sequence[Instance],
        at: int,
    ) -> tuple["array[int]", Instance | None]:
        """Check requests in order until one may be placed.

        Returns:
            For each request refused before that, whether it waits for a warm instance (1) or not
                (0); and the instance for the next request, or None if it may not fit either.
        """
        self._ask(instances, busy, at)
        wanted = self._wanted.places(requests, at)
        self._table.renew_curves()
        count, waits = 0, array("q", bytes(wanted.itemsize * len(wanted)))
        while True:
            places = [each.buffer_info()[0] + count * wanted.itemsize for each in (wanted, waits)]
            left = len(wanted) - count
            count += self._kernel.refused(
                self._table.pool_at, places[0], left, self._asked.at, places[1]
            )
            if count == len(wanted) or not self._write_computing(at):
                break
        chosen = self._number(CHOSEN_PLACE)
        return waits[:count], None if chosen == NOWHERE else instances[chosen]

    def reserve(self, request: Request, instances: Sequence[Instance], at: int) -> None:
        """See `SlotPlacement.reserve`."""
        self._ask(instances, (), at)
        where = *self._where(request, at, alone=True), self._asked.at
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

    def _where(self, request: Request, at: int, *, alone: bool = False) -> tuple[int, int]:
        """Return the addresses of the pool and the request, for the kernel. Call `_ask` first."""
        wanted_at = self._wanted.at(request, at, alone=alone)
        self._table.renew_curves()
        return self._table.pool_at, wanted_at

    def _write_computing(self, at: int) -> int:
        """Write the prompts under way that the kernel asks for; return the number of instances."""
        if found := self._number(FOUND_PLACE):
            self._table.write_computing(self._table.places(found), at)
        return found

    def _number(self, place: int) -> int:
        """Return a number that the kernel has written."""
        number: int = NUMBER.unpack_from(self._asked.bytes, place)[0]
        return number

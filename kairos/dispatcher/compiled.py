"""What `SurvivalPacking` does by numpy, by the kernel: the same, to a rounding. Ours."""

import ctypes
from array import array
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from kairos.dispatcher.compiled_table import CompiledTable, Margins
from kairos.dispatcher.demand import SLOTS, Future, limit_of
from kairos.dispatcher.ledger import Ledger
from kairos.dispatcher.native import (
    ANSWER,
    ANSWER_PLACE,
    ASKED,
    COMPUTING_UNKNOWN,
    NOWHERE,
    RESERVED_PLACE,
    WANTED,
    WARM,
    Block,
    Kernel,
)
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


_Column = tuple[int, int, int]  # for the kernel: how many, and where the rows and the tokens are
_NOTHING: _Column = 0, 0, 0
_MAX_KNOWN = 256  # requests


class _Known(msgspec.Struct):
    """Of a prompt, how much of it calls hold on each instance, and is in the cache there."""

    alone: bool  # of one instance: nobody asks what is cached
    changes: tuple[int, int]  # of the table and of the ledger, for which it was found or looked at
    state: list[int] | None  # of the prefix index; None: not asked for
    arrays: "tuple[array[int] | array[float], ...]"
    in_use: _Column
    cached: _Column


class CompiledChoice:
    """Each answer is one call of the kernel, for all instances at once."""

    def __init__(self, ledger: Ledger, kernel: Kernel, margins: Margins) -> None:
        self._ledger, self._kernel = ledger, kernel
        self._table = CompiledTable(ledger, kernel, margins)
        self._wanted, self._asked = Block(WANTED.size), Block(ANSWER_PLACE + ANSWER.size)
        self._where = self._table.pool_at, self._wanted.at, self._asked.at
        self._reserved_row = NOWHERE
        self._times_us = array("d", [0.0, 0.0])
        self._known_of: dict[str, _Known] = {}  # by request id, longest known first

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
        self._want(request, waited_us, at, alone=len(instances) == 1 and not busy)
        place = self._kernel.choose(*self._where)
        if place == COMPUTING_UNKNOWN:
            self._table.write_computing(self._table.places(self._answer()[1]), at)
            place = self._kernel.choose(*self._where)
        if place < 0:
            return NO_CHOICE if place == NOWHERE else Choice(warm=instances[WARM - place])
        if request.prefix and busy:
            warm = self._worth_a_wait(busy, waited_us, at)
            if warm is not None:
                return Choice(warm=warm)
        return Choice(instances[place])

    def reserve(self, request: Request, instances: Sequence[Instance], at: int) -> None:
        """See `SlotPlacement.reserve`."""
        self._ask(instances, (), at)
        self._want(request, 0, at, alone=True)
        row = self._kernel.reserve(*self._where, self._asked.at + RESERVED_PLACE)
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

    def _want(self, request: Request, waited_us: int, at: int, *, alone: bool = False) -> None:
        """After `_ask`. `alone`: of one instance."""
        ledger = self._ledger
        known = ledger.lengths.completion_tokens(request)
        in_use = cached = _NOTHING
        if request.prefix:
            found = self._known(request, alone=alone)
            in_use, cached = found.in_use, found.cached
        kept_row, kept_tokens = NOWHERE, 0
        if (kept := ledger.retention.kept_for(request, at)) is not None:
            kept_row, kept_tokens = self._table.row(kept[0]), kept[1]
        WANTED.pack_into(
            self._wanted.bytes,
            0,
            request.prompt_tokens,
            request.completion_tokens if known is None else known.mean,
            limit_of(request),
            ledger.curves.row(ledger.lengths.kind(request), request, known),
            *in_use,
            *cached,
            kept_row,
            kept_tokens,
            waited_us,
        )
        self._table.renew_curves()

    def _known(self, request: Request, *, alone: bool) -> _Known:
        """Of a request with a prefix. Those that wait are asked for again and again."""
        changes = self._table.arranged, self._ledger.changes
        known = self._known_of.get(request.id)
        if known is None:
            if len(self._known_of) >= _MAX_KNOWN:
                del self._known_of[next(iter(self._known_of))]
            known = self._known_of[request.id] = self._found(request, changes, None, alone=alone)
        elif known.changes != changes or known.alone > alone:
            state = self._ledger.prefixes.versions(request)
            if known.state == state and known.changes[0] == changes[0] and known.alone <= alone:
                known.changes = changes
            else:
                known = self._known_of[request.id] = self._found(
                    request, changes, state, alone=alone
                )
        return known

    def _found(
        self, request: Request, changes: tuple[int, int], state: list[int] | None, *, alone: bool
    ) -> _Known:
        prefixes = self._ledger.prefixes
        in_use, held = self._column(prefixes.in_use(request))
        cached, found = self._column({} if alone else prefixes.match(request))
        return _Known(alone, changes, state, (*held, *found), in_use, cached)

    def _column(
        self, tokens: Mapping[str, int]
    ) -> "tuple[_Column, tuple[array[int] | array[float], ...]]":
        if not tokens:
            return _NOTHING, ()
        rows, counts = self._table.rows_of(tokens), array("d", tokens.values())
        return (len(rows), rows.buffer_info()[0], counts.buffer_info()[0]), (rows, counts)

    def _answer(self) -> tuple[float, int]:
        """The least cost, and how many places were found."""
        least_us, found = ANSWER.unpack_from(self._asked.bytes, ANSWER_PLACE)
        return least_us, found

    def _worth_a_wait(self, busy: Sequence[Instance], waited_us: int, at: int) -> Instance | None:
        """The first of those that the kernel found that will take the request so soon that it
        pays."""
        least_us, found = self._answer()
        for place in self._table.places(found):
            row = self._table.row(busy[place].id)
            self._kernel.wait(*self._where, row, self._times_us.buffer_info()[0])
            cost_us, room_us = self._times_us
            wait_us = max(room_us, self._ledger.takes_more_in_us(busy[place], at))
            if waited_us + wait_us + cost_us < least_us:
                return busy[place]
        return None

    def forecast(self, instance: Instance, at: int) -> Future:
        """3 x SLOTS."""
        self._table.renew(at)
        found = self._kernel.forecast(self._table.pool_at, self._table.row(instance.id), at)
        values = (ctypes.c_double * (3 * SLOTS)).from_address(found)
        return np.array(values).reshape(3, SLOTS)

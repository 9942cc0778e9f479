"""What `Occupancy` and `Kairos` do by numpy, by the kernel: the same, to a rounding. Ours."""

from collections.abc import Mapping, Sequence
from math import inf

import msgspec
import numpy as np

from kairos.dispatcher.demand import Floats, limit_of
from kairos.dispatcher.ledger import Ledger
from kairos.dispatcher.native import Kernel, Wanted, address
from kairos.dispatcher.occupancy import FREE, NOTHING, RENEWED_US, BySurvival, Occupancy
from kairos.model import Instance, Request


class CompiledOccupancy(Occupancy):
    """By survival, by the kernel: the same to a rounding."""

    def __init__(self, ledger: Ledger, kernel: Kernel) -> None:
        super().__init__(ledger, BySurvival())
        self._kernel, self._survival = kernel, BySurvival(kernel)
        self._nothing_at = address(NOTHING)
        self._places = np.zeros(0, dtype=np.int64)
        self._places_at = address(self._places)
        self._renewed: tuple[Sequence[Instance], int, int] = (), 0, 0

    def renew(self, instances: Sequence[Instance], at: int) -> None:
        """Asked again for the same at the same instant, it has nothing to do."""
        state = instances, self.ledger.changes, at
        if instances is self._renewed[0] and state[1:] == self._renewed[1:]:
            return
        super().renew(instances, at)
        self._renewed = state

    def _stale(self, instances: Sequence[Instance], at: int) -> list[int]:
        board, rows_at = self.board, self.board.rows_at(instances)
        self._make_rows()
        found = self._kernel.stale(
            board.table, len(instances), rows_at, at, RENEWED_US, self._places_at
        )
        return self._places[:found].tolist() if found else []

    def renew_computing(self, instances: Sequence[Instance], at: int) -> None:
        """See `Board.renew_computing`."""
        board, n = self.board, len(instances)
        rows_at = board.rows_at(instances)
        found = self._kernel.computed(board.table, n, rows_at, at, self._places_at)
        for row in self._places[:found].tolist() if found else ():
            board.write_computing(row, at)

    def headroom(self, instances: Sequence[Instance], at: int) -> float:
        """The most that is free now on any of them."""
        board = self.board
        self.renew(instances, at)
        board.renew_health(at)
        free: float = self._kernel.headroom(board.table, len(instances), board.rows_at(instances))
        return free

    def _write(self, row: int, instance: Instance, at: int) -> None:
        ledger, table = self.ledger, self.board.table
        flight, kept = ledger.flight(instance.id), ledger.returns.kept(instance.id)
        held_at, times, free = self._nothing_at, 0.0, 0.0
        if flight:
            derived = self._survival.derived(ledger, instance, flight, at)
            held_at, times = derived.held_at, derived.times(at)
            free = FREE * (instance.kv_tokens or 0)
        self._kernel.forecast(table, row, at, held_at, times, free, len(kept), *kept.columns)

    def _add_rows(self, count: int) -> None:
        super()._add_rows(count)
        self._places = np.zeros(len(self._versions), dtype=np.int64)
        self._places_at = address(self._places)
        table = self.board.table
        table.forecasts = address(self.forecasts)
        table.forecast_of, table.forecast_at = address(self._versions), address(self._derived_at)


class Best(msgspec.Struct, frozen=True):
    """Where a request would go that may go at once."""

    instance: Instance
    least_us: float  # what the request costs there, or where it costs less
    with_room: Sequence[Instance]  # all that it could have gone to


class Margins(msgspec.Struct, frozen=True):
    """See `slots.py`."""

    spread: float
    alike: float
    alike_but_for_load: float


class CompiledChoice:
    """What `Kairos` does by numpy, in one call of the kernel, for all instances at once."""

    def __init__(self, occupancy: CompiledOccupancy, kernel: Kernel, margins: Margins) -> None:
        self._occupancy, self._board, self._ledger = occupancy, occupancy.board, occupancy.ledger
        self._kernel = kernel
        self._wanted = Wanted(**msgspec.structs.asdict(margins))
        # By row, tokens of the prompt that calls hold there, and that are in the cache there; by
        # place, what the kernel answers: shares and costs; and the least cost.
        self._least_us = np.zeros(1)
        self._make_columns(0)

    def headroom(self, instances: Sequence[Instance], at: int) -> float:
        """The most that is free now on any of them."""
        return self._occupancy.headroom(instances, at)

    def best(
        self,
        request: Request,
        instances: Sequence[Instance],
        cached: Mapping[str, int],
        answer_tokens: float,
        reserved: tuple[str, Floats] | None,
        at: int,
    ) -> Best | None:
        """`answer_tokens`: expected; `reserved`: where, by slot, for another request."""
        if not instances:
            return None
        self._occupancy.renew(instances, at)
        self._board.renew_health(at)
        if len(instances) > 1:
            self._occupancy.renew_computing(instances, at)
        if len(self._in_use) < self._board.table.rows:
            self._make_columns(self._board.table.rows)
        in_use = self._ledger.prefixes.in_use(request) if request.prefix else {}
        self._want(request, answer_tokens, in_use, cached, reserved, at)
        place = self._kernel.choose(
            *(self._board.table, self._wanted, len(instances), self._board.rows_at(instances)),
            *self._answers_at,
        )
        self._clear(in_use, cached)
        if place < 0:
            return None
        with_room = [i for i, s in zip(instances, self._shares.tolist(), strict=False) if s < inf]
        return Best(instances[place], float(self._least_us[0]), with_room)

    def _make_columns(self, rows: int) -> None:
        self._in_use, self._cached = np.zeros(rows), np.zeros(rows)
        self._shares, self._costs = np.zeros(rows), np.zeros(rows)
        answers = self._shares, self._costs, self._least_us
        self._answers_at = [address(each) for each in answers]

    def _want(
        self,
        request: Request,
        answer_tokens: float,
        in_use: Mapping[str, int],
        cached: Mapping[str, int],
        reserved: tuple[str, Floats] | None,
        at: int,
    ) -> None:
        wanted, ledger = self._wanted, self._ledger
        wanted.prompt_tokens, wanted.answer_tokens = request.prompt_tokens, answer_tokens
        wanted.limit = limit_of(request)
        wanted.curve, wanted.width = ledger.curves.curve(ledger.curve_of(request))
        wanted.in_use = self._fill(self._in_use, in_use)
        wanted.cached = self._fill(self._cached, cached)
        wanted.kept_row = wanted.reserved_row = -1
        if (kept := ledger.returns.kept_for(request, at)) is not None:
            wanted.kept_row, wanted.kept_tokens = self._row(kept[0]), kept[1]
        if reserved is not None:
            wanted.reserved_row, wanted.reserved = self._row(reserved[0]), address(reserved[1])

    def _row(self, instance_id: str) -> int:
        row = self._board.row(instance_id)
        return -1 if row is None else row

    def _fill(self, column: Floats, known: Mapping[str, int]) -> int | None:
        if not known:
            return None
        for instance_id, tokens in known.items():
            if (row := self._board.row(instance_id)) is not None:
                column[row] = tokens
        return address(column)

    def _clear(self, *known: Mapping[str, int]) -> None:
        for column, each in zip((self._in_use, self._cached), known, strict=True):
            if each:
                column.fill(0.0)

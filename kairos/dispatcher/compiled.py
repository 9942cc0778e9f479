"""What `Occupancy` and `Kairos` do by numpy, by the kernel: the same, to a rounding. Ours."""

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from kairos.dispatcher.demand import Floats, limit_of
from kairos.dispatcher.instance_table import InstanceTable
from kairos.dispatcher.ledger import Ledger
from kairos.dispatcher.native import Found, Kernel, Wanted, address
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
        table, rows_at = self.table, self.table.rows_at(instances)
        self._make_rows()
        found = self._kernel.stale(
            table.native, len(instances), rows_at, at, RENEWED_US, self._places_at
        )
        return self._places[:found].tolist() if found else []

    def renew_computing(self, instances: Sequence[Instance], at: int) -> None:
        """See `InstanceTable.renew_computing`."""
        table, n = self.table, len(instances)
        rows_at = table.rows_at(instances)
        found = self._kernel.computed(table.native, n, rows_at, at, self._places_at)
        for row in self._places[:found].tolist() if found else ():
            table.write_computing(row, at)

    def headroom(self, instances: Sequence[Instance], at: int) -> float:
        """The most that is free now on any of them."""
        table = self.table
        self.renew(instances, at)
        table.renew_health(at)
        free: float = self._kernel.headroom(table.native, len(instances), table.rows_at(instances))
        return free

    def _write(self, row: int, instance: Instance, at: int) -> None:
        ledger, table = self.ledger, self.table.native
        flight, kept = ledger.flight(instance.id), ledger.retention.kept(instance.id)
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
        table = self.table.native
        table.forecasts = address(self.forecasts)
        table.forecast_of, table.forecast_at = address(self._versions), address(self._derived_at)


class Choice(msgspec.Struct, frozen=True):
    """Where a request goes at once; or for which instance it waits, though others have room."""

    instance: Instance | None = None
    warm: Instance | None = None


NOWHERE = Choice()


class Margins(msgspec.Struct, frozen=True):
    """See `slots.py`."""

    spread: float
    alike: float
    alike_but_for_load: float


def expected_tokens(ledger: Ledger, request: Request) -> float:
    """Of its answer."""
    known = ledger.lengths.completion_tokens(request)
    return request.completion_tokens if known is None else known.mean


class _Column:
    """Tokens by row of the table."""

    def __init__(self) -> None:
        self._tokens, self._at = np.zeros(0), 0

    def fill(self, tokens: Mapping[str, int], table: InstanceTable, rows: int) -> int | None:
        """With what is known by id; returns the address. None: nothing is known."""
        if not tokens:
            return None
        if len(self._tokens) != rows:
            self._tokens = np.zeros(rows)
            self._at = address(self._tokens)
        else:
            self._tokens.fill(0.0)
        for instance_id, count in tokens.items():
            if (row := table.row(instance_id)) is not None:
                self._tokens[row] = count
        return self._at


class _Known:
    """Of a prompt, how much of it calls hold on each instance, and is in the cache there."""

    def __init__(self) -> None:
        self.state: tuple[int, ...] = ()  # of the table and of the prefix index
        self.in_use, self.cached = _Column(), _Column()
        self.in_use_at: int | None = None
        self.cached_at: int | None = None


_UNKNOWN = _Known()
_MAX_KNOWN = 256  # requests


class CompiledChoice:
    """What `Kairos` does by numpy, in one call of the kernel, for all instances at once."""

    def __init__(self, occupancy: CompiledOccupancy, kernel: Kernel, margins: Margins) -> None:
        self._occupancy, self._table, self._ledger = occupancy, occupancy.table, occupancy.ledger
        self._kernel = kernel
        self._wanted = Wanted(**msgspec.structs.asdict(margins))
        self._found = Found()
        self._known_of: dict[str, _Known] = {}  # by request id, longest known first
        self._make_columns(0)

    def headroom(self, instances: Sequence[Instance], at: int) -> float:
        """The most that is free now on any of them."""
        return self._occupancy.headroom(instances, at)

    def choose(
        self,
        request: Request,
        instances: Sequence[Instance],
        busy: Sequence[Instance],
        reserved: tuple[str, Floats] | None,
        waited_us: int,
        at: int,
    ) -> Choice:
        """`busy`: instances that take nothing now; `reserved`: where, by slot, for another request;
        `waited_us`: for how long this one has waited for an instance by now."""
        if not instances:
            return NOWHERE
        table, wanted = self._table, self._wanted
        self._prepare(instances, at)
        self._want(request, reserved, waited_us, at)
        known = self._known(request) if request.prefix else _UNKNOWN
        wanted.in_use, wanted.cached = known.in_use_at, known.cached_at
        if known.cached_at is None:  # there is nothing to wait for
            busy = ()
        busy_at = table.rows_at(busy) if busy else None
        place = self._kernel.choose(
            *(table.native, wanted, len(instances), table.rows_at(instances)),
            *(len(busy), busy_at, self._found),
        )
        if place < 0:
            return NOWHERE if place == -1 else Choice(warm=instances[-2 - place])
        if self._found.warm and (warm := self._worth_a_wait(busy, waited_us, at)) is not None:
            return Choice(warm=warm)
        return Choice(instances[place])

    def _prepare(self, instances: Sequence[Instance], at: int) -> None:
        self._occupancy.renew(instances, at)
        self._table.renew_health(at)
        if len(instances) > 1:
            self._occupancy.renew_computing(instances, at)
        if len(self._shares) < self._table.native.rows:
            self._make_columns(self._table.native.rows)

    def _worth_a_wait(self, busy: Sequence[Instance], waited_us: int, at: int) -> Instance | None:
        """The first of those that the kernel found that will take the request so soon that it
        pays."""
        kernel, table, wanted = self._kernel, self._table.native, self._wanted
        for place in self._warm_places[: self._found.warm].tolist():
            instance: Instance = busy[place]
            self._occupancy.renew([instance], at)
            row = self._row(instance.id)
            room_us: float = kernel.room_in_us(table, wanted, row)
            cost_us: float = kernel.cost_us(table, wanted, row)
            wait_us = max(room_us, self._ledger.takes_more_in_us(instance, at))
            if waited_us + wait_us + cost_us < self._found.least_us:
                return instance
        return None

    def _make_columns(self, rows: int) -> None:
        """By place, what the kernel answers."""
        self._shares, self._costs = np.zeros(rows), np.zeros(rows)
        self._warm_places = np.zeros(rows, dtype=np.int64)
        found = self._found
        found.shares, found.costs = address(self._shares), address(self._costs)
        found.warm_places = address(self._warm_places)

    def _want(
        self, request: Request, reserved: tuple[str, Floats] | None, waited_us: int, at: int
    ) -> None:
        wanted, ledger = self._wanted, self._ledger
        wanted.prompt_tokens, wanted.waited_us = request.prompt_tokens, waited_us
        wanted.answer_tokens = expected_tokens(ledger, request)
        wanted.limit = limit_of(request)
        wanted.curve, wanted.width = ledger.curves.curve(ledger.curve_of(request))
        wanted.kept_row = wanted.reserved_row = -1
        if (kept := ledger.retention.kept_for(request, at)) is not None:
            wanted.kept_row, wanted.kept_tokens = self._row(kept[0]), kept[1]
        if reserved is not None:
            wanted.reserved_row, wanted.reserved = self._row(reserved[0]), address(reserved[1])

    def _row(self, instance_id: str) -> int:
        row = self._table.row(instance_id)
        return -1 if row is None else row

    def _known(self, request: Request) -> _Known:
        """Of a request with a prefix. Those that wait are asked for again and again."""
        prefixes, arranged = self._ledger.prefixes, self._table.arranged
        state = arranged, *prefixes.versions(request)
        known = self._known_of.get(request.id)
        if known is None:
            known = self._new_known(request.id)
        if known.state != state:
            rows = self._table.native.rows
            known.in_use_at = known.in_use.fill(prefixes.in_use(request), self._table, rows)
            known.cached_at = known.cached.fill(prefixes.match(request), self._table, rows)
            known.state = state
        return known

    def _new_known(self, request_id: str) -> _Known:
        known = _Known()
        if len(self._known_of) == _MAX_KNOWN:  # the columns of the oldest serve again
            known = self._known_of.pop(next(iter(self._known_of)))
            known.state = ()
        self._known_of[request_id] = known
        return known

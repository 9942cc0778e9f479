"""Table of instances in the memory layout of the kernel. Not in the paper."""

from array import array
from collections.abc import Sequence
from itertools import count
from typing import Final, NamedTuple

from kairos.core.dispatcher.in_flight import InFlightTable
from kairos.core.dispatcher.instance_table import computing
from kairos.core.dispatcher.kv_retention import KeptContexts
from kairos.core.dispatcher.ledger import Ledger
from kairos.core.dispatcher.native import (
    COMPUTING,
    COMPUTING_PLACE,
    FACTS,
    HEALTH,
    HEALTH_PLACE,
    KIND_PLACE,
    LINES,
    NUMBER,
    POOL,
    Block,
    Kernel,
)
from kairos.core.dispatcher.speed import Speed, StepPace
from kairos.core.model import EXPECTED_COMPLETION_TOKENS, Instance

_INF = float("inf")


class Margins(NamedTuple):
    """See `survival_packing.py`."""

    spread: float
    widest: float
    alike: float
    alike_but_for_load: float
    free: float  # this and the next two: see `occupancy.py`
    renewed_us: int
    few: int


class _Columns:
    """Columns that the kernel reads for an instance, and values fixed for instance and speed.

    Referenced here so that they live as long as the kernel may read them.
    """

    def __init__(
        self,
        flight: InFlightTable,
        kept: KeptContexts,
        number: int,
        instance: Instance,
        speed: Speed,
        kind: int,
        kv_tokens: float,
        unfilled_tokens: float,
    ) -> None:
        self.flight = flight
        self.kept = kept
        self.number = number  # unique for each table of calls
        self.instance = instance
        self.speed = speed
        self.kind = kind  # index of its pace
        self.kv_tokens = kv_tokens
        self.unfilled_tokens = unfilled_tokens


class Rows:
    """Row numbers of some instances, in their order."""

    def __init__(
        self,
        instances: Sequence[Instance],
        numbers: "array[int]",
        at: int,
        count: int,
    ) -> None:
        self.instances: Final = instances
        self.numbers: Final = numbers
        self.at: Final = at  # address of the numbers
        self.count: Final = count


class CompiledTable:
    """Table with a row per instance, rewritten when the ledger reports a change."""

    def __init__(self, ledger: Ledger, kernel: Kernel, margins: Margins) -> None:
        self._ledger, self._kernel, self._margins = ledger, kernel, margins
        self._row_of: dict[str, int] = {}
        self._columns: list[_Columns | None] = []  # by row
        self._flights = count(1)
        self._paces: list[StepPace] = []
        self._changes = 0  # change of the ledger up to which the rows are current
        self._health = -1, 0.0  # the same for the health, and until when it is valid
        self._curves = 0, 0  # addresses of the curves
        self.arranged = 0  # changes whenever the assignment of instances to rows does
        # Rows of the instances last asked for, and of those before.
        self._asked = self._asked_before = NO_ROWS
        self._block = Block(0)
        self._lines = Block(0)
        self._places = array("q")
        self._pool = Block(POOL.size)
        self.pool_at = self._pool.at

    def renew(self, at: int) -> None:
        """Update what has changed, including health that has grown stale since."""
        ledger = self._ledger
        if self._changes != ledger.changes:
            for instance_id in ledger.changed_since(self._changes):
                if (instance := ledger.instances.get(instance_id)) is not None:
                    self._write(instance, at)
            self._changes = ledger.changes
            self._write_lines()
            self._kernel.speeds(self.pool_at)
        self.renew_curves()
        changes, until = self._health
        if changes != ledger.health.changes or at > until:
            self._write_health(at)

    def renew_curves(self) -> None:
        """Update the addresses of the curves, which move when their number grows."""
        if self._curves != self._ledger.curves.columns:
            self._curves = self._ledger.curves.columns
            self._write_pool()

    def rows(self, instances: Sequence[Instance]) -> Rows:
        """Return the rows of present instances. Call `renew` first."""
        if instances is self._asked.instances:
            return self._asked
        self._asked, self._asked_before = self._asked_before, self._asked
        if instances is not self._asked.instances:
            numbers = array("q", [self._row_of[each.id] for each in instances])
            at, size = numbers.buffer_info()
            self._asked = Rows(instances, numbers, at, size)
        return self._asked

    def row(self, instance_id: str) -> int:
        """Return the row of an instance; -1 if it has none."""
        return self._row_of.get(instance_id, -1)

    @property
    def count(self) -> int:
        """Return the number of rows."""
        return len(self._columns)

    def places(self, found: int) -> list[int]:
        """Return the first `found` rows that the kernel has written."""
        return self._places[:found].tolist()

    def write_computing(self, rows: Sequence[int], at: int) -> None:
        """Update the prompts under way in these rows.

        They change as time passes, when prompts are assumed to be computed.
        """
        of_row = {row: instance_id for instance_id, row in self._row_of.items()}
        for row in rows:
            instance = self._ledger.instances.get(of_row[row])
            found = 0.0, 0.0, _INF
            if instance is not None:
                found = computing(self._ledger, instance, at)
            place = row * self._kernel.instance_bytes + COMPUTING_PLACE
            COMPUTING.pack_into(self._block.bytes, place, *found)

    def _write(self, instance: Instance, at: int) -> None:
        row = self._row_of.get(instance.id)
        if row is None:
            row = self._new_row(instance.id)
        ledger = self._ledger
        columns = self._columns_of(instance, row)
        flight = columns.flight
        FACTS.pack_into(
            self._block.bytes,
            row * self._kernel.instance_bytes,
            len(flight),
            columns.kv_tokens,
            columns.speed.times,
            columns.unfilled_tokens,
            instance.max_num_seqs,
            columns.kind,
            ledger.version(instance.id),
            columns.number,
            flight.changes,
            flight.prompt_tokens,
            flight.ended_tokens,
            ledger.prefixes.shared_tokens(instance.id),
            flight.at,
            *columns.kept.columns,
            *computing(ledger, instance, at),
        )

    def _columns_of(self, instance: Instance, row: int) -> _Columns:
        ledger, columns = self._ledger, self._columns[row]
        flight, kept = ledger.flight(instance.id), ledger.retention.kept(instance.id)
        speed = ledger.served.speeds[instance.id]
        if (
            columns is not None
            and columns.flight is flight
            and columns.instance is instance
            and columns.speed is speed
        ):
            columns.kept = kept
            return columns
        is_same = columns is not None and columns.flight is flight
        number = columns.number if columns is not None and is_same else next(self._flights)
        kv_tokens = _INF if instance.kv_tokens is None else instance.kv_tokens
        if columns is None or columns.kv_tokens != kv_tokens:
            self._health = -1, 0.0  # its unseen memory is a share of this size
        unfilled_tokens, kind = ledger.unfilled_tokens(instance.id), self._kind(speed.pace)
        found = _Columns(flight, kept, number, instance, speed, kind, kv_tokens, unfilled_tokens)
        self._columns[row] = found
        return found

    def _write_lines(self) -> None:
        """Update the paces of all kinds: each instance teaches about its whole kind."""
        for kind, pace in enumerate(self._paces):
            lines = *pace.token.numbers(), *pace.prompt.numbers()
            LINES.pack_into(self._lines.bytes, kind * LINES.size, *lines)

    def _write_health(self, at: int) -> None:
        health = self._ledger.health
        self._health = health.changes, health.stays_until(at)
        for instance_id, row in self._row_of.items():
            instance = self._ledger.instances.get(instance_id)
            # Of an instance that left, nothing is known, not even after its return.
            unseen = health.unseen_tokens(instance, at) if instance is not None else 0.0
            place = row * self._kernel.instance_bytes + HEALTH_PLACE
            suspended = health.is_suspended(instance_id, at)
            HEALTH.pack_into(self._block.bytes, place, unseen, suspended)

    def _new_row(self, instance_id: str) -> int:
        self._health = -1, 0.0
        self.arranged += 1
        self._asked = self._asked_before = NO_ROWS
        gone = next((each for each in self._row_of if each not in self._ledger.instances), None)
        if gone is not None:
            row = self._row_of[instance_id] = self._row_of.pop(gone)
            self._columns[row] = None
            return row
        row = self._row_of[instance_id] = len(self._row_of)
        self._columns.append(None)
        self._block = self._block.grown(self._kernel.instance_bytes)
        self._places = array("q", [0] * (row + 1))
        self._write_pool()
        return row

    def _kind(self, pace: StepPace) -> int:
        for kind, known in enumerate(self._paces):
            if known is pace:
                return kind
        if len(self._paces) > len(self._row_of):  # some belong to instances that left
            self._forget_paces()
        self._paces.append(pace)
        self._lines = Block(len(self._paces) * LINES.size)
        self._write_pool()
        return len(self._paces) - 1

    def _forget_paces(self) -> None:
        """Drop the paces of instances that have left."""
        before, here = self._paces, self._ledger.instances
        self._paces = []
        for instance_id, row in self._row_of.items():
            place, kind = row * self._kernel.instance_bytes + KIND_PLACE, 0
            if instance_id in here:
                kind = self._kind(before[NUMBER.unpack_from(self._block.bytes, place)[0]])
            NUMBER.pack_into(self._block.bytes, place, kind)
            if (columns := self._columns[row]) is not None:
                columns.kind = kind

    def _write_pool(self) -> None:
        POOL.pack_into(
            self._pool.bytes,
            0,
            self._block.at,
            len(self._columns),
            *self._curves,
            self._lines.at,
            self._places.buffer_info()[0],
            *self._margins,
            EXPECTED_COMPLETION_TOKENS / 2,
        )


NO_ROWS = Rows((), array("q"), 0, 0)

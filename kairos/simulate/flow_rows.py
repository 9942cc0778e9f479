"""The table of a simulated flow: rows as they arrive, and the groups that they are gathered in."""

from collections.abc import Callable, Iterator, Mapping

from kairos.simulate.clock import VirtualClock
from kairos.workflows import (
    FlowFact,
    GatherRow,
    GroupRead,
    GroupsEnded,
    InputEnded,
    RowRead,
    RowsAwaited,
)


class FlowRows:
    def __init__(
        self,
        clock: VirtualClock,
        table: Iterator[Mapping[str, object]],
        arrives_at: Callable[[int], int],
        put: Callable[[FlowFact], None],
        go_on: Callable[[], None],
    ) -> None:
        """Create it. `put` queues facts; `go_on` is called if nothing else would handle them."""
        self._clock, self._table, self._arrives_at = clock, enumerate(table), arrives_at
        self._put, self._go_on = put, go_on
        self._next_row: tuple[int, Mapping[str, object]] | None = None
        self._awaited = 0  # rows that were asked for and have not arrived
        self._groups: dict[str, list[tuple[int, object]]] = {}
        self._left_groups: Iterator[tuple[int, tuple[str, list[object]]]] | None = None

    def read(self, count: int) -> None:
        """Read `count` rows: the arrived ones now, the others when they arrive."""
        is_waiting, self._awaited = self._awaited > 0, self._awaited + count
        if not is_waiting:
            self._read_arrived()

    def gather(self, command: GatherRow) -> None:
        self._groups.setdefault(command.key, []).append((command.row, command.value))

    def read_groups(self, count: int) -> None:
        if self._left_groups is None:
            first = sorted(self._groups.items(), key=lambda group: min(group[1])[0])
            groups = [
                (key, [value for _, value in sorted(rows, key=lambda row: row[0])])
                for key, rows in first
            ]
            self._left_groups = enumerate(iter(groups))
        for _ in range(count):
            read = next(self._left_groups, None)
            if read is None:
                self._put(GroupsEnded())
                return
            number, (key, items) = read
            self._put(GroupRead(number, key, items))

    def _read_arrived(self) -> None:
        while self._awaited:
            if self._next_row is None:
                self._next_row = next(self._table, None)
            if self._next_row is None:
                self._awaited = 0
                self._put(InputEnded())
                return
            at = self._arrives_at(self._next_row[0])
            if at > self._clock.now():
                self._clock.call_at(at, self._rows_arrived)
                self._put(RowsAwaited())
                return
            self._put(RowRead(*self._next_row))
            self._next_row, self._awaited = None, self._awaited - 1

    def _rows_arrived(self) -> None:
        self._read_arrived()
        self._go_on()

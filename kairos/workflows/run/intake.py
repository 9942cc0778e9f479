"""Pass rows to an executor as it asks for them: rows of the table, then their groups.

Rows that ended in an earlier session are skipped.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from hashlib import blake2b
from itertools import islice

import msgspec

from kairos.workflows.execute.facts import (
    FlowFact,
    GroupRead,
    GroupsEnded,
    InputEnded,
    RowRead,
    RowsAwaited,
    RowUnreadable,
)
from kairos.workflows.run.result_store import NumberedGroup, ResultStore, Resumed
from kairos.workflows.run.rows import ROW_BYTES, InputRow, InputTable

_CHUNK_ROWS, _CHUNK_BYTES = 64, 4 << 20
_SLOW_S = 0.2  # a slower read is reported to the executor
OPEN_BYTES = 64 << 20  # of open rows in total; a single row may have more
_DIGEST_BYTES = 16
_NOTHING = Resumed()
_encode = msgspec.json.Encoder(order="sorted").encode


class TableIntake:
    """Rows of a table for an executor. Each open row has a digest of its input (`digest_of`)."""

    def __init__(
        self,
        table: InputTable,
        store: ResultStore,
        plan_digest: bytes,
        tell: Callable[[FlowFact], None],
        groups: Callable[[], Iterator[NumberedGroup]] | None = None,
    ) -> None:
        """Prepare to read.

        `groups`: yields the groups once all rows have ended; None: all groups.
        """
        self._table, self._store, self._tell = table, store, tell
        self._groups = groups or (lambda: store.groups(self.read[0]))
        self._plan_digest = plan_digest
        self._resumes = not store.is_empty()
        self._open: dict[tuple[int, int], tuple[bytes, int]] = {}
        self._open_bytes = 0
        self._wanted = [0, 0]  # rows, groups
        self._changed = asyncio.Event()
        self.read = [0, 0]  # rows, groups: also ones that ended in an earlier session
        self.ended_before = 0
        self.is_at_end = False

    def request_rows(self, stage: int, count: int) -> None:
        self._wanted[stage] += count
        self._changed.set()

    def digest_of(self, stage: int, row: int) -> bytes:
        """Close an open row, and return the digest of its input."""
        digest, size = self._open.pop((stage, row))
        self._open_bytes -= size
        self._changed.set()
        return digest

    async def run(self) -> None:
        """Pass on all rows and groups. Raises InvalidFile: the table cannot be read to its end."""
        rows = self._table.rows()
        while chunk := await self._next(rows):
            known: Mapping[int, Resumed] = {}
            if self._resumes:
                numbers = [row.number for row in chunk]
                known = await asyncio.to_thread(self._store.resumed, 0, numbers)
            for row in chunk:
                self._hand_over(row, known.get(row.number, _NOTHING))
        self.is_at_end = True
        self._tell(InputEnded())
        await self._room(1)
        await asyncio.to_thread(self._store.settle)
        for number, key, items in self._groups():
            await self._room(1)
            self._hand_over_group(number, key, items)
        await self._room(1)
        self._tell(GroupsEnded())

    async def _next(self, rows: Iterator[InputRow]) -> list[InputRow]:
        await self._room(0)
        loop = asyncio.get_running_loop()
        slow = loop.call_later(_SLOW_S, self._tell, RowsAwaited())
        try:
            return await asyncio.to_thread(_chunk, rows, min(self._wanted[0], _CHUNK_ROWS))
        finally:
            slow.cancel()

    async def _room(self, stage: int) -> None:
        while self._wanted[stage] <= 0 or self._open_bytes > OPEN_BYTES:
            self._changed.clear()
            await self._changed.wait()

    def _hand_over(self, row: InputRow, resumed: Resumed) -> None:
        self.read[0] += 1
        if row.values is None:
            digest = self._digest(row.problem)
            self._open_row(0, row.number, digest, 0)
            self._tell(RowUnreadable(row.number, row.problem or ""))
            return
        digest = self._digest(row.values)
        if self._has_ended(resumed, digest):
            return
        self._open_row(0, row.number, digest, row.size_bytes)
        self._tell(RowRead(row.number, row.values, resumed.results, row.size_bytes))

    def _hand_over_group(self, number: int, key: str, items: list[object] | None) -> None:
        self.read[1] += 1
        digest = self._digest([key, items])
        resumed = _NOTHING
        if self._resumes:
            resumed = self._store.resumed(1, (number,)).get(number, _NOTHING)
        if items is not None and self._has_ended(resumed, digest):
            return
        self._open_row(1, number, digest, 0)
        if items is None:
            error = f"the group '{key[:100]}' is larger than {ROW_BYTES >> 20} MiB"
            self._tell(RowUnreadable(number, error))
        else:
            self._tell(GroupRead(number, key, items, resumed.results))

    def _digest(self, value: object) -> bytes:
        return blake2b(self._plan_digest + _encode(value), digest_size=_DIGEST_BYTES).digest()

    def _has_ended(self, resumed: Resumed, digest: bytes) -> bool:
        self.ended_before += resumed.ended == digest
        return resumed.ended == digest

    def _open_row(self, stage: int, row: int, digest: bytes, size: int) -> None:
        self._wanted[stage] -= 1
        self._open[stage, row] = digest, size
        self._open_bytes += size


def _chunk(rows: Iterator[InputRow], most: int) -> list[InputRow]:
    chunk, size = [], 0
    for row in islice(rows, most):
        chunk.append(row)
        size += row.size_bytes
        if size > _CHUNK_BYTES:
            break
    return chunk

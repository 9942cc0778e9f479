"""Batches of tenants, and the results of their lines."""

import operator
import sqlite3
from collections.abc import Sequence
from typing import Any

import msgspec

from kairos.batches.asked_again import KeyReused, made_before
from kairos.batches.database import OPEN, BatchDatabase
from kairos.batches.file_store import insert, is_there
from kairos.batches.records import (
    ENDED,
    BatchCounts,
    BatchLimit,
    BatchRecord,
    FileRecord,
    NoSuchBatch,
    NoSuchFile,
    NotCancellable,
    State,
)
from kairos.settings import BatchSettings

_KEPT_ENDED = 1_000  # ended batches that a tenant keeps
# Fields that a request sets.
_ASKED = operator.attrgetter(
    "caller",
    "service_class",
    "endpoint",
    "input_file_id",
    "completion_window",
    "headers",
    "metadata",
    "output_kept_s",
)

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(BatchRecord).decode


class BatchStore:
    """Stored batches. Every method waits for the disk."""

    def __init__(self, database: BatchDatabase, limits: BatchSettings) -> None:
        self._database, self._limits = database, limits

    def add(self, record: BatchRecord, now_s: int) -> BatchRecord:
        """Store a batch; return it, or the one that an earlier request with the same key made.

        Raises:
            NoSuchFile, BatchLimit.
            KeyReused: the earlier request asked for something else.
        """
        tenant, input_id = record.caller.tenant, record.input_file_id
        with self._database.transaction() as db:
            before = made_before(db, "batches", tenant, record.asked_as)
            if before is not None:
                made = _decode(before)
                if _ASKED(made) != _ASKED(record):
                    raise KeyReused(made.id)
                return made
            if not is_there(db, tenant, input_id, now_s):
                raise NoSuchFile(input_id)
            (open_now,) = db.execute(
                f"SELECT count(*) FROM batches WHERE tenant = ? AND {OPEN}",  # noqa: S608
                (tenant,),
            ).fetchone()
            if open_now >= self._limits.max_open:
                raise BatchLimit(f"{open_now} batches have not ended: that is the most at once")
            db.execute(
                "INSERT INTO batches (id, tenant, state, input, record) VALUES (?, ?, ?, ?, ?)",
                (record.id, tenant, record.state, input_id, _encode(record)),
            )
            db.execute(
                "DELETE FROM batches WHERE tenant = ? AND ended IS NOT NULL AND seq <= (SELECT seq "
                "FROM batches WHERE tenant = ? AND ended IS NOT NULL ORDER BY seq DESC "
                "LIMIT 1 OFFSET ?)",
                (tenant, tenant, _KEPT_ENDED),
            )
        return record

    def find_batch(self, tenant: str, batch_id: str) -> tuple[BatchRecord, BatchCounts]:
        """Return a batch with its counts. Raises NoSuchBatch."""
        found = self._database.all(
            "SELECT record, completed, failed FROM batches WHERE id = ? AND tenant = ?",
            batch_id,
            tenant,
        )
        if not found:
            raise NoSuchBatch(batch_id)
        return _with_counts(found[0])

    def batches_of(
        self, tenant: str, after: str | None, most: int
    ) -> list[tuple[BatchRecord, BatchCounts]]:
        """Return the tenant's batches, the latest first.

        Raises NoSuchBatch: `after` does not exist.
        """
        page = self._database.page("batches", tenant, after, latest_first=True)
        if page is None:
            raise NoSuchBatch(str(after))
        where, parameters = page
        found = self._database.all(
            f"SELECT record, completed, failed FROM batches WHERE {where} "  # noqa: S608
            "ORDER BY seq DESC LIMIT ?",
            *(*parameters, most),
        )
        return [_with_counts(each) for each in found]

    def cancel(self, tenant: str, batch_id: str, now_s: int) -> None:
        """Cancel a batch. Raises NoSuchBatch, NotCancellable."""
        record, _ = self.find_batch(tenant, batch_id)
        was: tuple[State, ...] = ("validating", "in_progress")
        if record.state == "cancelling":
            return
        if self.change_batch(batch_id, was, state="cancelling", cancelling_s=now_s) is None:
            raise NotCancellable(batch_id, self.find_batch(tenant, batch_id)[0].state)

    def open(self) -> list[BatchRecord]:
        """Return the batches of all tenants that have not ended, the oldest first."""
        found = self._database.all(f"SELECT record FROM batches WHERE {OPEN} ORDER BY seq")  # noqa: S608
        return [_decode(each) for (each,) in found]

    def change_batch(
        self,
        batch_id: str,
        was: Sequence[State],
        files: Sequence[FileRecord] = (),
        **fields: Any,
    ) -> BatchRecord | None:
        """Change a batch in one of the states `was`, and add its new files.

        Returns the changed record; None: the batch is in another state, and is not changed.
        """
        with self._database.transaction() as db:
            found = db.execute("SELECT record FROM batches WHERE id = ?", (batch_id,)).fetchone()
            before = None if found is None else _decode(found[0])
            if before is None or before.state not in was:
                return None
            record = msgspec.structs.replace(before, **fields)
            db.execute(
                "UPDATE batches SET state = ?, ended = ?, record = ? WHERE id = ?",
                (record.state, record.ended_s, _encode(record), batch_id),
            )
            for each in files:
                insert(db, each)
            if record.state in ENDED and (rest := self._uncalled_lines(db, record)):
                db.execute(
                    "UPDATE totals SET lines = lines + ? WHERE outcome = ?", (rest, record.state)
                )
        if record.state in ENDED:
            self._forget_results(batch_id)
        return record

    def _uncalled_lines(self, db: sqlite3.Connection, record: BatchRecord) -> int:
        """Return the number of lines that were not called."""
        row: tuple[int, int] = db.execute(
            "SELECT completed, failed FROM batches WHERE id = ?", (record.id,)
        ).fetchone()
        return max(0, record.total - row[0] - row[1])

    # Results

    def lines_done(self, batch_id: str) -> list[int]:
        found = self._database.all("SELECT line FROM results WHERE batch = ?", batch_id)
        return [line for (line,) in found]

    def results(self, batch_id: str, after: int, most: int) -> list[tuple[int, str, bytes]]:
        """Return line, outcome and value of the results after a line, in order."""
        return self._database.all(
            "SELECT line, outcome, value FROM results WHERE batch = ? AND line > ? "
            "ORDER BY line LIMIT ?",
            *(batch_id, after, most),
        )

    def _forget_results(self, batch_id: str) -> None:
        gone = 1
        while gone:
            with self._database.transaction() as db:
                gone = db.execute(
                    "DELETE FROM results WHERE batch = ? AND line IN "
                    "(SELECT line FROM results WHERE batch = ? LIMIT 1000)",
                    (batch_id, batch_id),
                ).rowcount

    # Figures

    def totals(self) -> dict[str, int]:
        """Return the number of ended lines by outcome, since the directory was created."""
        return dict(self._database.all("SELECT outcome, lines FROM totals"))

    def open_by_state(self) -> dict[str, int]:
        return dict(
            self._database.all(f"SELECT state, count(*) FROM batches WHERE {OPEN} GROUP BY state")  # noqa: S608
        )


def _with_counts(row: tuple[bytes, int, int]) -> tuple[BatchRecord, BatchCounts]:
    record, completed, failed = row
    return _decode(record), BatchCounts(completed, failed)

"""Directory of batches: a database of all files and batches, the files, and the driver's lock.

Several processes may use it at once: each change is a transaction that checks what it changes.
Results of lines are stored in the database until the output files are written. The first result of
a line is valid; triggers in the database count results.

A retry with the same `Idempotency-Key` gets the first request's result. The key is stored with the
file or batch, as a digest, for as long as that exists: so the keys of a tenant are bounded like its
files and batches (the header follows IETF's draft).
"""

import filecmp
import operator
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import msgspec

from kairos.batches.records import (
    ENDED,
    BatchCounts,
    BatchLimit,
    BatchRecord,
    FileInUse,
    FileRecord,
    KeyReused,
    NoSuchBatch,
    NoSuchFile,
    NotCancellable,
    State,
)
from kairos.core import KairosError, SetupError, Unavailable
from kairos.host import open_database, transaction, try_lock
from kairos.settings import BatchSettings

_VERSION = 1
_SCHEMA = """
    CREATE TABLE files (
        seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE NOT NULL, tenant TEXT NOT NULL,
        size INTEGER NOT NULL, expires INTEGER NOT NULL, record BLOB NOT NULL
    );
    CREATE INDEX files_of ON files (tenant);
    CREATE TABLE batches (
        seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE NOT NULL, tenant TEXT NOT NULL,
        state TEXT NOT NULL, input TEXT NOT NULL, ended INTEGER, record BLOB NOT NULL,
        completed INTEGER NOT NULL DEFAULT 0, failed INTEGER NOT NULL DEFAULT 0
    );
    CREATE INDEX batches_of ON batches (tenant);
    CREATE INDEX batches_in ON batches (state);
    CREATE TABLE results (
        batch TEXT, line INTEGER, outcome TEXT NOT NULL, value BLOB NOT NULL,
        PRIMARY KEY (batch, line)
    ) WITHOUT ROWID;
    CREATE TABLE totals (outcome TEXT PRIMARY KEY, lines INTEGER NOT NULL);
    INSERT INTO totals VALUES ('completed', 0), ('failed', 0), ('expired', 0), ('cancelled', 0);
    CREATE TRIGGER counted AFTER INSERT ON results BEGIN
        UPDATE batches SET completed = completed + (NEW.outcome = 'completed'),
            failed = failed + (NEW.outcome = 'failed') WHERE id = NEW.batch;
        UPDATE totals SET lines = lines + 1 WHERE outcome = NEW.outcome;
    END;
"""
KEEP_RESULT = "INSERT OR IGNORE INTO results VALUES (?, ?, ?, ?)"  # batch, line, outcome, value
_OPEN = (
    "state NOT IN ('completed', 'failed', 'expired', 'cancelled')"  # batches that have not ended
)
_THERE = "id = ? AND tenant = ? AND expires > ?"  # a file that has not expired
_OF_PURPOSE = "coalesce(json_extract(CAST(record AS TEXT), '$.purpose') = ?, 1)"

_DAY_S = 86_400
_LEFT_S = _DAY_S  # age of leftovers of broken uploads that are removed
_KEPT_ENDED = 1_000  # ended batches that a tenant keeps
# Fields that a request sets.
_ASKED = operator.attrgetter(
    *("caller", "service_class", "endpoint", "input_file_id", "completion_window"),
    *("headers", "metadata", "output_kept_s"),
)

_encode = msgspec.json.Encoder().encode
_file = msgspec.json.Decoder(FileRecord).decode
_batch = msgspec.json.Decoder(BatchRecord).decode


class KeptBatches:
    """Directory for its owner only. Several processes may use it; one of them drives."""

    def __init__(self, settings: BatchSettings) -> None:
        """Raises SetupError: the directory cannot hold batches."""
        root, self.limits = Path(settings.directory), settings
        files = root / "files"
        self.database_path, self._lock = root / "batches.sqlite", root / "lock"
        try:
            for path in (root, files):
                path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._database = BatchDatabase(self.database_path)
        except (OSError, sqlite3.Error) as error:
            raise SetupError(f"batches.directory {root} cannot hold batches: {error}") from None
        self.files = FileStore(self._database, files, settings)
        self.batches = BatchStore(self._database, settings)

    def close(self) -> None:
        self._database.close()

    def driving(self) -> AbstractContextManager[bool]:
        """Yield whether this process drives the batches during the block; only one process does."""
        return try_lock(self._lock)


class BatchDatabase:
    """Database, usable by any thread.

    Every method waits for the disk; call none in the event loop.
    """

    def __init__(self, path: Path) -> None:
        """Open the database. Raises OSError, sqlite3.Error, SetupError: it cannot be used."""
        self._connection = open_database(path, _SCHEMA, _VERSION, "name a new directory")
        self._turn = threading.Lock()

    def close(self) -> None:
        with self._turn:
            self._connection.close()

    def all(self, statement: str, *parameters: Any) -> list[Any]:
        with self._turn:
            return self._connection.execute(statement, parameters).fetchall()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Run the block as a transaction of the only writer."""
        with self._turn, transaction(self._connection):
            yield self._connection

    def page(
        self,
        table: str,
        tenant: str,
        after: str | None,
        missing: Callable[[str], KairosError],
        *,
        latest_first: bool,
    ) -> tuple[str, tuple[Any, ...]]:
        """Return a condition for the tenant's rows after one of them, and its parameters.

        Raises `missing` if the row does not exist.
        """
        if after is None:
            return "tenant = ?", (tenant,)
        found = self.all(f"SELECT seq FROM {table} WHERE id = ? AND tenant = ?", after, tenant)  # noqa: S608
        if not found:
            raise missing(after)
        return f"tenant = ? AND seq {'<' if latest_first else '>'} ?", (tenant, found[0][0])


def _made_before(
    db: sqlite3.Connection, table: str, tenant: str, digest: str | None
) -> bytes | None:
    """Return the record made by the latest earlier request with this key, if it exists."""
    if digest is None:
        return None
    found = db.execute(
        f"SELECT record FROM {table} WHERE tenant = ? "  # noqa: S608
        "AND json_extract(CAST(record AS TEXT), '$.asked_as') = ? "
        "ORDER BY seq DESC LIMIT 1",
        (tenant, digest),
    ).fetchone()
    return None if found is None else found[0]


class FileStore:
    """Stored files. Every method waits for the disk."""

    def __init__(self, database: BatchDatabase, root: Path, limits: BatchSettings) -> None:
        self._database, self.root, self._limits = database, root, limits

    def path_of(self, file_id: str) -> Path:
        return self.root / file_id

    def room(self, tenant: str, asked_as: str | None = None) -> int:
        """Return the maximum size of another file. Raises BatchLimit: the tenant may not add any.

        A file stored by an earlier request with the same key needs no room.
        """
        with self._database.transaction() as db:
            if _made_before(db, "files", tenant, asked_as) is not None:
                return self._limits.max_file_bytes
            return self._room(db, tenant)

    def add(self, record: FileRecord) -> FileRecord:
        """Store the record of a file whose content is at its path.

        Returns it, or the file that an earlier request with the same key made: then the new content
        is unused.

        Raises:
            BatchLimit.
            KeyReused: the earlier request had another file.
            Unavailable: that file is being deleted, or cannot be read.
        """
        with self._database.transaction() as db:
            found = _made_before(db, "files", record.tenant, record.asked_as)
            made = None if found is None else _file(found)
            if made is None or made.expires_s <= record.created_s:
                if record.size_bytes > self._room(db, record.tenant):
                    raise self._full()
                _insert(db, record)
                return record
        if made.filename != record.filename or not self._are_alike(made.id, record.id):
            raise KeyReused(made.id)
        return made

    def _are_alike(self, one: str, other: str) -> bool:
        try:
            return filecmp.cmp(self.path_of(one), self.path_of(other), shallow=False)
        except OSError as error:
            raise Unavailable(f"{one} cannot be read: {error.strerror}") from None

    def expires_s(self, now_s: int, kept_s: int | None) -> int:
        """Return when a new file expires. `kept_s`: after what time at most; None: the usual."""
        usual_s = self._limits.keep_days * _DAY_S
        return now_s + (usual_s if kept_s is None else min(usual_s, kept_s))

    def find_file(self, tenant: str, file_id: str, now_s: int) -> FileRecord:
        """Return a file's record. Raises NoSuchFile."""
        found = self._database.all(
            f"SELECT record FROM files WHERE {_THERE}",  # noqa: S608
            file_id,
            tenant,
            now_s,
        )
        if not found:
            raise NoSuchFile(file_id)
        return _file(found[0][0])

    def files_of(
        self,
        tenant: str,
        now_s: int,
        after: str | None,
        most: int,
        *,
        purpose: str | None,
        latest_first: bool,
    ) -> list[FileRecord]:
        """Return the tenant's files. Raises NoSuchFile: `after` does not exist.

        `purpose`: only of this purpose; None: of all.
        """
        where, parameters = self._database.page(
            "files", tenant, after, NoSuchFile, latest_first=latest_first
        )
        order = "DESC" if latest_first else "ASC"
        found = self._database.all(
            f"SELECT record FROM files WHERE {where} AND expires > ? AND {_OF_PURPOSE} "  # noqa: S608
            f"ORDER BY seq {order} LIMIT ?",
            *parameters,
            now_s,
            purpose,
            most,
        )
        return [_file(each) for (each,) in found]

    def delete(self, tenant: str, file_id: str, now_s: int) -> None:
        """Delete a file. Raises NoSuchFile, FileInUse."""
        self.find_file(tenant, file_id, now_s)
        with self._database.transaction() as db:
            using = db.execute(
                f"SELECT id FROM batches WHERE input = ? AND {_OPEN}",  # noqa: S608
                (file_id,),
            ).fetchone()
            if using is not None:
                raise FileInUse(file_id, using[0])
            db.execute("DELETE FROM files WHERE id = ?", (file_id,))
        self.path_of(file_id).unlink(missing_ok=True)

    def remove_old(self, now_s: int) -> None:
        """Remove expired files and batches, and leftovers of broken uploads."""
        oldest_s = now_s - self._limits.keep_days * _DAY_S
        of_open = f"FROM batches WHERE {_OPEN}"
        with self._database.transaction() as db:
            expired = db.execute(
                f"SELECT id FROM files WHERE expires <= ? AND id NOT IN (SELECT input {of_open})",  # noqa: S608
                (now_s,),
            ).fetchall()
            db.executemany("DELETE FROM files WHERE id = ?", expired)
            db.execute("DELETE FROM batches WHERE ended <= ?", (oldest_s,))
            db.execute(f"DELETE FROM results WHERE batch NOT IN (SELECT id {of_open})")  # noqa: S608
        known = {name for (name,) in self._database.all("SELECT id FROM files")}
        for path in self.root.iterdir():
            if path.name not in known and path.stat().st_mtime < now_s - _LEFT_S:
                path.unlink(missing_ok=True)
        for (name,) in expired:
            self.path_of(name).unlink(missing_ok=True)

    def _full(self) -> BatchLimit:
        limits = self._limits
        return BatchLimit(
            f"a tenant may have {limits.max_files} files of {limits.max_bytes} bytes in total: "
            "delete some"
        )

    def _room(self, db: sqlite3.Connection, tenant: str) -> int:
        count, size = db.execute(
            "SELECT count(*), coalesce(sum(size), 0) FROM files WHERE tenant = ?", (tenant,)
        ).fetchone()
        room: int = self._limits.max_bytes - size
        if count >= self._limits.max_files or room <= 0:
            raise self._full()
        return min(room, self._limits.max_file_bytes)


def _insert(db: sqlite3.Connection, record: FileRecord) -> None:
    db.execute(
        "INSERT INTO files (id, tenant, size, expires, record) VALUES (?, ?, ?, ?, ?)",
        (record.id, record.tenant, record.size_bytes, record.expires_s, _encode(record)),
    )


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
            before = _made_before(db, "batches", tenant, record.asked_as)
            if before is not None:
                made = _batch(before)
                if _ASKED(made) != _ASKED(record):
                    raise KeyReused(made.id)
                return made
            there = f"SELECT 1 FROM files WHERE {_THERE}"  # noqa: S608
            if db.execute(there, (input_id, tenant, now_s)).fetchone() is None:
                raise NoSuchFile(input_id)
            (open_now,) = db.execute(
                f"SELECT count(*) FROM batches WHERE tenant = ? AND {_OPEN}",  # noqa: S608
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
        where, parameters = self._database.page(
            "batches", tenant, after, NoSuchBatch, latest_first=True
        )
        found = self._database.all(
            f"SELECT record, completed, failed FROM batches WHERE {where} "  # noqa: S608
            "ORDER BY seq DESC LIMIT ?",
            *parameters,
            most,
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
        found = self._database.all(f"SELECT record FROM batches WHERE {_OPEN} ORDER BY seq")  # noqa: S608
        return [_batch(each) for (each,) in found]

    def change_batch(
        self, batch_id: str, was: Sequence[State], files: Sequence[FileRecord] = (), **fields: Any
    ) -> BatchRecord | None:
        """Change a batch in one of the states `was`, and add its new files.

        Returns the changed record; None: the batch is in another state, and is not changed.
        """
        with self._database.transaction() as db:
            found = db.execute("SELECT record FROM batches WHERE id = ?", (batch_id,)).fetchone()
            before = None if found is None else _batch(found[0])
            if before is None or before.state not in was:
                return None
            record = msgspec.structs.replace(before, **fields)
            db.execute(
                "UPDATE batches SET state = ?, ended = ?, record = ? WHERE id = ?",
                (record.state, record.ended_s, _encode(record), batch_id),
            )
            for each in files:
                _insert(db, each)
            if record.state in ENDED:  # lines that were not called
                db.execute(
                    "UPDATE totals SET lines = lines + (SELECT max(0, ? - completed - failed) "
                    "FROM batches WHERE id = ?) WHERE outcome = ?",
                    (record.total, batch_id, record.state),
                )
        if record.state in ENDED:
            self._forget_results(batch_id)
        return record

    def lines_done(self, batch_id: str) -> list[int]:
        found = self._database.all("SELECT line FROM results WHERE batch = ?", batch_id)
        return [line for (line,) in found]

    def results(self, batch_id: str, after: int, most: int) -> list[tuple[int, str, bytes]]:
        """Return line, outcome and value of the results after a line, in order."""
        return self._database.all(
            "SELECT line, outcome, value FROM results WHERE batch = ? AND line > ? "
            "ORDER BY line LIMIT ?",
            batch_id,
            after,
            most,
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

    def totals(self) -> dict[str, int]:
        """Return the number of ended lines by outcome, since the directory was created."""
        return dict(self._database.all("SELECT outcome, lines FROM totals"))

    def open_by_state(self) -> dict[str, int]:
        return dict(
            self._database.all(f"SELECT state, count(*) FROM batches WHERE {_OPEN} GROUP BY state")  # noqa: S608
        )


def _with_counts(row: tuple[bytes, int, int]) -> tuple[BatchRecord, BatchCounts]:
    record, completed, failed = row
    return _batch(record), BatchCounts(completed, failed)

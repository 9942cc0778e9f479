"""SQLite file with all files and batches, shared by the processes that serve them.

Several processes may use it at once: each change is a transaction that checks what it changes.
Results of lines are stored here until the output files are written. The first result of a line is
valid; triggers in the database count results.
"""

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kairos.host import open_database

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
# Condition for batches that have not ended.
OPEN = "state NOT IN ('completed', 'failed', 'expired', 'cancelled')"
KEEP_RESULT = "INSERT OR IGNORE INTO results VALUES (?, ?, ?, ?)"  # batch, line, outcome, value


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
        """Return the rows of a query."""
        with self._turn:
            return self._connection.execute(statement, parameters).fetchall()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Run the block as a transaction, with no other writer; an exception undoes it."""
        with self._turn:
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    def page(
        self, table: str, tenant: str, after: str | None, *, latest_first: bool
    ) -> tuple[str, tuple[Any, ...]] | None:
        """Return a condition for the tenant's rows after one of them; None: that does not exist."""
        if after is None:
            return "tenant = ?", (tenant,)
        found = self.all(
            f"SELECT seq FROM {table} WHERE id = ? AND tenant = ?",  # noqa: S608
            after,
            tenant,
        )
        if not found:
            return None
        return f"tenant = ? AND seq {'<' if latest_first else '>'} ?", (tenant, found[0][0])

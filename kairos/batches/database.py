"""The one SQLite file in which files and batches are known, by whichever process serves them.

Several processes may use it at once: each change is a transaction that looks at what it changes.
What the lines of a batch were answered is here until its output files are whole. Of each line the
first result counts; the database itself counts them.
"""

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kairos.host.sqlite_file import open_database

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
# Of batches: they have not ended.
OPEN = "state NOT IN ('completed', 'failed', 'expired', 'cancelled')"
KEEP_RESULT = "INSERT OR IGNORE INTO results VALUES (?, ?, ?, ?)"  # batch, line, outcome, value


class BatchDatabase:
    """May be used by any thread. Everything waits for the disk, so it is not for the loop's."""

    def __init__(self, path: Path) -> None:
        """Raises OSError, sqlite3.Error, SetupError: it cannot be used."""
        self._connection = open_database(path, _SCHEMA, _VERSION, "name a new directory")
        self._turn = threading.Lock()

    def close(self) -> None:
        with self._turn:
            self._connection.close()

    def all(self, statement: str, *parameters: Any) -> list[Any]:
        """The rows of a query."""
        with self._turn:
            return self._connection.execute(statement, parameters).fetchall()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Nobody else writes meanwhile; whatever is raised undoes it."""
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
        """A condition for what is the tenant's, and comes after one of that. None: that is not
        there."""
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

"""SQLite files with a versioned schema, which outlive the process, and periodic reads of them."""

import asyncio
import contextlib
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from kairos.core import SetupError

LOOK_S = 2.0  # between two reads for metrics
_BUSY_S = 10.0
_AGAIN_S = 0.005


def connect_sqlite(path: Path) -> sqlite3.Connection:
    """Open a database with a write-ahead log, whose files are private to this user.

    Any thread may use it, but only one at a time. Raises sqlite3.Error: The file is not a database,
    or cannot be opened.
    """
    path.touch(mode=0o600)
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    try:
        connection.execute(f"PRAGMA busy_timeout = {round(1000 * _BUSY_S)}")
        _begin_write_ahead_log(connection)
        connection.execute("PRAGMA synchronous = FULL")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _begin_write_ahead_log(connection: sqlite3.Connection) -> None:
    """Switch to a write-ahead log, while other processes may do the same.

    Of two that switch concurrently, SQLite refuses one without waiting for its busy timeout.
    """
    until = time.monotonic() + _BUSY_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                raise
            time.sleep(_AGAIN_S)
        else:
            return


def open_database(path: Path, schema: str, version: int, otherwise: str) -> sqlite3.Connection:
    """Open a database, and create its schema if it is new. Processes may do so concurrently.

    `otherwise` tells users what to do about a file of another version.

    Raises:
        sqlite3.Error: As in `connect`.
        SetupError: The file has another version.
    """
    connection = connect_sqlite(path)
    try:
        found = _version(connection)
        if not found:
            connection.execute("BEGIN IMMEDIATE")
            found = _version(connection)
            if not found:
                for each in _statements(schema):
                    connection.execute(each)
                connection.execute(f"PRAGMA user_version = {version}")
                found = version
            connection.execute("COMMIT")
    except sqlite3.Error:
        connection.close()
        raise
    if found != version:
        connection.close()
        raise SetupError(f"{path} was written by another version of Kairos: {otherwise}")
    return connection


def _version(connection: sqlite3.Connection) -> int:
    """Return the schema's version; 0: the database is empty."""
    found: int = connection.execute("PRAGMA user_version").fetchone()[0]
    return found


def _statements(schema: str) -> Iterator[str]:
    """Yield the statements of a schema; `executescript` would end the transaction."""
    statement = ""
    for line in schema.splitlines():
        statement += line + "\n"
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Run the block as a transaction, with no other writer; an exception undoes it."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # a full disk ends it by itself
            connection.execute("ROLLBACK")
        raise


async def look_again(look: Callable[[], None]) -> None:
    """Call `look` periodically in threads, until cancelled, so that no scrape of metrics waits.

    Disk errors are ignored here; the writing process logs them.
    """
    while True:
        with contextlib.suppress(sqlite3.Error):
            await asyncio.to_thread(look)
        await asyncio.sleep(LOOK_S)

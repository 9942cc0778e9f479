"""SQLite files, of one version of their schema, which outlive the process that made them."""

import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

from kairos.core.errors import SetupError

_BUSY_S = 10.0
_AGAIN_S = 0.005


def connect(path: Path) -> sqlite3.Connection:
    """A database with a write-ahead log, whose files nobody else may read. It can be used by any
    thread, but by one at a time.

    Raises:
        sqlite3.Error: it is no database, or cannot be opened.
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
    """Switch to a write-ahead log, also while other processes do.

    SQLite refuses one of two that switch at the same time without waiting for its busy timeout.
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
    """The same, with the schema, of which this is the version; several processes may begin it at
    once. `otherwise`: what to do about one of another version.

    Raises:
        sqlite3.Error: as above.
        SetupError: it is of another version.
    """
    connection = connect(path)
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
    """0: there is nothing in it yet."""
    found: int = connection.execute("PRAGMA user_version").fetchone()[0]
    return found


def _statements(schema: str) -> Iterator[str]:
    """`executescript` would end the transaction."""
    statement = ""
    for line in schema.splitlines():
        statement += line + "\n"
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""

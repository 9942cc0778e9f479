"""SQLite files, of one version of their schema, which outlive the process that made them."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

from kairos.errors import SetupError


def connect(path: Path) -> sqlite3.Connection:
    """A database with a write-ahead log, whose files nobody else may read. It can be used by any
    thread, but by one at a time.

    Raises:
        sqlite3.Error: it is no database, or cannot be opened.
    """
    path.touch(mode=0o600)
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA busy_timeout = 10000")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


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

"""What a run has found out, kept beyond the death of whoever drives it: one SQLite file per run.

Of each (row, node) one result counts: the first that was journalled, until the node's signature is
another, because the flow or the row was edited. Of each row it keeps how it ended, with a digest of
what it began with; a row that begins with something else has not ended. Values that rows share are
kept once per signature.
"""

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec

from kairos.errors import SetupError
from kairos.live.process.group_commit import GroupCommit
from kairos.live.process.sqlite_file import connect, open_database
from kairos.live.runs.rows import ROW_BYTES

RowOutcome = Literal["written", "failed", "dropped", "gathered"]

_VERSION = 1
_SCHEMA = """
    CREATE TABLE answers (signature TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
    CREATE TABLE results (
        stage INTEGER, row INTEGER, node TEXT, signature TEXT NOT NULL, value BLOB,
        PRIMARY KEY (stage, row, node)
    ) WITHOUT ROWID;
    CREATE TABLE ends (
        stage INTEGER, row INTEGER, outcome TEXT NOT NULL, digest BLOB NOT NULL,
        node TEXT, key TEXT, value BLOB NOT NULL,
        PRIMARY KEY (stage, row)
    ) WITHOUT ROWID;
    CREATE INDEX gathered ON ends (key, row) WHERE outcome = 'gathered';
"""
_ANSWER = "INSERT OR IGNORE INTO answers VALUES (?, ?)"
_RESULT = """
    INSERT INTO results VALUES (?, ?, ?, ?, ?)
    ON CONFLICT DO UPDATE SET signature = excluded.signature, value = excluded.value
    WHERE signature != excluded.signature
"""
_END = """
    INSERT INTO ends VALUES (?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT DO UPDATE SET outcome = excluded.outcome, digest = excluded.digest,
        node = excluded.node, key = excluded.key, value = excluded.value
    WHERE digest != excluded.digest OR outcome = 'failed'
"""
_KNOWN = """
    SELECT node, results.signature, coalesce(results.value, answers.value)
    FROM results LEFT JOIN answers USING (signature) WHERE stage = ? AND row = ?
"""

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class KeptResult(msgspec.Struct, frozen=True):
    signature: str
    value: Any


class FailedRow(msgspec.Struct, frozen=True):
    """What the table of errors says of one."""

    row: int
    node: str | None
    error: str


class RunJournal:
    """Writes in groups, from its own thread; reads in the caller's.

    A row that is ended here was handed over before, and all of its results too.
    """

    def __init__(self, path: Path, on_trouble: Callable[[str | None], None]) -> None:
        """Raises SetupError: the file is no journal, or one of another version."""
        try:
            self._reading = open_database(path, _SCHEMA, _VERSION, "begin a new run")
            self._commit = GroupCommit(connect(path), on_trouble)
        except sqlite3.Error as error:
            raise SetupError(f"{path} cannot be used as a run's journal: {error}") from error

    @property
    def backlog(self) -> int:
        """Changes that are not on the disk yet."""
        return self._commit.backlog

    def keep(
        self, stage: int, row: int, node: str, signature: str, value: Any, *, shared: bool
    ) -> None:
        """A node's result. `shared`: all that have the signature have the value."""
        encoded = _encode(value)
        if shared:
            self._commit.add(_ANSWER, signature, encoded)
        self._commit.add(_RESULT, stage, row, node, signature, None if shared else encoded)

    def end(
        self,
        stage: int,
        row: int,
        outcome: RowOutcome,
        digest: bytes,
        value: Any,
        *,
        node: str | None = None,
        key: str | None = None,
    ) -> None:
        """A row has ended. `value`: what it gives, or the error; `key`: into which group."""
        self._commit.add(_END, stage, row, outcome, digest, node, key, _encode(value))

    def known(self, stage: int, row: int) -> dict[str, KeptResult]:
        """The results of a row, by node."""
        found = self._reading.execute(_KNOWN, (stage, row))
        return {node: KeptResult(each, _decode(value)) for node, each, value in found}

    def has_ended(self, stage: int, row: int, digest: bytes) -> bool:
        """Whether a row that begins with this has ended otherwise than by failing."""
        found = self._reading.execute(
            "SELECT 1 FROM ends WHERE stage = ? AND row = ? AND digest = ? AND outcome != 'failed'",
            (stage, row, digest),
        )
        return found.fetchone() is not None

    def is_empty(self) -> bool:
        return self._reading.execute("SELECT 1 FROM results LIMIT 1").fetchone() is None and (
            self._reading.execute("SELECT 1 FROM ends LIMIT 1").fetchone() is None
        )

    def written(self, stage: int, rows: int) -> Iterator[tuple[int, dict[str, Any]]]:
        """Of the first so many rows those that gave something, in their order."""
        for row, value in self._ended(stage, rows, "written", "row, value"):
            yield row, _decode(value)

    def failed(self, stage: int, rows: int) -> Iterator[FailedRow]:
        """Of the first so many rows those that failed, in their order."""
        for row, node, value in self._ended(stage, rows, "failed", "row, node, value"):
            yield FailedRow(row, node, _decode(value))

    def outcomes(self, stage: int, rows: int) -> dict[str, int]:
        """How many of the first so many rows ended how."""
        found = self._reading.execute(
            "SELECT outcome, count(*) FROM ends WHERE stage = ? AND row < ? GROUP BY outcome",
            (stage, rows),
        )
        return dict(found.fetchall())

    def groups(self, rows: int) -> Iterator[tuple[str, list[Any] | None]]:
        """What the first so many rows of stage 0 were gathered to: keys in the order of their
        smallest row, items in that of rows; None in place of what is larger than a row may be."""
        keys = self._reading.execute(
            "SELECT key, sum(length(value)) FROM ends WHERE outcome = 'gathered' AND row < ?"
            " GROUP BY key ORDER BY min(row)",
            (rows,),
        )
        for key, size in keys:
            yield key, None if size > ROW_BYTES else self._items(key, rows)

    def _items(self, key: str, rows: int) -> list[Any]:
        found = self._reading.execute(
            "SELECT value FROM ends WHERE outcome = 'gathered' AND key = ? AND row < ?"
            " ORDER BY row",
            (key, rows),
        )
        return [_decode(value) for (value,) in found]

    def settle(self) -> None:
        """Return once all is on the disk; blocks, for as long as that is full."""
        self._commit.settle()

    def close(self, *, give_up: bool = False) -> None:
        """`give_up`: what a full disk does not take is dropped, and is done again on resuming."""
        self._commit.close(give_up=give_up)
        self._reading.close()

    def _ended(self, stage: int, rows: int, outcome: str, columns: str) -> sqlite3.Cursor:
        return self._reading.execute(
            f"SELECT {columns} FROM ends WHERE stage = ? AND row < ? AND outcome = ? ORDER BY row",  # noqa: S608
            (stage, rows, outcome),
        )

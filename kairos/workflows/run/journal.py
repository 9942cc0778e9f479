"""Results of a run in one SQLite file, which outlives the process.

For each (row, node) the first result written is valid, until the node's signature changes because
the flow or the row was edited. For each row it has the outcome, with a digest of the input; a row
whose input has changed counts as not ended. Values shared by rows are stored once per signature.
Large values that only their own row needs (vectors) are deleted when the row ends.
"""

import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from kairos.core import SetupError
from kairos.host import GroupCommit, connect_sqlite, open_database
from kairos.workflows.execute.facts import Known
from kairos.workflows.run.result_cache import ResultCache
from kairos.workflows.run.result_store import (
    Claims,
    FailedRow,
    Found,
    NoClaims,
    NumberedGroup,
    Resumed,
    RowOutcome,
)
from kairos.workflows.run.rows import ROW_BYTES

_VERSION = 3
_SCHEMA = """
    CREATE TABLE answers (signature TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
    CREATE TABLE results (
        stage INTEGER, row INTEGER, node TEXT, signature TEXT NOT NULL, value BLOB,
        until_end INTEGER NOT NULL, PRIMARY KEY (stage, row, node)
    ) WITHOUT ROWID;
    CREATE INDEX passing ON results (stage, row) WHERE until_end;
    CREATE TABLE ends (
        stage INTEGER, row INTEGER, outcome TEXT NOT NULL, digest BLOB NOT NULL,
        node TEXT, key TEXT, value BLOB NOT NULL,
        PRIMARY KEY (stage, row)
    ) WITHOUT ROWID;
    CREATE INDEX gathered ON ends (key, row) WHERE outcome = 'gathered';
"""
_OWNERS = "CREATE TABLE IF NOT EXISTS owners (part INTEGER PRIMARY KEY, epoch INTEGER NOT NULL)"
_OWN = """
    INSERT INTO owners VALUES (?, 1) ON CONFLICT DO UPDATE SET epoch = epoch + 1 RETURNING epoch
"""
_OWNS = "SELECT 1 FROM owners WHERE part = ? AND epoch = ?"
_KNOWN = """
    SELECT node, results.signature, coalesce(results.value, answers.value)
    FROM results LEFT JOIN answers USING (signature) WHERE stage = ? AND row = ?
        AND (results.value IS NOT NULL OR answers.value IS NOT NULL)
"""

_ANSWER = "INSERT OR IGNORE INTO answers VALUES (?, ?)"
_RESULT = """
    INSERT INTO results VALUES (?, ?, ?, ?, ?, ?)
    ON CONFLICT DO UPDATE SET signature = excluded.signature, value = excluded.value,
        until_end = excluded.until_end
    WHERE signature != excluded.signature
"""
_END = """
    INSERT INTO ends VALUES (?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT DO UPDATE SET outcome = excluded.outcome, digest = excluded.digest,
        node = excluded.node, key = excluded.key, value = excluded.value
    WHERE digest != excluded.digest OR outcome = 'failed'
"""
_FORGET = "DELETE FROM results WHERE stage = ? AND row = ? AND until_end"

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class RunJournal:
    """`ResultStore` of one host: the run's own file, and the `cache` shared by its runs.

    A row may be ended only after it was read, and after all its results were added.
    """

    def __init__(
        self,
        path: Path,
        on_trouble: Callable[[str | None], None],
        *,
        cache: ResultCache | None = None,
        partition: int | None = None,
        claims: Claims | None = None,
    ) -> None:
        """Open the file; create it if missing.

        Args:
            path: of the file.
            on_trouble: called in a thread, with a message when the disk is full, and with None when
                it accepts writes again.
            cache: results of other runs; None: they are not used. It is closed with this.
            partition: part of a run that this process owns from now on; None: the whole run.
            claims: asked for results that the cache lacks; None: no other process makes calls.

        Raises:
            SetupError: the file is not a journal, or has another version.
        """
        self._cache = cache
        self._claims = claims or NoClaims()
        self.epoch, guard = 0, None
        try:
            self._reading = open_database(path, _SCHEMA, _VERSION, "begin a new run")
            if partition is not None:
                self._reading.execute(_OWNERS)
                self.epoch = self._reading.execute(_OWN, (partition,)).fetchone()[0]
                guard = _OWNS, (partition, self.epoch)
            self._commit = GroupCommit(connect_sqlite(path), on_trouble, guard=guard)
            found = self._reading.execute("SELECT 1 FROM results WHERE until_end LIMIT 1")
            self._has_passing = found.fetchone() is not None
        except sqlite3.Error as error:
            raise SetupError(f"{path} cannot be used as a run's journal: {error}") from error

    @property
    def backlog(self) -> int:
        """Return the number of changes not yet on disk."""
        return self._commit.backlog

    @property
    def backlog_bytes(self) -> int:
        """Return the bytes of changes not yet on disk."""
        return self._commit.backlog_bytes

    def find(self, call: int, signature: str, found: Found) -> None:
        known = None if self._cache is None else self._cache.find(signature)
        if known is None:
            self._claims.ask(call, signature, found)
        else:
            found(known)

    def store(self, signature: str, value: Any) -> None:
        if self._cache is not None:
            self._cache.store(signature, value)
        if not isinstance(self._claims, NoClaims):
            self._claims.record_answer(signature, _encode(value))

    def finish_call(self, call: int) -> None:
        self._claims.finish_call(call)

    def keep_result(
        self,
        stage: int,
        row: int,
        node: str,
        signature: str,
        value: Any,
        *,
        shared: bool,
        until_end: bool = False,
    ) -> None:
        encoded: bytes | None = _encode(value)
        if shared and not until_end:
            self._commit.add(_ANSWER, signature, encoded)
            encoded = None
        self._commit.add(_RESULT, stage, row, node, signature, encoded, until_end)
        self._has_passing |= until_end

    def end_row(
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
        self._commit.add(_END, stage, row, outcome, digest, node, key, _encode(value))
        if self._has_passing and outcome != "failed":
            self._commit.add(_FORGET, stage, row)

    def keep_record(self, record: bytes) -> None:
        """Do nothing: the record is in the same directory."""

    def resumed(self, stage: int, rows: Sequence[int]) -> Mapping[int, Resumed]:
        return {row: self._resumed(stage, row) for row in rows}

    def _resumed(self, stage: int, row: int) -> Resumed:
        ended = self._reading.execute(
            "SELECT digest FROM ends WHERE stage = ? AND row = ? AND outcome != 'failed'",
            (stage, row),
        ).fetchone()
        known = self._reading.execute(_KNOWN, (stage, row))
        results = {node: Known(each, _decode(value)) for node, each, value in known}
        return Resumed(None if ended is None else ended[0], results)

    def is_empty(self) -> bool:
        any_row = "SELECT EXISTS (SELECT 1 FROM results) OR EXISTS (SELECT 1 FROM ends)"
        return not self._reading.execute(any_row).fetchone()[0]

    def written(self, stage: int, rows: int) -> Iterator[tuple[int, dict[str, Any]]]:
        for row, _, value in self._ended(stage, rows, "written"):
            yield row, _decode(value)

    def failed(self, stage: int, rows: int) -> Iterator[FailedRow]:
        for row, node, value in self._ended(stage, rows, "failed"):
            yield FailedRow(row, node, _decode(value))

    def outcomes(self, stage: int, rows: int) -> dict[str, int]:
        found = self._reading.execute(
            "SELECT outcome, count(*) FROM ends WHERE stage = ? AND row < ? GROUP BY outcome",
            (stage, rows),
        )
        return dict(found.fetchall())

    def groups(self, rows: int, *, part: int = 0, parts: int = 1) -> Iterator[NumberedGroup]:
        keys = self._reading.execute(
            "SELECT key, sum(length(value)) FROM ends WHERE outcome = 'gathered' AND row < ?"
            " GROUP BY key ORDER BY min(row)",
            (rows,),
        )
        for number, (key, size) in islice(enumerate(keys), part, None, parts):
            yield number, key, None if size > ROW_BYTES else self._items(key, rows)

    def _items(self, key: str, rows: int) -> list[Any]:
        found = self._reading.execute(
            "SELECT value FROM ends WHERE outcome = 'gathered' AND key = ? AND row < ?"
            " ORDER BY row",
            (key, rows),
        )
        return [_decode(value) for (value,) in found]

    def settle(self) -> None:
        """Wait until all changes are on disk; blocks while the disk is full."""
        self._commit.settle()

    def close(self, *, give_up: bool = False) -> None:
        """Close the files.

        `give_up`: drop changes that a full disk refuses; a resumed run repeats them.
        """
        self._commit.close(give_up=give_up)
        self._reading.close()
        if self._cache is not None:
            self._cache.close()

    def _ended(self, stage: int, rows: int, outcome: RowOutcome) -> sqlite3.Cursor:
        return self._reading.execute(
            "SELECT row, node, value FROM ends WHERE stage = ? AND row < ? AND outcome = ?"
            " ORDER BY row",
            (stage, rows, outcome),
        )

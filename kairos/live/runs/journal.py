"""The results of a run in one SQLite file, which outlives the process that drives it.

Of each (row, node) one result counts: the first that was journalled, until the node's signature is
another, because the flow or the row was edited. Of each row it keeps how it ended, with a digest of
what it began with; a row that begins with something else has not ended. Values that rows share are
kept once per signature. Large ones that nothing needs beyond their row (vectors) are kept until it
has ended. Where the run has a log elsewhere, what comes back from there is written, and nothing
else: then the file is what one host has of that.
"""

import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from kairos.errors import SetupError
from kairos.live.process.group_commit import GroupCommit
from kairos.live.process.sqlite_file import connect, open_database
from kairos.live.runs.journal_changes import (
    NO_VALUE,
    AnswerKept,
    JournalChange,
    NodeKept,
    PassingForgotten,
    RowEnded,
    RowOutcome,
)
from kairos.live.runs.result_cache import ResultCache
from kairos.live.runs.result_store import (
    Claims,
    FailedRow,
    Found,
    KeptResult,
    NoClaims,
    Resumed,
)
from kairos.live.runs.rows import ROW_BYTES
from kairos.live.runs.run_topic import RunTopic
from kairos.live.runs.run_topic_reader import LogPlace

# Changes from the log that the disk may be behind, and bytes, until no more is read.
_AHEAD, _AHEAD_BYTES = 10_000, 64 << 20
_AHEAD_S = 0.01
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
    CREATE TABLE places (part INTEGER PRIMARY KEY, next INTEGER NOT NULL, holder TEXT NOT NULL);
"""
_PLACE = """
    INSERT INTO places VALUES (?, ?, ?)
    ON CONFLICT DO UPDATE SET next = excluded.next, holder = excluded.holder
"""
_OWNERS = "CREATE TABLE IF NOT EXISTS owners (part INTEGER PRIMARY KEY, epoch INTEGER NOT NULL)"
_OWN = """
    INSERT INTO owners VALUES (?, 1) ON CONFLICT DO UPDATE SET epoch = epoch + 1 RETURNING epoch
"""
_OWNS = "SELECT 1 FROM owners WHERE part = ? AND epoch = ?"
# Of a log whose beginning is gone by its age, an answer may be missing: then nothing is known.
_KNOWN = """
    SELECT node, results.signature, coalesce(results.value, answers.value)
    FROM results LEFT JOIN answers USING (signature) WHERE stage = ? AND row = ?
        AND (results.value IS NOT NULL OR answers.value IS NOT NULL)
"""

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class RunJournal:
    """The `ResultStore` of one host: the run's own file, and the `cache` that its runs share.

    A row that is ended here was handed over before, and all of its results too.
    """

    def __init__(
        self,
        path: Path,
        on_trouble: Callable[[str | None], None],
        topic: RunTopic | None = None,
        *,
        cache: ResultCache | None = None,
        partition: int | None = None,
        claims: Claims | None = None,
    ) -> None:
        """Open the file, and make it if it is missing.

        Args:
            path: of the file.
            on_trouble: called in a thread with a line when the disk takes nothing, and with None
                when it does again.
            topic: the run's log, which this claims; it blocks until all that stands there is here.
            cache: results of other runs; None: these do not count. It is closed with this.
            partition: the part of a run that this owns from now on; None: all of it.
            claims: asked about what the cache does not have; None: nobody else makes calls.

        Raises:
            SetupError: the file is no journal, or one of another version; or the log cannot be
                used.
        """
        self._topic, self._is_closing, self._cache = topic, False, cache
        self._claims = claims or NoClaims()
        self.epoch, guard = 0, None
        try:
            self._reading = open_database(path, _SCHEMA, _VERSION, "begin a new run")
            if partition is not None:
                self.epoch = self._own(partition)
                guard = _OWNS, (partition, self.epoch)
            self._commit = GroupCommit(connect(path), on_trouble, guard=guard)
            if topic is not None:
                self._begin(topic)
            found = self._reading.execute("SELECT 1 FROM results WHERE until_end LIMIT 1")
            self._has_passing = found.fetchone() is not None
        except sqlite3.Error as error:
            raise SetupError(f"{path} cannot be used as a run's journal: {error}") from error

    @property
    def backlog(self) -> int:
        """Changes that are not on the disk yet."""
        return self._commit.backlog + (0 if self._topic is None else self._topic.backlog)

    @property
    def backlog_bytes(self) -> int:
        """Return the size of these."""
        in_log = 0 if self._topic is None else self._topic.backlog_bytes
        return self._commit.backlog_bytes + in_log

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
            self._claims.answered(signature, _encode(value))

    def ended(self, call: int) -> None:
        self._claims.ended(call)

    def keep(
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
        encoded = msgspec.Raw(_encode(value))
        inline = encoded
        if shared and not until_end:
            self._change(AnswerKept(signature, encoded))
            inline = NO_VALUE
        self._change(NodeKept(stage, row, node, signature, inline, until_end))
        self._has_passing |= until_end

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
        encoded = msgspec.Raw(_encode(value))
        self._change(RowEnded(stage, row, outcome, digest, encoded, node, key))
        if self._has_passing and outcome != "failed":
            self._change(PassingForgotten(stage, row))

    def tell(self, record: bytes) -> None:
        if self._topic is not None:
            self._topic.tell(record)

    def _known(self, stage: int, row: int) -> dict[str, KeptResult]:
        found = self._reading.execute(_KNOWN, (stage, row))
        return {node: KeptResult(each, _decode(value)) for node, each, value in found}

    def resumed(self, stage: int, rows: Sequence[int]) -> Mapping[int, Resumed]:
        return {row: Resumed(self._ended_with(stage, row), self._known(stage, row)) for row in rows}

    def _ended_with(self, stage: int, row: int) -> bytes | None:
        found = self._reading.execute(
            "SELECT digest FROM ends WHERE stage = ? AND row = ? AND outcome != 'failed'",
            (stage, row),
        ).fetchone()
        return None if found is None else found[0]

    def is_empty(self) -> bool:
        return self._reading.execute("SELECT 1 FROM results LIMIT 1").fetchone() is None and (
            self._reading.execute("SELECT 1 FROM ends LIMIT 1").fetchone() is None
        )

    def written(self, stage: int, rows: int) -> Iterator[tuple[int, dict[str, Any]]]:
        for row, value in self._ended(stage, rows, "written", "row, value"):
            yield row, _decode(value)

    def failed(self, stage: int, rows: int) -> Iterator[FailedRow]:
        for row, node, value in self._ended(stage, rows, "failed", "row, node, value"):
            yield FailedRow(row, node, _decode(value))

    def outcomes(self, stage: int, rows: int) -> dict[str, int]:
        found = self._reading.execute(
            "SELECT outcome, count(*) FROM ends WHERE stage = ? AND row < ? GROUP BY outcome",
            (stage, rows),
        )
        return dict(found.fetchall())

    def groups(self, rows: int) -> Iterator[tuple[str, list[Any] | None]]:
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
        """Return once all is on the disk, and before that in the log, where there is one; blocks,
        for as long as these take nothing."""
        if self._topic is not None:
            self._topic.settle()
        self._commit.settle()

    def close(self, *, give_up: bool = False) -> None:
        """`give_up`: what a full disk does not take is dropped, and is done again on resuming."""
        self._is_closing = give_up
        if self._topic is not None:
            self._topic.close()
        self._commit.close(give_up=give_up)
        self._reading.close()
        if self._cache is not None:
            self._cache.close()

    def _own(self, partition: int) -> int:
        """Take a partition from its owner, and return its new epoch."""
        self._reading.execute(_OWNERS)
        return self._reading.execute(_OWN, (partition,)).fetchone()[0]  # type: ignore[no-any-return]

    def _begin(self, topic: RunTopic) -> None:
        try:
            topic.begin(self._place, self._replay, self._arrived)
            self._commit.settle()
        except BaseException:
            self.close(give_up=True)
            raise

    def _change(self, change: JournalChange) -> None:
        if self._topic is None:
            self._apply(change)
        else:
            self._topic.send(change)

    def _apply(self, change: JournalChange) -> None:
        statement, parameters = change.statement
        self._commit.add(statement, *parameters)

    def _replay(self, change: JournalChange) -> None:
        """In the thread that reads the log, which is no further ahead of the disk than this.

        Raises:
            SetupError: it is closed. No place behind what is left out may get to the disk.
        """
        commit = self._commit
        while commit.backlog_bytes > _AHEAD_BYTES or commit.backlog > _AHEAD:
            if self._is_closing:
                raise SetupError("the run was left before the disk had all of it")
            time.sleep(_AHEAD_S)
        self._apply(change)

    def _place(self, partition: int) -> LogPlace:
        found = self._reading.execute(
            "SELECT part, next, holder FROM places WHERE part = ?", (partition,)
        ).fetchone()
        return LogPlace(partition) if found is None else LogPlace(*found)

    def _arrived(self, place: LogPlace) -> None:
        self._commit.add(_PLACE, *place)

    def _ended(self, stage: int, rows: int, outcome: str, columns: str) -> sqlite3.Cursor:
        return self._reading.execute(
            f"SELECT {columns} FROM ends WHERE stage = ? AND row < ? AND outcome = ? ORDER BY row",  # noqa: S608
            (stage, rows, outcome),
        )

"""Results of a run in PostgreSQL, shared by the hosts of its partitions.

A thread writes changes in groups, each in one transaction; another looks up results of earlier
runs, in groups, too. While the database is away a group is retried every second, and writers wait
as for a full disk. A group whose commit was not confirmed is written again: every statement may be
repeated.

Values above 256 KiB are rows of a table of their own, by their hash: equal ones are stored once,
and tables of results stay small. They are in the same database, and not in files, so that a
transaction stores a result whole, and access, backups and cleanup concern a single place.

The first writer wins. Each transaction checks who may write: a partition belongs to the latest
process that has opened it. Answers not used for 30 days are deleted, and so are runs.
"""

import importlib
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import sha256
from itertools import groupby, islice
from typing import Any, TypeVar

import msgspec

from kairos.core import SetupError
from kairos.host import Groups
from kairos.workflows.execute.facts import Known
from kairos.workflows.run.result_store import (
    CachedValue,
    Claims,
    FailedRow,
    Found,
    NoClaims,
    NumberedGroup,
    Resumed,
    RowOutcome,
)
from kairos.workflows.run.rows import ROW_BYTES

LARGE_BYTES = 256 << 10
GROUP_S, GROUP_CHANGES = 0.02, 256
RETRY_S = 1.0
_FINDS = 64  # lookups in one query
_BUFFERED = 10_000  # rows of a large table, fetched at once
_CONNECT_S, _STATEMENT_MS = 10, 60_000
_LARGE = b"\0"  # prefix of a reference to a large value; no JSON begins with it
_WHOLE = -1  # a run without partitions

_TABLES = (
    """CREATE TABLE IF NOT EXISTS kairos_runs (
    run text PRIMARY KEY, opened timestamptz NOT NULL DEFAULT now(), record bytea)""",
    """CREATE TABLE IF NOT EXISTS kairos_owners (
    run text REFERENCES kairos_runs ON DELETE CASCADE, part integer, epoch bigint NOT NULL,
    PRIMARY KEY (run, part))""",
    """CREATE TABLE IF NOT EXISTS kairos_answers (
    scope text, signature text, value bytea NOT NULL, used timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (scope, signature))""",
    """CREATE TABLE IF NOT EXISTS kairos_results (
    run text REFERENCES kairos_runs ON DELETE CASCADE, stage integer, row bigint, node text,
    signature text NOT NULL, value bytea, until_end boolean NOT NULL,
    PRIMARY KEY (run, stage, row, node))""",
    """CREATE TABLE IF NOT EXISTS kairos_shared (
    run text REFERENCES kairos_runs ON DELETE CASCADE, signature text, value bytea NOT NULL,
    PRIMARY KEY (run, signature))""",
    """CREATE TABLE IF NOT EXISTS kairos_ends (
    run text REFERENCES kairos_runs ON DELETE CASCADE, stage integer, row bigint,
    outcome text NOT NULL, digest bytea NOT NULL, node text, key bytea, value bytea NOT NULL,
    size bigint NOT NULL, PRIMARY KEY (run, stage, row))""",
    """CREATE INDEX IF NOT EXISTS kairos_gathered ON kairos_ends (run, key, row)
    WHERE outcome = 'gathered'""",
    """CREATE TABLE IF NOT EXISTS kairos_values (
    hash bytea PRIMARY KEY, value bytea NOT NULL, used timestamptz NOT NULL DEFAULT now())""",
)
_LOCK = "SELECT pg_advisory_xact_lock(hashtext('kairos_results'))"
_OLD = (
    "DELETE FROM kairos_runs WHERE opened < now() - interval '30 days'",
    "DELETE FROM kairos_answers WHERE used < now() - interval '30 days'",
    # A reference is never newer than the last use of its value: each opening and use renews it.
    "DELETE FROM kairos_values WHERE used < now() - interval '90 days'",
)
_OPEN = (
    """INSERT INTO kairos_runs (run) VALUES (%s) ON CONFLICT (run) DO UPDATE SET opened = now()"""
)
_OWN = """INSERT INTO kairos_owners AS o VALUES (%s, %s, 1)
    ON CONFLICT (run, part) DO UPDATE SET epoch = o.epoch + 1 RETURNING epoch"""
_OWNS = "SELECT 1 FROM kairos_owners WHERE run = %s AND part = %s AND epoch = %s FOR SHARE"

_VALUE = """INSERT INTO kairos_values VALUES (%s, %s)
    ON CONFLICT (hash) DO UPDATE SET used = now()"""
_ANSWER = "INSERT INTO kairos_answers VALUES (%s, %s, %s) ON CONFLICT DO NOTHING"
_SHARED = "INSERT INTO kairos_shared VALUES (%s, %s, %s) ON CONFLICT DO NOTHING"
_RESULT = """INSERT INTO kairos_results AS r VALUES (%s, %s, %s, %s, %s, %s, %s)
    ON CONFLICT (run, stage, row, node) DO UPDATE SET signature = excluded.signature,
    value = excluded.value, until_end = excluded.until_end
    WHERE r.signature != excluded.signature"""
_END = """INSERT INTO kairos_ends AS e VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s)
    ON CONFLICT (run, stage, row) DO UPDATE SET outcome = excluded.outcome,
    digest = excluded.digest, node = excluded.node, key = excluded.key, value = excluded.value,
    size = excluded.size WHERE e.digest != excluded.digest OR e.outcome = 'failed'"""
_FORGET = "DELETE FROM kairos_results WHERE run = %s AND stage = %s AND row = %s AND until_end"
_RECORD = "UPDATE kairos_runs SET record = %s WHERE run = %s"
# Order of statements in a transaction. Rows of shared tables are sorted, to avoid deadlocks.
_ORDER = (_VALUE, _ANSWER, _SHARED, _RESULT, _END, _FORGET, _RECORD)

_FIND = """SELECT signature, value, used < now() - interval '1 day'
    FROM kairos_answers WHERE scope = %s AND signature = ANY(%s)"""
_USED = "UPDATE kairos_answers SET used = now() WHERE scope = %s AND signature = ANY(%s)"
_KNOWN = """SELECT r.row, r.node, r.signature, coalesce(r.value, s.value)
    FROM kairos_results r LEFT JOIN kairos_shared s ON s.run = r.run AND s.signature = r.signature
    WHERE r.run = %s AND r.stage = %s AND r.row = ANY(%s)
    AND (r.value IS NOT NULL OR s.value IS NOT NULL)"""
_ENDED = """SELECT row, digest FROM kairos_ends
    WHERE run = %s AND stage = %s AND row = ANY(%s) AND outcome != 'failed'"""
_ANY = """SELECT EXISTS (SELECT 1 FROM kairos_results WHERE run = %(run)s)
    OR EXISTS (SELECT 1 FROM kairos_ends WHERE run = %(run)s)"""
_PASSING = "SELECT EXISTS (SELECT 1 FROM kairos_results WHERE run = %s AND until_end)"
_ENDS = """SELECT row, node, value FROM kairos_ends
    WHERE run = %s AND stage = %s AND row < %s AND outcome = %s ORDER BY row"""
_OUTCOMES = """SELECT outcome, count(*) FROM kairos_ends
    WHERE run = %s AND stage = %s AND row < %s GROUP BY outcome"""
_GROUPS = """SELECT key, sum(size) FROM kairos_ends WHERE run = %s AND outcome = 'gathered'
    AND row < %s GROUP BY key ORDER BY min(row)"""
_ITEMS = """SELECT value FROM kairos_ends WHERE run = %s AND outcome = 'gathered' AND key = %s
    AND row < %s ORDER BY row"""

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode
_T = TypeVar("_T")
_Change = tuple[str, tuple[Any, ...]]
_Find = tuple[str, Found]


class PostgresResults:
    """`ResultStore` of one partition of a run, or of a whole run."""

    def __init__(
        self,
        url: str,
        run_id: str,
        on_trouble: Callable[[str | None], None],
        *,
        scope: str | None = "default",
        partition: int | None = None,
        claims: Claims | None = None,
        deliver: Callable[..., object] = lambda call, *given: call(*given),
    ) -> None:
        """Take over the partition. Blocks.

        Args:
            url: of the database; without a password (PGPASSWORD, ~/.pgpass).
            run_id: names the run, on all hosts.
            on_trouble: called in a thread, with a message when the database is away, and with None
                when it is back.
            scope: tenant whose results of earlier runs are used; None: none are used.
            partition: None: the whole run.
            claims: asked for results that the database lacks; None: no other process makes calls.
            deliver: calls its first argument with the others, in the event loop's thread.

        Raises:
            SetupError: psycopg is not installed, or the database cannot be used.
        """
        self._psycopg = _psycopg()
        self._url, self._run, self._scope = url, run_id, scope
        self._on_trouble, self._deliver = on_trouble, deliver
        self._part = _WHOLE if partition is None else partition
        self._is_leaving, self._claims = False, claims or NoClaims()
        self._broken: BaseException | None = None
        self._added = self._done = self._added_bytes = self._done_bytes = 0
        self._changes: Groups[_Change] = Groups(GROUP_S, GROUP_CHANGES)
        self._finds: queue.SimpleQueue[_Find | None] = queue.SimpleQueue()
        self._reading = _Connection(self._connected)
        try:
            self.epoch = self._reading.run(self._begin)
            self._has_passing: bool = self._read(_PASSING, (run_id,))[0][0]
        except self._psycopg.Error as error:
            raise SetupError(f"results cannot be kept in {url}: {first_line(error)}") from error
        self._threads = [
            threading.Thread(target=each, name="run-results", daemon=True)
            for each in (self._write, self._look)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def backlog(self) -> int:
        return self._added - self._done

    @property
    def backlog_bytes(self) -> int:
        return self._added_bytes - self._done_bytes

    def find(self, call: int, signature: str, found: Found) -> None:
        def looked(known: CachedValue | None) -> None:
            if known is None:
                self._claims.ask(call, signature, found)
            else:
                found(known)

        if self._scope is None:
            looked(None)
        else:
            self._finds.put((signature, looked))

    def store(self, signature: str, value: Any) -> None:
        encoded = _encode(value)
        if self._scope is not None:
            self._add(_ANSWER, self._scope, signature, self._kept(encoded))
        self._claims.record_answer(signature, encoded)

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
        kept: bytes | None = self._kept(_encode(value))
        if shared and not until_end:
            self._add(_SHARED, self._run, signature, kept)
            kept = None
        self._add(_RESULT, self._run, stage, row, node, signature, kept, until_end)
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
        encoded = _encode(value)
        named = None if key is None else key.encode(errors="surrogatepass")
        kept = self._kept(encoded)
        self._add(_END, self._run, stage, row, outcome, digest, node, named, kept, len(encoded))
        if self._has_passing and outcome != "failed":
            self._add(_FORGET, self._run, stage, row)

    def keep_record(self, record: bytes) -> None:
        self._add(_RECORD, record, self._run)

    def is_empty(self) -> bool:
        return not self._read(_ANY, {"run": self._run})[0][0]

    def resumed(self, stage: int, rows: Sequence[int]) -> Mapping[int, Resumed]:
        asked = (self._run, stage, list(rows))
        ended = dict(self._read(_ENDED, asked))
        results: dict[int, dict[str, Known]] = {row: {} for row in rows}
        for row, node, signature, value in self._read(_KNOWN, asked):
            results[row][node] = Known(signature, _decode(self._whole(value)))
        return {row: Resumed(ended.get(row), results[row]) for row in rows}

    def written(self, stage: int, rows: int) -> Iterator[tuple[int, dict[str, Any]]]:
        for row, _, value in self._stream(_ENDS, (self._run, stage, rows, "written")):
            yield row, _decode(self._whole(value))

    def failed(self, stage: int, rows: int) -> Iterator[FailedRow]:
        for row, node, value in self._stream(_ENDS, (self._run, stage, rows, "failed")):
            yield FailedRow(row, node, _decode(self._whole(value)))

    def outcomes(self, stage: int, rows: int) -> dict[str, int]:
        return dict(self._read(_OUTCOMES, (self._run, stage, rows)))

    def groups(self, rows: int, *, part: int = 0, parts: int = 1) -> Iterator[NumberedGroup]:
        found = enumerate(self._stream(_GROUPS, (self._run, rows)))
        for number, (key, size) in islice(found, part, None, parts):
            name = bytes(key).decode(errors="surrogatepass")
            yield number, name, None if size > ROW_BYTES else self._items(key, rows)

    def _items(self, key: bytes, rows: int) -> list[Any]:
        found = self._read(_ITEMS, (self._run, key, rows))
        return [_decode(self._whole(value)) for (value,) in found]

    def settle(self) -> None:
        """Wait until all changes are written.

        Raises SetupError: another process has the partition.
        """
        settled = threading.Event()
        self._changes.hurry(settled)
        while not settled.wait(GROUP_S) and self._threads[0].is_alive():
            pass
        self._check()

    def forget(self) -> None:
        """Delete the run's results, except answers that other runs may use; blocks."""
        self._read("DELETE FROM kairos_runs WHERE run = %s RETURNING run", (self._run,))

    def close(self, *, give_up: bool = False) -> None:
        self._is_leaving = give_up
        self._changes.close()
        self._finds.put(None)
        for thread in self._threads:
            thread.join()
        self._reading.close()

    def _add(self, statement: str, *parameters: Any) -> None:
        self._check()
        self._added += 1
        self._added_bytes += _size_bytes(parameters)
        self._changes.put((statement, parameters))

    def _check(self) -> None:
        if self._broken is not None:
            raise SetupError(f"the results of {self._run} cannot be stored: {self._broken}")

    def _kept(self, encoded: bytes) -> bytes:
        """Return the stored form of a value; a large one is stored separately, by its hash."""
        if len(encoded) <= LARGE_BYTES:
            return encoded
        digest = sha256(encoded).digest()
        self._add(_VALUE, digest, encoded)
        return _LARGE + digest

    def _whole(self, kept: bytes) -> bytes:
        if kept[:1] != _LARGE:
            return kept
        found = self._read("SELECT value FROM kairos_values WHERE hash = %s", (kept[1:],))
        if not found:
            raise SetupError(f"a large value of {self._run} is gone from {self._url}")
        return bytes(found[0][0])

    def _connected(self) -> Any:
        return self._psycopg.connect(
            self._url,
            connect_timeout=_CONNECT_S,
            options=f"-c statement_timeout={_STATEMENT_MS} -c timezone=UTC",
            autocommit=True,
        )

    def _begin(self, connection: Any) -> int:
        with connection.transaction():
            connection.execute(_LOCK)  # against concurrent creation of the tables
            for each in (*_TABLES, *_OLD):
                connection.execute(each)
        with connection.transaction():
            connection.execute(_OPEN, (self._run,))
            epoch: int = connection.execute(_OWN, (self._run, self._part)).fetchone()[0]
        return epoch

    def _read(self, statement: str, parameters: Any) -> list[Any]:
        """Return all rows. Retries while the database is away."""

        def read(connection: Any) -> list[Any]:
            return connection.execute(statement, parameters, binary=True).fetchall()  # type: ignore[no-any-return]

        return self._until_there(self._reading, read)

    def _stream(self, statement: str, parameters: Any) -> Iterator[Any]:
        """Yield rows of a table that may be large, on a separate connection."""
        with (
            self._connected() as connection,
            connection.transaction(),
            connection.cursor("rows", binary=True) as cursor,
        ):
            cursor.itersize = _BUFFERED
            yield from cursor.execute(statement, parameters)

    def _until_there(self, connection: "_Connection", work: Callable[[Any], _T]) -> _T:
        """Run `work`, again every second while the database is away or aborts a deadlock."""
        is_told = False
        while True:
            try:
                done = connection.run(work)
            except self._psycopg.OperationalError as error:
                if self._is_leaving:
                    raise
                if not is_told:
                    self._on_trouble(f"the database of results: {first_line(error)}")
                is_told = True
                time.sleep(RETRY_S)
            else:
                if is_told:
                    self._on_trouble(None)
                return done

    def _write(self) -> None:
        connection = _Connection(self._connected)
        try:
            while self._write_group(connection):
                pass
        except BaseException as error:  # noqa: BLE001 - reported by the next `_add`
            self._broken = error
        finally:
            connection.close()

    def _write_group(self, connection: "_Connection") -> bool:
        """Write a group of changes. Return whether more may follow."""
        group, settled, goes_on = self._changes.next_group()
        if group:
            self._until_there(connection, lambda opened: self._commit(opened, group))
        self._done += len(group)
        self._done_bytes += sum(_size_bytes(parameters) for _, parameters in group)
        for each in settled:
            each.set()
        return goes_on

    def _commit(self, connection: Any, group: Sequence[_Change]) -> None:
        with connection.transaction(), connection.cursor() as cursor:
            owned = cursor.execute(_OWNS, (self._run, self._part, self.epoch))
            if owned.fetchone() is None:
                raise SetupError("another process has this part of the run now")
            ranked = sorted(group, key=lambda change: _ORDER.index(change[0]))
            for statement, same in groupby(ranked, key=lambda change: change[0]):
                parameters = [given for _, given in same]
                if statement in (_VALUE, _ANSWER, _SHARED):
                    parameters.sort(key=lambda given: given[:-1])
                cursor.executemany(statement, parameters)

    def _look(self) -> None:
        connection = _Connection(self._connected)
        try:
            while (group := self._next_finds()) is not None:
                self._answer(connection, group)
        except BaseException as error:  # noqa: BLE001 - reported by the next `_add`
            self._broken = self._broken or error
        finally:
            connection.close()

    def _next_finds(self) -> list[_Find] | None:
        group = []
        each = self._finds.get()
        while each is not None:
            group.append(each)
            if len(group) == _FINDS or self._finds.empty():
                return group
            each = self._finds.get()
        return None

    def _answer(self, connection: "_Connection", group: Sequence[_Find]) -> None:
        wanted = sorted({signature for signature, _ in group})

        def look(opened: Any) -> dict[str, bytes]:
            rows = opened.execute(_FIND, (self._scope, wanted), binary=True).fetchall()
            if stale := sorted(signature for signature, _, is_stale in rows if is_stale):
                opened.execute(_USED, (self._scope, stale))
            return {signature: value for signature, value, _ in rows}

        found = self._until_there(connection, look)
        for signature, then in group:
            kept = found.get(signature)
            value = None if kept is None else CachedValue(_decode(self._whole(kept)))
            self._deliver(then, value)


def read_postgres_record(url: str, run_id: str) -> bytes | None:
    """Return the record of a run stored in a database; None if it has no such record.

    Raises:
        SetupError: the database cannot be used.
    """
    psycopg = _psycopg()
    try:
        with psycopg.connect(url, connect_timeout=_CONNECT_S, autocommit=True) as connection:
            found = connection.execute("SELECT to_regclass('kairos_runs')").fetchone()
            if found[0] is None:
                return None
            query = "SELECT record FROM kairos_runs WHERE run = %s"
            told = connection.execute(query, (run_id,)).fetchone()
    except psycopg.Error as error:
        raise SetupError(f"results cannot be read from {url}: {first_line(error)}") from error
    return None if told is None or told[0] is None else bytes(told[0])


class _Connection:
    """Connection for one thread at a time, reopened after it was lost."""

    def __init__(self, connect: Callable[[], Any]) -> None:
        self._connect, self._opened = connect, None
        self._lock = threading.Lock()

    def run(self, work: Callable[[Any], _T]) -> _T:
        with self._lock:
            if self._opened is None or self._opened.closed:
                self._opened = self._connect()
            return work(self._opened)

    def close(self) -> None:
        with self._lock:
            if self._opened is not None:
                self._opened.close()


def _psycopg() -> Any:
    try:
        return importlib.import_module("psycopg")
    except ImportError as error:
        raise SetupError(
            f"results in PostgreSQL need psycopg: pip install 'psycopg[binary]' ({error})"
        ) from error


def first_line(error: BaseException) -> str:
    """Return the first line of the server's message; the others may show values."""
    return str(error).split("\n", 1)[0]


def _size_bytes(parameters: tuple[Any, ...]) -> int:
    return sum(len(each) for each in parameters if isinstance(each, bytes))

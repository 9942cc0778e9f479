"""Flows on disk: one SQLite file, open in every process that serves them."""

import contextlib
import sqlite3
import threading
from pathlib import Path

import msgspec

from kairos.core import SetupError
from kairos.host import GroupCommit, connect_sqlite, open_database, transaction
from kairos.settings import FlowSettings
from kairos.workflows.retrieve.worked import Worked
from kairos.workflows.serve.records import FlowLimit, FlowRecord, NoSuchFlow

_VERSION = 2
_SCHEMA = """
    CREATE TABLE flows (
        tenant TEXT, name TEXT, record BLOB NOT NULL, PRIMARY KEY (tenant, name)
    ) WITHOUT ROWID;
    CREATE TABLE ended (
        tenant TEXT, name TEXT, outcome TEXT, count INTEGER NOT NULL, seconds REAL NOT NULL,
        PRIMARY KEY (tenant, name, outcome)
    ) WITHOUT ROWID;
    CREATE TABLE totals (
        outcome TEXT PRIMARY KEY, count INTEGER NOT NULL, seconds REAL NOT NULL
    ) WITHOUT ROWID;
    CREATE TABLE processed (
        kind TEXT, processor TEXT, outcome TEXT,
        batches INTEGER NOT NULL, items INTEGER NOT NULL, seconds REAL NOT NULL,
        PRIMARY KEY (kind, processor, outcome)
    ) WITHOUT ROWID;
"""
_TOTAL = """
    INSERT INTO totals VALUES (?, 1, ?)
    ON CONFLICT DO UPDATE SET count = count + 1, seconds = seconds + excluded.seconds
"""
# A flow deleted in the meantime is not counted.
_OF_FLOW = """
    INSERT INTO ended SELECT tenant, name, ?3, 1, ?4 FROM flows WHERE tenant = ?1 AND name = ?2
    ON CONFLICT DO UPDATE SET count = count + 1, seconds = seconds + excluded.seconds
"""
_PROCESSED = """
    INSERT INTO processed VALUES (?, ?, ?, 1, ?, ?)
    ON CONFLICT DO UPDATE SET batches = batches + 1, items = items + excluded.items,
        seconds = seconds + excluded.seconds
"""
_MOST_BEHIND = 10_000  # changes not yet on disk
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(FlowRecord).decode


class InvocationCounts:
    """Counts finished invocations and processors' work for them.

    A thread of its own writes them in groups. Counts are lost if the disk is full.
    """

    def __init__(self, settings: FlowSettings) -> None:
        """Open the database of a directory that holds flows. Raises sqlite3.Error."""
        connection = connect_sqlite(path_of(settings))
        self._commit = GroupCommit(connection, lambda _: None, may_lose=True)

    def add(self, tenant: str, flow: str, outcome: str, seconds: float) -> None:
        if self._commit.backlog < _MOST_BEHIND:
            self._commit.add(_TOTAL, outcome, seconds)
            self._commit.add(_OF_FLOW, tenant, flow, outcome, seconds)

    def add_processed(self, did: Worked) -> None:
        with contextlib.suppress(sqlite3.Error):  # the work is done, whether it is counted or not
            if self._commit.backlog < _MOST_BEHIND:
                self._commit.add(_PROCESSED, *msgspec.structs.astuple(did))

    def close(self) -> None:
        self._commit.close(give_up=True)


def path_of(settings: FlowSettings) -> Path:
    return Path(settings.directory) / "flows.sqlite"


class FlowStore:
    """Stored flows. Any thread may use it. Every method waits for the disk."""

    def __init__(self, settings: FlowSettings) -> None:
        """Raises SetupError: the directory cannot hold flows."""
        root, self._most = Path(settings.directory), settings.max_flows
        try:
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._connection = open_database(
                path_of(settings), _SCHEMA, _VERSION, "name a new directory"
            )
        except (OSError, sqlite3.Error) as error:
            raise SetupError(f"flows.directory {root} cannot hold flows: {error}") from None
        self._turn = threading.Lock()

    def close(self) -> None:
        with self._turn:
            self._connection.close()

    def put(self, tenant: str, record: FlowRecord) -> FlowRecord:
        """Store a flow, or replace the one of that name and keep its creation time.

        Raises FlowLimit.
        """
        with self._turn, transaction(self._connection):
            before = self._found(tenant, record.name)
            if before is not None:
                record = msgspec.structs.replace(record, created_s=before.created_s)
            else:
                counted = "SELECT count(*) FROM flows WHERE tenant = ?"
                (count,) = self._connection.execute(counted, (tenant,)).fetchone()
                if count >= self._most:
                    raise FlowLimit(
                        f"{count} flows are stored, which is the limit; delete one first"
                    )
            statement = "INSERT OR REPLACE INTO flows VALUES (?, ?, ?)"
            self._connection.execute(statement, (tenant, record.name, _encode(record)))
        return record

    def find(self, tenant: str, name: str) -> FlowRecord:
        """Return a flow. Raises NoSuchFlow."""
        with self._turn:
            found = self._found(tenant, name)
        if found is None:
            raise NoSuchFlow(name)
        return found

    def of(self, tenant: str) -> list[FlowRecord]:
        """Return the tenant's flows, by name."""
        with self._turn:
            rows = self._connection.execute(
                "SELECT record FROM flows WHERE tenant = ? ORDER BY name", (tenant,)
            ).fetchall()
        return [_decode(record) for (record,) in rows]

    def names(self, tenant: str) -> list[str]:
        with self._turn:
            rows = self._connection.execute(
                "SELECT name FROM flows WHERE tenant = ? ORDER BY name", (tenant,)
            ).fetchall()
        return [name for (name,) in rows]

    def delete(self, tenant: str, name: str) -> None:
        """Delete a flow and its counts. Raises NoSuchFlow."""
        with self._turn:
            gone = self._connection.execute(
                "DELETE FROM flows WHERE tenant = ? AND name = ?", (tenant, name)
            ).rowcount
            self._connection.execute(
                "DELETE FROM ended WHERE tenant = ? AND name = ?", (tenant, name)
            )
        if not gone:
            raise NoSuchFlow(name)

    def totals(self) -> list[tuple[str, int, float]]:
        """Return all ended invocations since the directory was created: outcome, count, seconds."""
        with self._turn:
            found = self._connection.execute("SELECT outcome, count, seconds FROM totals")
            return found.fetchall()

    def processed(self) -> list[tuple[str, str, str, int, int, float]]:
        """Return work of processors: kind of operator, processor, outcome, batches, items, s."""
        with self._turn:
            return self._connection.execute("SELECT * FROM processed").fetchall()

    def counts_by_flow(self, most: int) -> list[tuple[str, str, str, int, float]]:
        """Return the counts of at most `most` stored flows: the ones with the most invocations.

        A row has tenant, name, outcome, count, seconds.
        """
        with self._turn:
            return self._connection.execute(
                "SELECT tenant, name, outcome, count, seconds FROM ended WHERE (tenant, name) IN ("
                "SELECT tenant, name FROM ended GROUP BY tenant, name "
                "ORDER BY sum(count) DESC, tenant, name LIMIT ?)",
                (most,),
            ).fetchall()

    def _found(self, tenant: str, name: str) -> FlowRecord | None:
        row = self._connection.execute(
            "SELECT record FROM flows WHERE tenant = ? AND name = ?", (tenant, name)
        ).fetchone()
        return None if row is None else _decode(row[0])

"""Results of deterministic operators by their signature, for later runs.

Each scope (a tenant) sees only its own results, and has a limit of its own: beyond it, the least
recently used results are evicted. If the disk is full, new results are lost, and nothing else.
"""

import sqlite3
from itertools import count
from pathlib import Path
from typing import Any

import msgspec

from kairos.core import SetupError
from kairos.host import GroupCommit, connect_sqlite, open_database
from kairos.workflows.run.result_store import CachedValue

CACHE_BYTES = 1 << 30
BACKLOG_BYTES = 64 << 20  # unwritten bytes, beyond which new results are dropped
_OVERHEAD_BYTES = 128  # overhead of an entry, approximately
_EVICT_EVERY = 64
_VERSION = 1
_SCHEMA = """
    CREATE TABLE IF NOT EXISTS results (
        scope TEXT, signature TEXT, value BLOB NOT NULL, bytes INTEGER NOT NULL,
        used INTEGER NOT NULL, PRIMARY KEY (scope, signature)
    ) WITHOUT ROWID;
    CREATE INDEX IF NOT EXISTS by_use ON results (scope, used);
    CREATE TABLE IF NOT EXISTS sizes (scope TEXT PRIMARY KEY, bytes INTEGER NOT NULL) WITHOUT ROWID;
    CREATE TRIGGER IF NOT EXISTS grown AFTER INSERT ON results BEGIN
        INSERT INTO sizes VALUES (new.scope, new.bytes)
        ON CONFLICT DO UPDATE SET bytes = bytes + excluded.bytes;
    END;
    CREATE TRIGGER IF NOT EXISTS shrunk AFTER DELETE ON results BEGIN
        UPDATE sizes SET bytes = bytes - old.bytes WHERE scope = old.scope;
    END;
"""
# Evict the least recently used entries that exceed the limit; some hundred at a time.
_EVICT = """
    DELETE FROM results WHERE scope = ?1 AND used <= (
        SELECT max(used) FROM (
            SELECT used, sum(bytes) OVER (ORDER BY used) - bytes AS before
            FROM (SELECT used, bytes FROM results WHERE scope = ?1 ORDER BY used LIMIT 1024)
        ) WHERE before < (SELECT bytes FROM sizes WHERE scope = ?1) - ?2
    )
"""

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class ResultCache:
    """Cached results of one scope. Several processes may have the same file open."""

    def __init__(self, path: Path, scope: str, *, limit_bytes: int = CACHE_BYTES) -> None:
        """Open a cache. Raises SetupError: the file is not a cache of results."""
        self._scope, self._limit_bytes = scope, limit_bytes
        try:
            self._reading = open_database(path, _SCHEMA, _VERSION, "move it away")
            self._commit = GroupCommit(connect_sqlite(path), lambda _: None, may_lose=True)
            last = self._reading.execute("SELECT max(used) FROM results").fetchone()[0]
        except sqlite3.Error as error:
            raise SetupError(
                f"{path} cannot be used for results ({error}): move it away, or run with --no-cache"
            ) from error
        self._uses = count((last or 0) + 1)
        self._stores = count(1)

    def find(self, signature: str) -> CachedValue | None:
        """Return a result, and mark it as used."""
        row = self._reading.execute(
            "SELECT value FROM results WHERE scope = ? AND signature = ?", (self._scope, signature)
        ).fetchone()
        if row is None:
            return None
        self._add(
            "UPDATE results SET used = ? WHERE scope = ? AND signature = ?",
            next(self._uses),
            self._scope,
            signature,
        )
        return CachedValue(_decode(row[0]))

    def store(self, signature: str, value: Any) -> None:
        """Store a result; it is found once it is on disk. The first value of a signature stays."""
        encoded = _encode(value)
        size = len(encoded) + _OVERHEAD_BYTES
        if size > self._limit_bytes or self._commit.backlog_bytes > BACKLOG_BYTES:
            return
        self._add(
            "INSERT OR IGNORE INTO results VALUES (?, ?, ?, ?, ?)",
            self._scope,
            signature,
            encoded,
            size,
            next(self._uses),
        )
        if next(self._stores) % _EVICT_EVERY == 0:
            self._evict()

    def size_bytes(self) -> int:
        found = self._reading.execute("SELECT bytes FROM sizes WHERE scope = ?", (self._scope,))
        row = found.fetchone()
        return row[0] if row else 0

    def settle(self) -> None:
        """Wait until all results are on disk, within the limit; blocks."""
        self._evict()
        self._commit.settle()

    def close(self) -> None:
        self._evict()
        self._commit.close(give_up=True)
        self._reading.close()

    def _evict(self) -> None:
        self._add(_EVICT, self._scope, self._limit_bytes)

    def _add(self, statement: str, *parameters: Any) -> None:
        self._commit.add(statement, *parameters)

"""Collections in PostgreSQL with pgvector, which many hosts may share: rows of two tables.

Search is exact. Other options of the connection, such as a password or TLS, are set by libpq's
variables (PGPASSWORD, PGSSLMODE) and ~/.pgpass.
"""

import asyncio
import importlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Self

from kairos.core import InvalidRequest, SetupError, Unavailable, UpstreamFailed
from kairos.workflows.retrieve.collections import distinct, no_collection, passage_id
from kairos.workflows.retrieve.vectors import Matrix, check_length

if TYPE_CHECKING:
    from psycopg import AsyncConnection

_CONNECTIONS = 4
_CONNECT_S, _STATEMENT_MS = 10, 60_000

# Values are passed as parameters, never in a statement's text.
_TABLES = (
    """
create table if not exists kairos_collections (
    key text primary key,
    length integer not null -- numbers of each vector
)""",
    """
create table if not exists kairos_passages (
    collection text not null references kairos_collections on delete cascade,
    id text not null,
    passage text not null,
    vector vector not null,
    primary key (collection, id)
)""",
)
_LOCK = "select pg_advisory_xact_lock(hashtext('kairos_passages'))"
_MAKE = "insert into kairos_collections values (%s, %s) on conflict do nothing"
_KEYS = "select key from kairos_collections"
_LENGTH = "select length from kairos_collections where key = %s"
_COUNT = "select count(*) from kairos_passages where collection = %s"
_PUT = """
insert into kairos_passages values (%s, %s, %s, %s::vector)
on conflict (collection, id) do update set vector = excluded.vector"""
_NEAREST = """
select passage, 1 - (vector <=> %(vector)s::vector) from kairos_passages
where collection = %(collection)s
order by vector <=> %(vector)s::vector, passage limit %(count)s"""


class PostgresCollections:
    """Collections of a database."""

    def __init__(self, psycopg: Any, url: str) -> None:
        self._psycopg, self._url = psycopg, url
        self._free: list[AsyncConnection] = []
        self._room = asyncio.Semaphore(_CONNECTIONS)

    @classmethod
    async def open(cls, url: str) -> Self:
        """Open the database.

        Raises:
            SetupError: psycopg is not installed, the database cannot be reached, or it has no
                pgvector.
        """
        try:
            psycopg = importlib.import_module("psycopg")
        except ImportError as error:
            raise SetupError(
                f"collections in PostgreSQL need psycopg: pip install 'psycopg[binary]' ({error})"
            ) from error
        made = cls(psycopg, url)
        try:
            async with made._connection() as connection:
                # Without the lock two processes that start at once would both create them.
                await connection.execute(_LOCK)
                await connection.execute("create extension if not exists vector")
                for table in _TABLES:
                    await connection.execute(table)
        except (Unavailable, UpstreamFailed) as error:
            raise SetupError(
                f"collections cannot be kept in {url}: {error}. The server needs pgvector; where "
                "the user may not add it, have an administrator run: create extension vector"
            ) from error
        return made

    async def put(self, key: str, texts: Sequence[str], vectors: Matrix) -> None:
        if any("\0" in text for text in texts):
            raise InvalidRequest("a passage holds the character NUL, which PostgreSQL cannot keep")
        rows = [
            # Sorted, so that concurrent writers of the same passages do not deadlock.
            (key, passage_id(texts[place]), texts[place], _literal(vectors[place].tolist()))
            for place in sorted(distinct(texts), key=lambda place: passage_id(texts[place]))
        ]
        async with self._connection() as connection:
            await connection.execute(_MAKE, (key, vectors.shape[1]))
            await self._check_length(connection, key, vectors.shape[1])
            await connection.cursor().executemany(_PUT, rows)

    async def nearest(self, key: str, vectors: Matrix, top_k: int) -> list[tuple[str, float]]:
        found: list[tuple[str, float]] = []
        async with self._connection() as connection:
            if not await self._check_length(connection, key, vectors.shape[1]):
                raise no_collection(key)
            for vector in vectors:
                wanted = {"vector": _literal(vector.tolist()), "collection": key, "count": top_k}
                rows = await (await connection.execute(_NEAREST, wanted)).fetchall()
                found += [(passage, float(score)) for passage, score in rows]
        return found

    async def keys(self) -> set[str]:
        async with self._connection() as connection:
            return {key for (key,) in await (await connection.execute(_KEYS)).fetchall()}

    async def count(self, key: str) -> int:
        async with self._connection() as connection:
            row = await (await connection.execute(_COUNT, (key,))).fetchone()
        return row[0] if row is not None else 0

    async def close(self) -> None:
        for connection in self._free:
            await connection.close()

    async def _check_length(self, connection: "AsyncConnection", key: str, length: int) -> bool:
        """Return whether the collection exists.

        Raises InvalidRequest: its vectors differ in length.
        """
        row = await (await connection.execute(_LENGTH, (key,))).fetchone()
        if row is not None:
            check_length(length, row[0])
        return row is not None

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator["AsyncConnection"]:
        """Yield a connection for exclusive use; the block is one transaction."""
        psycopg = self._psycopg
        async with self._room:
            connection = None
            try:
                connection = self._free.pop() if self._free else await self._connected()
                async with connection.transaction():
                    yield connection
                self._free.append(connection)
                connection = None
            except psycopg.OperationalError as error:
                raise Unavailable(f"the collections' database: {_first_line(error)}") from error
            except psycopg.Error as error:
                raise UpstreamFailed(f"the collections' database: {_first_line(error)}") from error
            finally:
                if connection is not None:
                    await connection.close()

    async def _connected(self) -> "AsyncConnection":
        connection: AsyncConnection = await self._psycopg.AsyncConnection.connect(
            self._url,
            connect_timeout=_CONNECT_S,
            options=f"-c statement_timeout={_STATEMENT_MS}",
            autocommit=True,
        )
        return connection


def _literal(vector: Sequence[float]) -> str:
    return f"[{','.join(map(repr, vector))}]"


def _first_line(error: Exception) -> str:
    """Return the first line of the server's message; the others may show values."""
    return str(error).split("\n", 1)[0]

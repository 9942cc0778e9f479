"""Collections in files of this host, by LanceDB: one table each, usable by several processes.

Search is exact.
"""

import asyncio
import importlib
from collections.abc import Awaitable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar
from weakref import WeakValueDictionary

import numpy as np

from kairos.core import SetupError, UpstreamFailed
from kairos.workflows.retrieve.collections import distinct, no_collection, passage_id
from kairos.workflows.retrieve.vectors import Matrix, check_length

if TYPE_CHECKING:
    from lancedb import AsyncConnection, AsyncTable

_MOST_OPEN = 256
_TIDY_AFTER = 64  # writes: each leaves a file, and a version

Answer = TypeVar("Answer")


class LanceCollections:
    """Collections of a directory."""

    def __init__(self, directory: Path, database: "AsyncConnection") -> None:
        self._directory, self._database = directory, database
        self._tables: dict[str, AsyncTable] = {}
        self._puts = 0
        # Locks of tables that are written, or wait to be.
        self._writing: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @classmethod
    async def open(cls, directory: Path) -> Self:
        """Open a directory.

        Raises SetupError: LanceDB is not installed, or the directory is unusable.
        """
        try:
            lancedb = await asyncio.to_thread(importlib.import_module, "lancedb")  # takes seconds
        except ImportError as error:
            raise SetupError(
                f"collections in files need LanceDB: pip install lancedb ({error})"
            ) from error
        try:
            await asyncio.to_thread(directory.mkdir, 0o700, parents=True, exist_ok=True)
            # Writes of other processes are visible at once.
            seen_after = timedelta(0)
            database = await lancedb.connect_async(directory, read_consistency_interval=seen_after)
        except (OSError, RuntimeError, ValueError) as error:
            raise SetupError(f"collections cannot be kept in {directory}: {error}") from error
        return cls(directory, database)

    async def put(self, key: str, texts: Sequence[str], vectors: Matrix) -> None:
        places = distinct(texts)
        rows = _rows([texts[place] for place in places], vectors[places])
        async with self._writing.setdefault(key, asyncio.Lock()):
            table = await self._made(key, rows.schema)
            check_length(vectors.shape[1], await _length(table))
            merge = table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
            await _done(merge.execute(rows))
            self._puts += 1
            if self._puts % _TIDY_AFTER == 0:
                await _done(table.optimize(cleanup_older_than=timedelta(hours=1)))

    async def nearest(self, key: str, vectors: Matrix, top_k: int) -> list[tuple[str, float]]:
        table = await self._opened(key)
        check_length(vectors.shape[1], await _length(table))
        found: list[tuple[str, float]] = []
        for vector in vectors:  # one by one: each search uses all cores
            search = table.vector_search(vector).distance_type("cosine").limit(top_k)
            rows = await _done(search.select(["text", "_distance"]).to_list())
            found += [(row["text"], 1 - row["_distance"]) for row in rows]
        return found

    async def keys(self) -> set[str]:
        files = await asyncio.to_thread(lambda: list(self._directory.iterdir()))
        return {file.stem for file in files if file.suffix == ".lance"}

    async def count(self, key: str) -> int:
        if key not in await self.keys():
            return 0
        return await _done((await self._opened(key)).count_rows())

    async def close(self) -> None:
        handles: list[Any] = [*self._tables.values(), self._database]
        for handle in handles:
            handle.close()

    async def _opened(self, key: str) -> "AsyncTable":
        """Return the table of a collection. Raises InvalidRequest: it does not exist."""
        if key not in self._tables:
            if not (self._directory / f"{key}.lance").is_dir():
                raise no_collection(key)
            self._keep(key, await _done(self._database.open_table(key)))
        return self._tables[key]

    async def _made(self, key: str, schema: Any) -> "AsyncTable":
        if key not in self._tables:
            making = self._database.create_table(key, schema=schema, exist_ok=True)
            self._keep(key, await _done(making))
        return self._tables[key]

    def _keep(self, key: str, table: "AsyncTable") -> None:
        """Cache an open table. The oldest is dropped, and closed when nobody uses it any more."""
        if len(self._tables) == _MOST_OPEN:
            self._tables.pop(next(iter(self._tables)))
        self._tables[key] = table


def _rows(texts: Sequence[str], vectors: Matrix) -> Any:
    """Return passages as an Arrow table."""
    pyarrow: Any = importlib.import_module("pyarrow")
    length = vectors.shape[1]
    numbers = pyarrow.array(np.ascontiguousarray(vectors).ravel())
    return pyarrow.table(
        {
            "id": [passage_id(text) for text in texts],
            "text": list(texts),
            "vector": pyarrow.FixedSizeListArray.from_arrays(numbers, length),
        }
    )


async def _length(table: "AsyncTable") -> int:
    """Return the length of the table's vectors."""
    schema: Any = await _done(table.schema())
    return int(schema.field("vector").type.list_size)


async def _done(work: Awaitable[Answer]) -> Answer:
    try:
        return await work
    except (OSError, RuntimeError, ValueError) as error:
        raise UpstreamFailed(f"the collections' files cannot be used: {error}") from error

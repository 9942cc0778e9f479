"""Collections of passages that outlive a run: in files, or in a database.

A collection belongs to a tenant. A passage is in it once: its id is a hash of its text, so
ingesting it again changes nothing, or replaces its vector by that of another model. The number and
size of a tenant's collections are bounded (`BoundedCollections`), and work on them has turns.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from hashlib import blake2b
from typing import Protocol

from kairos.core import InvalidRequest
from kairos.workflows.compile.operators import NAME
from kairos.workflows.execute.batching import BatchQueue, Query
from kairos.workflows.retrieve.vectors import Matrix

DEFAULT_TENANT = "default"
_TENANT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")


class Collections(Protocol):
    """Store of collections, by the keys of `collection_key`.

    All vectors of a collection have the same length.
    """

    async def put(self, key: str, texts: Sequence[str], vectors: Matrix) -> None:
        """Put at least one passage into a collection, each with its vector.

        Raises:
            InvalidRequest: the collection has vectors of another length.
            Unavailable: it cannot be done for now.
        """

    async def nearest(self, key: str, vectors: Matrix, top_k: int) -> list[tuple[str, float]]:
        """Return for each vector the `top_k` passages, with their cosines.

        Raises:
            InvalidRequest: the collection does not exist, or it has vectors of another length.
            Unavailable: it cannot be done for now.
        """

    async def keys(self) -> set[str]:
        """Return the keys of all collections."""

    async def count(self, key: str) -> int:
        """Return the number of passages; 0: the collection does not exist."""

    async def close(self) -> None: ...


def collection_key(tenant: str, name: str) -> str:
    """Return the key of a tenant's collection. Keys are unique, since names have no dot.

    Raises:
        InvalidRequest: the name is not valid.
    """
    if not re.match(NAME, name):
        raise InvalidRequest("a collection's name has letters, digits and _, at most 64")
    if not _TENANT.fullmatch(tenant):  # a claim of an identity provider may have other characters
        tenant = "-" + blake2b(tenant.encode(), digest_size=16).hexdigest()
    return name if tenant == DEFAULT_TENANT else f"{tenant}.{name}"


def tenant_part(key: str) -> str:
    """Return the part of a key that is equal for all collections of a tenant."""
    return key.rpartition(".")[0]


def passage_id(text: str) -> str:
    return blake2b(text.encode(), digest_size=16).hexdigest()


def distinct(texts: Sequence[str]) -> list[int]:
    """Return the place of the last occurrence of each text."""
    return sorted({text: place for place, text in enumerate(texts)}.values())


def no_collection(key: str) -> InvalidRequest:
    return InvalidRequest(
        f"there is no collection '{key}': put passages into it by an operator of kind ingest"
    )


MOST_COLLECTIONS = 1_000  # of a tenant
MOST_PASSAGES = 1_000_000  # of a collection, plus passages added until the next count
MOST_SOUGHT = 100  # vectors of one search in a collection
_COUNT_EVERY = 64  # writes
_MOST_KNOWN = 10_000
_AT_ONCE = 4  # searches and ingestions; each may have all cores


class CollectionTurns:
    """Queue for searches and ingestions: ordered by tenant, then by query, as for engines."""

    def __init__(self, at_once: int = _AT_ONCE) -> None:
        self._free, self._queue = at_once, BatchQueue()
        self._coming: dict[int, asyncio.Future[None]] = {}

    @asynccontextmanager
    async def turn(self, tenant: str, query: Query, depth: int, items: int) -> AsyncIterator[None]:
        """Wait for a turn, which lasts as long as the block.

        `items`: its number of texts or vectors.
        """
        number = self._queue.add(query, depth, 1, tenant)
        coming = self._coming[number] = asyncio.get_running_loop().create_future()
        self._go()
        try:
            await coming
            self._queue.turns.charge(tenant, items - 1)
            yield
        finally:
            self._coming.pop(number, None)
            if coming.done() and not coming.cancelled():
                self._free += 1
            else:
                self._queue.withdraw(number)
            self._go()

    def _go(self) -> None:
        while self._free and self._queue:
            (share,) = self._queue.take(1)
            coming = self._coming[share.id]
            if not coming.done():  # else its task was just cancelled
                self._free -= 1
                coming.set_result(None)


class BoundedCollections:
    def __init__(self, kept: Collections) -> None:
        self._kept = kept
        self._puts: dict[str, int] = {}  # number of writes by key of a known collection

    async def put(self, tenant: str, name: str, texts: Sequence[str], vectors: Matrix) -> None:
        """Put passages into a collection, see `Collections`.

        Raises:
            InvalidRequest: there are too many collections or passages, or the name is not valid.
        """
        key = collection_key(tenant, name)
        if key not in self._puts:
            await self._check_room(key)
        puts = self._puts.get(key, 0)
        if puts % _COUNT_EVERY == 0 and await self._kept.count(key) >= MOST_PASSAGES:
            raise InvalidRequest(
                f"the collection '{name}' has {MOST_PASSAGES} passages, which is the limit"
            )
        await self._kept.put(key, texts, vectors)
        if len(self._puts) == _MOST_KNOWN:
            self._puts.clear()
        self._puts[key] = puts + 1

    async def nearest(
        self, tenant: str, name: str, vectors: Matrix, top_k: int
    ) -> list[tuple[str, float]]:
        """Return the nearest passages, see `Collections`.

        Raises:
            InvalidRequest: too many vectors, too.
        """
        if len(vectors) > MOST_SOUGHT:  # each takes a scan of the whole collection
            raise InvalidRequest(
                f"a search of {len(vectors)} vectors: at most {MOST_SOUGHT} are allowed"
            )
        return await self._kept.nearest(collection_key(tenant, name), vectors, top_k)

    async def close(self) -> None:
        await self._kept.close()

    async def _check_room(self, key: str) -> None:
        keys = await self._kept.keys()
        theirs = sum(tenant_part(each) == tenant_part(key) for each in keys)
        if key not in keys and theirs >= MOST_COLLECTIONS:
            raise InvalidRequest(f"there are {MOST_COLLECTIONS} collections, which is the limit")

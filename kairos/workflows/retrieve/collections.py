"""Collections of passages that outlive a run: in files, or in a database.

A collection belongs to a tenant. A passage is in it once: its id is a hash of its text, so
ingesting it again changes nothing, or replaces its vector by that of another model.
"""

import re
from collections.abc import Sequence
from hashlib import blake2b
from typing import Protocol

from kairos.core import InvalidRequest
from kairos.workflows.compile.operators import NAME
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
            InvalidRequest: there is no such collection, or it has vectors of another length.
            Unavailable: it cannot be done for now.
        """

    async def keys(self) -> set[str]:
        """Return the keys of all collections."""

    async def count(self, key: str) -> int:
        """Return the number of passages; 0: there is no such collection."""

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

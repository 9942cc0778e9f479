"""Collections of passages that stay, whoever put them there: in files, or in a database.

A collection is its tenant's own. The same passage is in it once: its id is a hash of its text, so
that putting it there again changes nothing, or gives it the vector of another model.
"""

import re
from collections.abc import Sequence
from hashlib import blake2b
from typing import Protocol

from kairos.core.errors import InvalidRequest
from kairos.workflows.compile.operators import NAME
from kairos.workflows.retrieve.vectors import Matrix

DEFAULT_TENANT = "default"
_TENANT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")


class Collections(Protocol):
    """By key, as `collection_key` makes it. Vectors of a collection are equally long."""

    async def put(self, key: str, texts: Sequence[str], vectors: Matrix) -> None:
        """At least one passage, each with its vector.

        Raises:
            InvalidRequest: vectors of another length are there.
            Unavailable: it cannot be done for now.
        """

    async def nearest(self, key: str, vectors: Matrix, top_k: int) -> list[tuple[str, float]]:
        """Of each vector the `top_k` passages, with the cosine of their vector and that.

        Raises:
            InvalidRequest: there is no such collection, or it has vectors of another length.
            Unavailable: it cannot be done for now.
        """

    async def keys(self) -> set[str]:
        """Of all that are there."""

    async def count(self, key: str) -> int:
        """The passages that it has; 0: there is none."""

    async def close(self) -> None: ...


def collection_key(tenant: str, name: str) -> str:
    """Of a tenant's collection. No two have the same: a name has no dot.

    Raises:
        InvalidRequest: that is no name.
    """
    if not re.match(NAME, name):
        raise InvalidRequest("a collection's name has letters, digits and _, at most 64")
    if not _TENANT.fullmatch(tenant):  # a claim of an identity provider may have other characters
        tenant = "-" + blake2b(tenant.encode(), digest_size=16).hexdigest()
    return name if tenant == DEFAULT_TENANT else f"{tenant}.{name}"


def tenant_part(key: str) -> str:
    """Equal for collections of the same tenant."""
    return key.rpartition(".")[0]


def passage_id(text: str) -> str:
    return blake2b(text.encode(), digest_size=16).hexdigest()


def distinct(texts: Sequence[str]) -> list[int]:
    """Where each text is for the last time."""
    return sorted({text: place for place, text in enumerate(texts)}.values())


def no_collection(key: str) -> InvalidRequest:
    return InvalidRequest(
        f"there is no collection '{key}': put passages into it by an operator of kind ingest"
    )

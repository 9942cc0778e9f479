"""Idempotent requests: a retry with the same `Idempotency-Key` gets the first one's result.

The key is stored with the file or batch, as a digest, for as long as that exists: so the keys of a
tenant are bounded like its files and batches (the header follows IETF's draft).
"""

import sqlite3
from hashlib import blake2b

from fastapi import Request as HttpRequest

from kairos.core import InvalidRequest, KairosError

IDEMPOTENCY_KEY = "Idempotency-Key"
MOST_CHARACTERS = 255


class KeyReused(KairosError):
    """A request has the `Idempotency-Key` of a different request."""

    status = 422
    code = "idempotency_key_reused"

    def __init__(self, name: str) -> None:
        super().__init__(
            f"{IDEMPOTENCY_KEY} was used by a different request, which made {name}: "
            "a new request needs a new key"
        )


def asked_as(request: HttpRequest) -> str | None:
    """Return the digest of the request's key; None: it has no key. Raises InvalidRequest."""
    key = request.headers.get(IDEMPOTENCY_KEY)
    if key is None:
        return None
    if not 0 < len(key) <= MOST_CHARACTERS:
        raise InvalidRequest(f"{IDEMPOTENCY_KEY} has 1 to {MOST_CHARACTERS} characters")
    return blake2b(key.encode(), digest_size=16).hexdigest()


def made_before(
    db: sqlite3.Connection, table: str, tenant: str, digest: str | None
) -> bytes | None:
    """Return the record made by the latest earlier request with this key, if it exists."""
    if digest is None:
        return None
    found = db.execute(
        f"SELECT record FROM {table} WHERE tenant = ? "  # noqa: S608
        "AND json_extract(CAST(record AS TEXT), '$.asked_as') = ? "
        "ORDER BY seq DESC LIMIT 1",
        (tenant, digest),
    ).fetchone()
    return None if found is None else found[0]

"""Requests that a client sends again, since it does not know whether they were served: both bear
one `Idempotency-Key`, and the second is answered with what the first has made.

The key is kept with what was made, as a digest, for as long as that is: so the keys of a tenant are
bounded as its files and batches are (the header as IETF's draft has it).
"""

import sqlite3
from hashlib import blake2b

from fastapi import Request as HttpRequest

from kairos.core.errors import InvalidRequest, KairosError

IDEMPOTENCY_KEY = "Idempotency-Key"
MOST_CHARACTERS = 255


class KeyReused(KairosError):
    """A request has the `Idempotency-Key` of another one that asked for something else."""

    status = 422
    code = "idempotency_key_reused"

    def __init__(self, name: str) -> None:
        super().__init__(
            f"{IDEMPOTENCY_KEY} is that of the request that made {name}, which was another one: "
            "a request of its own needs a key of its own"
        )


def asked_as(request: HttpRequest) -> str | None:
    """By what the request is known again; None: it is not. Raises InvalidRequest."""
    key = request.headers.get(IDEMPOTENCY_KEY)
    if key is None:
        return None
    if not 0 < len(key) <= MOST_CHARACTERS:
        raise InvalidRequest(f"{IDEMPOTENCY_KEY} has 1 to {MOST_CHARACTERS} characters")
    return blake2b(key.encode(), digest_size=16).hexdigest()


def made_before(
    db: sqlite3.Connection, table: str, tenant: str, digest: str | None
) -> bytes | None:
    """The record of what the latest earlier request of this name made, if it is there."""
    if digest is None:
        return None
    found = db.execute(
        f"SELECT record FROM {table} WHERE tenant = ? "  # noqa: S608
        "AND json_extract(CAST(record AS TEXT), '$.asked_as') = ? "
        "ORDER BY seq DESC LIMIT 1",
        (tenant, digest),
    ).fetchone()
    return None if found is None else found[0]

"""Ids of responses that engines store, each marked with its tenant.

An answer of `/v1/responses` stays with its engine, and later calls refer to it by its id: to read,
cancel or delete it, or to continue it. Engines know no tenants, and vLLM lets a caller choose the
id. So where callers show keys, Kairos chooses it, as the body's `request_id` (vLLM, SGLang). An id
with the mark of another tenant is treated as unknown. Nothing has to be stored: a tenant can forge
another's mark, but cannot name another's response without it.
"""

import os
import re
from hashlib import blake2b

from kairos.core import KairosError

_MARKED = re.compile(r"resp_k[0-9a-f]{32}_(?P<mark>[0-9a-f]{16})")
_IN_PATH = re.compile(r"/v1/responses/(?P<id>[^/]+)(?:/.*)?")
_SHOWN = 80  # characters


class NoSuchResponse(KairosError):
    """No response with this id is stored for the caller."""

    status = 404
    code = "response_not_found"
    retries = False

    def __init__(self, response_id: str) -> None:
        super().__init__(f"there is no response {response_id[:_SHOWN]!r} here")


def new_response_id(tenant: str) -> str:
    """Return a random id with the tenant's mark."""
    return f"resp_k{os.urandom(16).hex()}_{_mark(tenant)}"


def check_response_path(path: str, tenant: str) -> None:
    """Check the response that a path names. Raises NoSuchResponse: It is another tenant's."""
    found = _IN_PATH.fullmatch(path)
    if found is not None:
        check_response_id(found["id"], tenant)


def check_response_id(response_id: str, tenant: str) -> None:
    """Check the mark of an id. Raises NoSuchResponse: It is another tenant's."""
    found = _MARKED.fullmatch(response_id)
    if found is not None and found["mark"] != _mark(tenant):
        raise NoSuchResponse(response_id)


def _mark(tenant: str) -> str:
    return blake2b(tenant.encode(), digest_size=8, person=b"kept responses").hexdigest()

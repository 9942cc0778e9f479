"""Ids of responses that engines keep, each marked with its tenant.

An answer of `/v1/responses` stays with its engine, and later calls name it by its id: to read,
cancel or delete it, or to go on from it. Engines know no tenants, and vLLM lets a caller choose the
id. So where callers show keys, Kairos chooses it, as the body's `request_id` (vLLM, SGLang). An id
with the mark of another tenant is answered as one that nobody has. Nothing has to be remembered: a
tenant can write another's mark, but no id of another's answer without it.
"""

import os
import re
from hashlib import blake2b

from kairos.core.errors import KairosError

_MARKED = re.compile(r"resp_k[0-9a-f]{32}_(?P<mark>[0-9a-f]{16})")
_IN_PATH = re.compile(r"/v1/responses/(?P<id>[^/]+)(?:/.*)?")
_SHOWN = 80  # characters


class NoSuchResponse(KairosError):
    """No response of this id is kept for the caller."""

    status = 404
    code = "response_not_found"
    retries = False

    def __init__(self, response_id: str) -> None:
        super().__init__(f"there is no response {response_id[:_SHOWN]!r} here")


def new_response_id(tenant: str) -> str:
    """Return an id that nobody can guess, and that is the tenant's."""
    return f"resp_k{os.urandom(16).hex()}_{_mark(tenant)}"


def check_response_path(path: str, tenant: str) -> None:
    """Raises NoSuchResponse: the path names a response of another tenant."""
    found = _IN_PATH.fullmatch(path)
    if found is not None:
        check_response_id(found["id"], tenant)


def check_response_id(response_id: str, tenant: str) -> None:
    """Raises NoSuchResponse: the id has the mark of another tenant."""
    found = _MARKED.fullmatch(response_id)
    if found is not None and found["mark"] != _mark(tenant):
        raise NoSuchResponse(response_id)


def _mark(tenant: str) -> str:
    return blake2b(tenant.encode(), digest_size=8, person=b"kept responses").hexdigest()

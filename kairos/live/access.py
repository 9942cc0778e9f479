"""Who may call: API keys, each mapped to a tenant."""

import hashlib
from collections.abc import Mapping

from fastapi import Request as HttpRequest

from kairos.errors import Unauthorized


class Access:
    """Checks a client's bearer token against the keys' SHA-256 digests.

    Keys are long random strings, so a plain digest is enough to store them safely; and comparing
    digests through a dict gives no timing to learn from, as nobody can choose a digest.
    """

    def __init__(self, tenant_of_digest: Mapping[str, str]) -> None:
        """Without any key everybody is let in, as one tenant."""
        self._tenant_of_digest = dict(tenant_of_digest)

    def tenant(self, authorization: bytes | None) -> str:
        """The caller's tenant.

        Raises:
            Unauthorized: keys are configured and this is none of them.
        """
        if not self._tenant_of_digest:
            return "default"
        scheme, _, key = (authorization or b"").partition(b" ")
        if scheme.lower() != b"bearer" or not key:
            raise Unauthorized("send an API key: 'Authorization: Bearer KEY'")
        tenant = self._tenant_of_digest.get(hashlib.sha256(key.strip()).hexdigest())
        if tenant is None:
            raise Unauthorized("this API key is not known here")
        return tenant


def authorization(request: HttpRequest) -> bytes | None:
    value = request.headers.get("authorization")
    return value.encode("latin-1") if value is not None else None

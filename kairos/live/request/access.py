"""Who may call: API keys, each of a tenant, and perhaps of one of its apps."""

import contextlib
import hashlib
from collections.abc import Callable, Iterable

import msgspec
from fastapi import Request as HttpRequest

from kairos.entitlements import STANDARD
from kairos.errors import Unauthorized
from kairos.live.process.clock import WallClock
from kairos.tenant_settings import KeySettings


class Caller(msgspec.Struct, frozen=True):
    tenant: str
    app: str | None = None  # all that it calls for, where its key says so
    service_class: str = STANDARD  # of calls that name none
    service_classes: tuple[str, ...] | None = None  # that it may ask for; None: all
    key: str | None = None  # the name of its key, if that has one


_ANYBODY = Caller("default")


def _caller(key: KeySettings) -> Caller:
    allowed = key.service_classes or None
    service_class = allowed[0] if allowed else STANDARD
    return Caller(key.tenant, key.app, service_class, allowed, key.name)


class Access:
    """Checks a client's bearer token against the keys' SHA-256 digests.

    Keys are long random strings, so a plain digest is enough to store them safely; and comparing
    digests through a dict gives no timing to learn from, as nobody can choose a digest.
    """

    def __init__(
        self,
        keys: Iterable[KeySettings],
        *,
        needed: bool = False,
        now: Callable[[], int] | None = None,
    ) -> None:
        """`needed`, as in `change`. `now`: the clock by which keys expire, in microseconds since
        the Unix epoch; None: real time."""
        self._now = now or WallClock().now
        self._callers: dict[str, tuple[Caller, int | None]] = {}
        self.change(keys, needed=needed)

    def change(self, keys: Iterable[KeySettings], *, needed: bool = False) -> None:
        """From the next call on these count. Without any key everybody is let in, as one tenant;
        or, where one is `needed`, nobody."""
        self._callers = {key.sha256: (_caller(key), key.expires_at) for key in keys}
        self._is_open = not self._callers and not needed

    @property
    def is_open(self) -> bool:
        """To anybody, without a key."""
        return self._is_open

    def known_as(self, authorization: bytes | None, address: str) -> str:
        """Who calls, where each caller has a share: its tenant, if it has shown a key; else its
        address."""
        if not self._is_open:
            with contextlib.suppress(Unauthorized):
                return self.tenant(authorization)
        return address

    def tenant(self, authorization: bytes | None) -> str:
        """Raises Unauthorized, as `caller` does."""
        return self.caller(authorization).tenant

    def caller(self, authorization: bytes | None) -> Caller:
        """Raises Unauthorized: keys are asked for and this is none of them, or has expired."""
        if self._is_open:
            return _ANYBODY
        scheme, _, key = (authorization or b"").partition(b" ")
        if scheme.lower() != b"bearer" or not key:
            raise Unauthorized("send an API key: 'Authorization: Bearer KEY'")
        found = self._callers.get(hashlib.sha256(key.strip()).hexdigest())
        if found is None:
            raise Unauthorized("this API key is not known here")
        caller, expires_at = found
        if expires_at is not None and self._now() >= expires_at:
            raise Unauthorized("this API key has expired")
        return caller


def authorization(request: HttpRequest) -> bytes | None:
    value = request.headers.get("authorization")
    return value.encode("latin-1") if value is not None else None

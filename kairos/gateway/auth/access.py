"""Authentication of callers: API keys, of a tenant or one of its apps, and signed tokens (OIDC).

A key or token also allows classes of service, which calls name.
"""

import asyncio
import hashlib
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Protocol

from kairos.core import (
    RAW_HEADERS,
    SERVICE_CLASSES,
    STANDARD_CLASS,
    Header,
    InvalidRequest,
    KairosError,
    ServiceClass,
    Unauthorized,
)
from kairos.host import WallClock
from kairos.request import ANONYMOUS, ROLE_RIGHTS, Caller, Headers, KeysComing
from kairos.settings import KeySettings, Role, Settings, classes_by_name

if TYPE_CHECKING:
    from fastapi import Request as HttpRequest

    from kairos.gateway.auth.signed_tokens import SignedTokens


_DOTS = 2  # in a signed token
# Headers of Anthropic's, Azure's and Google's clients.
KEY_HEADERS = b"x-api-key", b"api-key", b"x-goog-api-key"
_CALLS = ROLE_RIGHTS["caller"]


def _caller(key: KeySettings) -> Caller:
    allowed = key.service_classes or None
    default = allowed[0] if allowed else STANDARD_CLASS
    roles = ROLE_RIGHTS[key.role]
    return Caller(key.tenant, key.app, default, allowed, key.name, roles, key.label)


class Callers(Protocol):
    is_open: bool

    def known_as(self, authorization: bytes | None, address: str) -> str:
        """See `Access`."""

    def caller(self, authorization: bytes | None) -> Caller:
        """See `Access`."""


class Access:
    """Authentication of bearer tokens, by the SHA-256 digests of the keys.

    Keys are long random strings, so a plain digest is enough to store them safely. Looking digests
    up in a dict leaks no useful timing, as a caller cannot choose a digest.
    """

    is_open: bool  # everyone is admitted, without a key

    def __init__(
        self,
        keys: Iterable[KeySettings],
        *,
        needed: bool = False,
        now: Callable[[], int] | None = None,
        tokens: "SignedTokens | None" = None,
    ) -> None:
        """Create it with keys; `needed` as in `change`.

        `now` is the clock by which keys expire, in µs since the Unix epoch; None: real time.
        `tokens` also admits callers with signed tokens.
        """
        self._now = now or WallClock().now
        self._tokens = tokens
        self._callers: dict[str, tuple[Caller, int | None]] = {}
        self._asks_operators = tokens is not None and tokens.have_roles
        self.change_keys(keys, needed=needed)

    def change_keys(self, keys: Iterable[KeySettings], *, needed: bool = False) -> None:
        """Replace the keys, from the next call on.

        Without any key everyone is admitted, as one tenant; or nobody, if a key is `needed`. Once
        operators have had keys, their port requires one.
        """
        self._callers = {key.sha256: (_caller(key), key.expires_at) for key in keys}
        self._asks_operators |= any(caller.roles != _CALLS for caller, _ in self._callers.values())
        self.is_open = not self._callers and not needed and self._tokens is None

    def know_classes(self, names: Collection[str]) -> None:
        """Set the known classes of service, which tokens may name."""
        if self._tokens is not None:
            self._tokens.know_classes(names)

    def known_as(self, authorization: bytes | None, address: str) -> str:
        """Return the name for a caller's share: its tenant or, without a key, its address.

        A token counts only if it has been verified before.
        """
        if self.is_open:
            return address
        try:
            digest = _digest(_shown(authorization))
            caller = self._of_key(digest)
        except Unauthorized:
            return address
        if caller is None and self._tokens is not None:
            caller = self._tokens.known(digest)
        return address if caller is None else caller.tenant

    def caller(self, authorization: bytes | None) -> Caller:
        """Return the caller.

        Raises:
            Unauthorized: The key is missing, unknown or expired, or the signed token is invalid.
            NotAllowed: The key is only for operators' routes.
            IssuerUnreachable, KeysComing: See `SignedTokens.caller`.
        """
        if self.is_open:
            return ANONYMOUS
        caller = self._shown_by(authorization)
        caller.needs("caller")
        return caller

    async def admitted_caller(self, authorization: bytes | None) -> Caller:
        """Return the caller as `caller` does, but wait while an issuer's keys are fetched."""
        return await _once_known(partial(self.caller, authorization))

    async def operator(self, authorization: bytes | None, role: Role) -> Caller:
        """Return the operator, who must have the role; anyone if no key or token has a role.

        Raises as `caller` does.
        """
        if not self._asks_operators:
            return ANONYMOUS
        caller = await _once_known(partial(self._shown_by, authorization))
        caller.needs(role)
        return caller

    def _shown_by(self, authorization: bytes | None) -> Caller:
        key = _shown(authorization)
        digest = _digest(key)
        caller = self._of_key(digest)
        if caller is not None:
            return caller
        if self._tokens is not None and key.count(b".") == _DOTS:
            return self._tokens.caller(key, digest)
        raise Unauthorized("this API key is not known here")

    def _of_key(self, digest: str) -> Caller | None:
        """Return the caller of a key, or None. Raises Unauthorized: The key has expired."""
        found = self._callers.get(digest)
        if found is None:
            return None
        caller, expires_at = found
        if expires_at is not None and self._now() >= expires_at:
            raise Unauthorized("this API key has expired")
        return caller

    def background(self) -> list[Coroutine[None, None, None]]:
        return [] if self._tokens is None else [self._tokens.keys.run()]


def access_of(settings: Settings) -> Access:
    """Create the authentication that the settings describe."""
    oidc, tokens, now = settings.oidc, None, WallClock().now
    if oidc is not None:
        from kairos.gateway.auth.jwks import IssuerKeys
        from kairos.gateway.auth.signed_tokens import SignedTokens

        known = classes_by_name(settings.service_class)
        tokens = SignedTokens(oidc, IssuerKeys(oidc), known, now)
    return Access(settings.key, needed=settings.asks_for_keys, now=now, tokens=tokens)


async def _once_known(find: Callable[[], Caller]) -> Caller:
    while True:
        try:
            return find()
        except KeysComing as awaited:
            await asyncio.wait([awaited.coming])


def credential_of(headers: Mapping[bytes, bytes]) -> bytes | None:
    """Return a request's credential as an `Authorization` value, or None.

    Clients of other vendors send a bare key in a header of their own. Names in `headers` are in
    lower case.
    """
    shown = headers.get(b"authorization")
    if shown is not None and shown[:7].lower() == b"bearer ":
        return shown
    for name in KEY_HEADERS:
        key = headers.get(name)
        if key:
            return b"Bearer " + key
    return shown


def _shown(authorization: bytes | None) -> bytes:
    """Return the key of a bearer token. Raises Unauthorized: The value is not a bearer token."""
    scheme, _, key = (authorization or b"").partition(b" ")
    if scheme.lower() != b"bearer" or not key:
        raise Unauthorized("send an API key: 'Authorization: Bearer KEY', or 'x-api-key: KEY'")
    return key.strip()


def _digest(key: bytes) -> str:
    return hashlib.sha256(key).hexdigest()


def authorization_of(request: "HttpRequest") -> bytes | None:
    """Return the request's credential: see `credential_of`."""
    shown = {
        name: value.encode("latin-1")
        for name in (b"authorization", *KEY_HEADERS)
        if (value := request.headers.get(name.decode())) is not None
    }
    return credential_of(shown)


_CLASS = RAW_HEADERS[Header.CLASS]


class ClassNotAllowed(KairosError):
    """The API key does not allow this class of service (`service_classes` of `[[key]]`)."""

    status = 403
    code = "class_not_allowed"

    def __init__(self, name: str, allowed: tuple[str, ...]) -> None:
        super().__init__(f"this API key may not use class '{name}', only: {', '.join(allowed)}")


class ServiceClasses:
    def __init__(self, known: Mapping[str, ServiceClass] = SERVICE_CLASSES) -> None:
        self._known = known
        self._spare = [name for name, each in known.items() if each.goes == "spare"]
        self._deadlines = {n: each.deadline_us for n, each in known.items() if each.deadline_us}

    def of(self, headers: Headers, caller: Caller) -> str:
        """Return the class of a call.

        Raises:
            InvalidRequest: The header names an unknown class.
            ClassNotAllowed: The key does not allow the class.
        """
        value = headers.get(_CLASS)
        if value is None:
            return caller.service_class
        name = value.decode("latin-1")
        if name not in self._known:
            known = ", ".join(self._known)
            raise InvalidRequest(
                f"header {Header.CLASS.lower()} names no class of service: {known}"
            )
        if caller.service_classes is not None and name not in caller.service_classes:
            raise ClassNotAllowed(name, caller.service_classes)
        return name

    def spare(self, caller: Caller) -> str | None:
        """Return a best-effort class that the caller may use, or None."""
        allowed = caller.service_classes
        return next((name for name in self._spare if allowed is None or name in allowed), None)

    def deadline(self, name: str, named: int | None, now: int) -> int | None:
        """Return the call's own deadline, else that of its class, in µs since the epoch."""
        after_us = self._deadlines.get(name) if named is None and self._deadlines else None
        return named if after_us is None else now + after_us

"""Who may call: API keys, each of a tenant, and perhaps of one of its apps; and signed tokens of an
identity provider beside them."""

import asyncio
import hashlib
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Protocol

from kairos.core.entitlements import STANDARD
from kairos.core.errors import Unauthorized
from kairos.host.clock import WallClock
from kairos.request.caller import ANYBODY, RIGHTS, Caller, KeysComing
from kairos.settings.config import Settings
from kairos.settings.tenants import KeySettings, Role, classes

if TYPE_CHECKING:
    from fastapi import Request as HttpRequest

    from kairos.gateway.auth.signed_tokens import SignedTokens

_DOTS = 2  # in a signed token
# Of Anthropic's clients, Azure's and Google's.
KEY_HEADERS = b"x-api-key", b"api-key", b"x-goog-api-key"
_CALLS = RIGHTS["caller"]


def _caller(key: KeySettings) -> Caller:
    allowed = key.service_classes or None
    default = allowed[0] if allowed else STANDARD
    roles = RIGHTS[key.role]
    return Caller(key.tenant, key.app, default, allowed, key.name, roles, key.label)


class Callers(Protocol):
    """Who may call."""

    @property
    def is_open(self) -> bool:
        """See `Access`."""

    def known_as(self, authorization: bytes | None, address: str) -> str:
        """See `Access`."""

    def caller(self, authorization: bytes | None) -> Caller:
        """See `Access`."""


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
        tokens: "SignedTokens | None" = None,
    ) -> None:
        """`needed`, as in `change`. `now`: the clock by which keys expire, in microseconds since
        the Unix epoch; None: real time. `tokens`: lets in who shows one, too."""
        self._now = now or WallClock().now
        self._tokens = tokens
        self._callers: dict[str, tuple[Caller, int | None]] = {}
        self._asks_operators = tokens is not None and tokens.have_roles
        self.change(keys, needed=needed)

    def change(self, keys: Iterable[KeySettings], *, needed: bool = False) -> None:
        """From the next call on these count. Without any key everybody is let in, as one tenant;
        or, where one is `needed`, nobody. Once operators have had keys, theirs alone let in."""
        self._callers = {key.sha256: (_caller(key), key.expires_at) for key in keys}
        self._asks_operators |= any(caller.roles != _CALLS for caller, _ in self._callers.values())
        self._is_open = not self._callers and not needed and self._tokens is None

    def know_classes(self, names: Collection[str]) -> None:
        """Of service, that there are from now on."""
        if self._tokens is not None:
            self._tokens.know_classes(names)

    @property
    def is_open(self) -> bool:
        """To anybody, without a key."""
        return self._is_open

    def known_as(self, authorization: bytes | None, address: str) -> str:
        """Who calls, where each caller has a share: its tenant, if it has shown a key; else its
        address. A token counts once it has been verified, which is not done here."""
        if self._is_open:
            return address
        try:
            digest = _digest(_shown(authorization))
            caller = self._of_key(digest)
        except Unauthorized:
            return address
        if caller is None and self._tokens is not None:
            caller = self._tokens.known(digest)
        return address if caller is None else caller.tenant

    def tenant(self, authorization: bytes | None) -> str:
        """Raises as `caller` does."""
        return self.caller(authorization).tenant

    def caller(self, authorization: bytes | None) -> Caller:
        """Who may call.

        Raises:
            Unauthorized: keys are asked for and this is none of them, or has expired; or it is a
                signed token that lets nobody in.
            NotAllowed: it is for the operators' routes alone.
            IssuerUnreachable, KeysComing: see `SignedTokens.caller`.
        """
        if self._is_open:
            return ANYBODY
        caller = self._shown_by(authorization)
        caller.needs("caller")
        return caller

    async def admitted(self, authorization: bytes | None) -> Caller:
        """As `caller`, but waits for an issuer's keys that are coming."""
        return await _once_known(partial(self.caller, authorization))

    async def operator(self, authorization: bytes | None, role: Role) -> Caller:
        """Who asks for the operators' routes, having shown that it has the role; anybody, where
        keys and tokens have none. Raises as `caller` does."""
        if not self._asks_operators:
            return ANYBODY
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
        """Raises Unauthorized: it has expired."""
        found = self._callers.get(digest)
        if found is None:
            return None
        caller, expires_at = found
        if expires_at is not None and self._now() >= expires_at:
            raise Unauthorized("this API key has expired")
        return caller

    def background(self) -> list[Coroutine[None, None, None]]:
        """What is to run beside it."""
        return [] if self._tokens is None else [self._tokens.keys.run()]


def access_of(settings: Settings) -> Access:
    """As the settings have it."""
    oidc, tokens, now = settings.oidc, None, WallClock().now
    if oidc is not None:
        from kairos.gateway.auth.jwks import IssuerKeys
        from kairos.gateway.auth.signed_tokens import SignedTokens

        known = classes(settings.service_class)
        tokens = SignedTokens(oidc, IssuerKeys(oidc), known, now)
    return Access(settings.key, needed=settings.asks_for_keys, now=now, tokens=tokens)


async def _once_known(find: Callable[[], Caller]) -> Caller:
    while True:
        try:
            return find()
        except KeysComing as awaited:
            await asyncio.wait([awaited.coming])


def credential_of(headers: Mapping[bytes, bytes]) -> bytes | None:
    """Return what a request shows, as `Authorization` has it; None: nothing.

    Clients of other vendors send a bare key in a header of their own. `headers`: names in lower
    case.
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
    """Raises Unauthorized: it is no bearer token."""
    scheme, _, key = (authorization or b"").partition(b" ")
    if scheme.lower() != b"bearer" or not key:
        raise Unauthorized("send an API key: 'Authorization: Bearer KEY', or 'x-api-key: KEY'")
    return key.strip()


def _digest(key: bytes) -> str:
    return hashlib.sha256(key).hexdigest()


def authorization(request: "HttpRequest") -> bytes | None:
    """Return what the request shows: see `credential_of`."""
    shown = {
        name: value.encode("latin-1")
        for name in (b"authorization", *KEY_HEADERS)
        if (value := request.headers.get(name.decode())) is not None
    }
    return credential_of(shown)

"""Signed tokens (JSON Web Token, RFC 7519) of an identity provider, and the callers they identify.

A token is verified with a key that its issuer publishes (`jwks.py`), by one of the asymmetric
algorithms in the settings. The token's header only selects among these; keys that it carries or
points to are ignored (RFC 8725, sections 3.1 and 3.10). A verified token is cached by its digest
until it expires, or the issuer's keys change: then it costs a look-up.
"""

import binascii
import re
from base64 import urlsafe_b64decode
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from typing import Any

import msgspec
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import Key
from joserfc.jws import JWSRegistry

from kairos.core import IDENTIFIER_PATTERN, SECOND, STANDARD_CLASS, Unauthorized, Unavailable
from kairos.gateway.auth.jwks import IssuerKeys
from kairos.request import ROLE_RIGHTS, Caller, KeysComing
from kairos.settings import OidcSettings, Role, is_tenant

MAX_BYTES = 16 << 10  # of a token
MAX_REMEMBERED = 10_000  # tokens
_HEADER_BYTES = 4 << 10
_MOST_CLASSES = 32
_YEAR_10000_S = 253_402_300_800
_IDENTIFIER = re.compile(IDENTIFIER_PATTERN)
_SUBJECT = re.compile(r"[ -~]{1,128}")
_CALLER: tuple[Role, ...] = ("caller",)
_OWN_NAMES: Mapping[str, Role] = {role: role for role in ROLE_RIGHTS}
_ED25519 = {"EdDSA": "Ed25519"}  # the only curve that is accepted for it (RFC 9864's name)


class InvalidToken(Unauthorized):
    """A signed token is malformed or not valid for Kairos; the message says why. Get a new one."""

    code = "invalid_token"


class TokenExpired(Unauthorized):
    """A signed token has expired. Get a new one."""

    code = "token_expired"
    says = "the token has expired"


class IssuerUnreachable(Unavailable):
    """The identity provider's keys have not been fetched yet, so no token can be verified."""

    code = "issuer_unreachable"
    retry_after_s = 10
    says = "the keys that verify tokens cannot be fetched at the moment"


class _Header(msgspec.Struct):
    alg: str
    kid: str | None = None


class _Registry(JWSRegistry):
    """joserfc's registry, with longer headers and extra fields, as identity providers use them."""

    max_header_length = _HEADER_BYTES

    def get_alg(self, name: str) -> Any:
        return super().get_alg(_ED25519.get(name, name))


class SignedTokens:
    """Verification of one issuer's tokens."""

    def __init__(
        self, oidc: OidcSettings, keys: IssuerKeys, classes: Collection[str], now: Callable[[], int]
    ) -> None:
        """Create it.

        `classes` are the known classes of service. `now` returns µs since the Unix epoch.
        """
        self.keys = keys
        self._oidc, self._classes, self._now = oidc, classes, now
        self._leeway_us = oidc.leeway_s * SECOND
        self._algorithms = {
            *oidc.algorithms,
            *(_ED25519[n] for n in oidc.algorithms if n in _ED25519),
        }
        self._registry = _Registry(algorithms=self._algorithms, strict_check_header=False)
        self._header = msgspec.json.Decoder(_Header)
        self._known: OrderedDict[str, tuple[Caller, int]] = OrderedDict()  # until when, by digest
        self._version = keys.version

    @property
    def have_roles(self) -> bool:
        return self._oidc.role_claim is not None

    def know_classes(self, names: Collection[str]) -> None:
        """Set the known classes of service; tokens are parsed again."""
        self._classes = names
        self._known.clear()

    def known(self, digest: str) -> Caller | None:
        """Return the caller of a verified, still valid token by its SHA-256 digest, or None."""
        if self._version != self.keys.version:
            self._known.clear()
            self._version = self.keys.version
        found = self._known.get(digest)
        if found is None:
            return None
        if self._now() >= found[1]:
            del self._known[digest]
            return None
        self._known.move_to_end(digest)
        return found[0]

    def caller(self, token: bytes, digest: str) -> Caller:
        """Verify a token and return its caller. `digest` is its SHA-256, in hexadecimal.

        Raises:
            InvalidToken, TokenExpired: The token is not valid.
            IssuerUnreachable: No keys are known, and it is too early to fetch them again.
            KeysComing: The token's key is unknown, and the keys are being fetched.
        """
        caller = self.known(digest)
        if caller is None:
            claims = self._verified(token)
            until = self._check(claims)
            caller = self._known_by(claims)
            self._known[digest] = caller, until
            if len(self._known) > MAX_REMEMBERED:
                self._known.popitem(last=False)
        return caller

    def _verified(self, token: bytes) -> dict[str, Any]:
        """Return the claims of a token whose signature is correct."""
        key = self._key(token)
        try:
            return jwt.decode(token, key, registry=self._registry).claims
        except (JoseError, ValueError, TypeError, RecursionError):
            raise InvalidToken("the token's signature is wrong") from None

    def _key(self, token: bytes) -> Key:
        if len(token) > MAX_BYTES:
            raise InvalidToken(f"the token is larger than {MAX_BYTES} bytes")
        part = token.partition(b".")[0]
        try:
            header = self._header.decode(urlsafe_b64decode(part + b"=" * (-len(part) % 4)))
        except (binascii.Error, ValueError, RecursionError):
            raise InvalidToken("the token is not a JWT") from None
        if header.alg not in self._algorithms:
            raise InvalidToken("the token is signed by an algorithm that is not allowed here")
        key = self.keys.key(header.kid, header.alg)
        if key is None:
            if (coming := self.keys.coming()) is not None:
                raise KeysComing(coming)
            if not self.keys.are_known:
                raise IssuerUnreachable
            raise InvalidToken("the token is signed with a key that its issuer does not publish")
        return key

    def _check(self, claims: Mapping[str, Any]) -> int:
        """Check the standard claims; return when the token expires, in µs since the Unix epoch."""
        oidc = self._oidc
        if claims.get("iss") != oidc.issuer:
            raise InvalidToken("the token is of another issuer")
        audience = claims.get("aud")
        named = audience if isinstance(audience, list) else [audience]
        if oidc.audience not in named:
            raise InvalidToken("the token is for another audience")
        ends, now = _instant(claims, "exp"), self._now()
        if ends is None:
            raise InvalidToken("the token never expires ('exp'); such tokens are refused")
        if now >= ends + self._leeway_us:
            raise TokenExpired
        for name in ("nbf", "iat"):
            begins = _instant(claims, name)
            if begins is not None and now < begins - self._leeway_us:
                raise InvalidToken(f"the token is not valid yet ('{name}'); do clocks differ?")
        return ends + self._leeway_us

    def _known_by(self, claims: Mapping[str, Any]) -> Caller:
        oidc = self._oidc
        tenant = _claim(claims, oidc.tenant_claim)
        if not isinstance(tenant, str) or not is_tenant(tenant):
            problem = "does not say" if tenant is None else "does not say in the form of a name"
            raise InvalidToken(f"the token {problem} whose it is (claim '{oidc.tenant_claim}')")
        app = None if oidc.app_claim is None else _claim(claims, oidc.app_claim)
        if app is not None and not (isinstance(app, str) and _IDENTIFIER.match(app)):
            raise InvalidToken(f"the token's claim '{oidc.app_claim}' is not a valid app name")
        allowed = self._allowed(claims)
        default = allowed[0] if allowed else STANDARD_CLASS
        roles, name = self._roles(claims), _subject(claims)
        return Caller(tenant, app, default, allowed, roles=roles, name=name)

    def _roles(self, claims: Mapping[str, Any]) -> tuple[Role, ...]:
        """Return the caller's roles.

        Unknown role names are ignored: they may be for other services.
        """
        name, named = self._oidc.role_claim, self._oidc.roles or _OWN_NAMES
        told = None if name is None else _claim(claims, name)
        listed = told if isinstance(told, list) else [told]
        names = [each for each in listed if isinstance(each, str)]
        roles: list[Role] = [named[each] for each in names if each in named]
        rights = {right for role in roles or _CALLER for right in ROLE_RIGHTS[role]}
        return tuple(right for right in ROLE_RIGHTS if right in rights)

    def _allowed(self, claims: Mapping[str, Any]) -> tuple[str, ...] | None:
        """Return the classes of service that the token allows; None: all."""
        name = self._oidc.class_claim
        told = None if name is None else _claim(claims, name)
        if told is None:
            return None
        named = [told] if isinstance(told, str) else told
        if not isinstance(named, list) or not 0 < len(named) <= _MOST_CLASSES:
            raise InvalidToken(f"the token's claim '{name}' names no class of service")
        if any(not isinstance(each, str) or each not in self._classes for each in named):
            raise InvalidToken(f"the token's claim '{name}' names an unknown class of service")
        return tuple(named)


def _claim(claims: Mapping[str, Any], name: str) -> Any:
    """Return a claim by its name or dotted path; None if the token has none."""
    if name in claims:
        return claims[name]
    found: Any = claims
    for part in name.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return found


def _subject(claims: Mapping[str, Any]) -> str | None:
    """Return the token's subject, if it is short and printable."""
    told = claims.get("sub")
    return told if isinstance(told, str) and _SUBJECT.fullmatch(told) else None


def _instant(claims: Mapping[str, Any], name: str) -> int | None:
    """Return a time claim in µs.

    The claim has seconds, possibly with a fraction (RFC 7519, section 2).
    """
    told = claims.get(name)
    if told is None:
        return None
    is_number = isinstance(told, int | float) and not isinstance(told, bool)
    if not is_number or not -_YEAR_10000_S < told < _YEAR_10000_S:
        raise InvalidToken(f"the token's claim '{name}' is not a time")
    return int(told * SECOND)

"""The public keys with which an issuer signs (JSON Web Key Set, RFC 7517), fetched and cached.

A token that names an unknown key triggers another fetch, since issuers rotate keys; but rarely, as
anyone can invent a key's name. A failed fetch leaves the keys as they were. A key that the issuer
no longer publishes is dropped at the next fetch.
"""

import asyncio
import logging
from collections.abc import Iterable
from typing import Any

import aiohttp
import msgspec
from cryptography.exceptions import UnsupportedAlgorithm
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, Key, OKPKey, RSAKey, import_key

from kairos.settings import OidcSettings, problem_of

logger = logging.getLogger(__name__)

FETCH_S = 5.0  # the longest that one document may take
RENEW_S = 600.0  # between periodic fetches
AGAIN_S = 10.0  # the minimum between two fetches
MAX_BYTES = 64 << 10  # of a document
MAX_KEYS = 64
_RSA_BITS = range(2048, 8193)
_MODULUS_CHARS = range(2048 // 6, 8192 // 6 + 4)  # in base64; joserfc warns of shorter keys
_DISCOVERY = "/.well-known/openid-configuration"

# The kind of key for an algorithm; also for the fully specified names of RFC 9864.
_KIND = {
    **dict.fromkeys(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"), "RSA"),
    "ES256": "P-256",
    "ES384": "P-384",
    "ES512": "P-521",
    "EdDSA": "Ed25519",
    "Ed25519": "Ed25519",
}


class SigningKey(msgspec.Struct, frozen=True):
    kid: str | None
    kind: str  # RSA, or the curve
    alg: str | None  # the only one it is for; None: all of its kind
    key: Key

    def is_for(self, kid: str | None, alg: str) -> bool:
        """Return whether the key fits a token's `kid`, if it has one, and its algorithm."""
        if kid is not None and kid != self.kid:
            return False
        is_alg = self.alg in (None, alg) or {self.alg, alg} == {"EdDSA", "Ed25519"}
        return _KIND.get(alg) == self.kind and is_alg


class Unfetched(Exception):
    """The issuer's keys could not be fetched; the text says why."""


def signing_keys(document: bytes) -> tuple[SigningKey, ...]:
    """Return the keys of a set with which signatures can be verified; others are skipped.

    Raises Unfetched: The document is not a key set, or has no usable key.
    """
    try:
        told = msgspec.json.decode(document)
    except (ValueError, RecursionError):
        raise Unfetched("what it sent is not JSON") from None
    listed = told.get("keys") if isinstance(told, dict) else None
    if not isinstance(listed, list):
        raise Unfetched("what it sent has no list of 'keys'")
    if len(listed) > MAX_KEYS:
        raise Unfetched(f"it has {len(listed)} keys, and {MAX_KEYS} at most are read")
    found = tuple(key for each in listed if (key := _signing_key(each)) is not None)
    if not found:
        raise Unfetched(
            "none of its keys can be used: RSA of 2048 bits and more, P-256 to P-521, Ed25519"
        )
    return found


class _Jwk(msgspec.Struct):
    """A public key as published (RFC 7517, section 4; RFC 7518, section 6)."""

    kty: str
    kid: str | None = None
    alg: str | None = None
    use: str = "sig"
    key_ops: tuple[str, ...] = ("verify",)
    n: str = ""
    e: str = ""
    crv: str = ""
    x: str = ""
    y: str = ""

    @property
    def public(self) -> dict[str, str]:
        """Public parameters of the key. A private key published by mistake is not kept."""
        named = ("kty", "n", "e", "crv", "x", "y")
        return {name: value for name in named if (value := getattr(self, name))}


def _signing_key(told: Any) -> SigningKey | None:
    try:
        jwk = msgspec.convert(told, _Jwk)
        if jwk.use != "sig" or "verify" not in jwk.key_ops or jwk.kty not in ("RSA", "EC", "OKP"):
            return None
        if jwk.kty == "RSA" and len(jwk.n) not in _MODULUS_CHARS:
            return None
        key = import_key(dict(jwk.public))
    except (JoseError, UnsupportedAlgorithm, ValueError, TypeError, KeyError):
        return None
    kind = _kind_of(key)
    return None if kind is None else SigningKey(jwk.kid, kind, jwk.alg, key)


def _kind_of(key: Key) -> str | None:
    if isinstance(key, RSAKey):
        return "RSA" if key.public_key.key_size in _RSA_BITS else None
    if isinstance(key, ECKey | OKPKey) and key.curve_name in _KIND.values():
        return key.curve_name
    return None


class IssuerKeys:
    """The issuer's keys as last fetched. `run` it concurrently with the requests for keys."""

    def __init__(self, oidc: OidcSettings) -> None:
        self._oidc = oidc
        self._keys: tuple[SigningKey, ...] = ()
        self._again_at: float = 0  # by the loop's clock; no fetch before that
        self._asked = asyncio.Event()
        self._coming: asyncio.Future[None] | None = None  # done when the fetch is
        self._is_failing = False
        self.version = 0  # changes when the keys change

    @property
    def are_known(self) -> bool:
        return bool(self._keys)

    def key(self, kid: str | None, alg: str) -> Key | None:
        """Return the key with that name; without a name, the only one for the algorithm."""
        found = [each.key for each in self._keys if each.is_for(kid, alg)]
        return found[0] if len(found) == 1 or (found and kid is not None) else None

    def coming(self) -> "asyncio.Future[None] | None":
        """Request a fetch; the future is done when it has succeeded or failed.

        None: it is too early to fetch again.
        """
        if self._coming is None:
            loop = asyncio.get_running_loop()
            if loop.time() < self._again_at:
                return None
            self._coming = loop.create_future()
            self._asked.set()
        return self._coming

    async def run(self) -> None:
        """Fetch the keys when requested, and periodically."""
        try:
            while True:
                if self._coming is None:
                    self._coming = asyncio.get_running_loop().create_future()
                wait_s = RENEW_S if await self._renew() else AGAIN_S
                self._told()
                self._asked.clear()
                try:
                    async with asyncio.timeout(wait_s):
                        await self._asked.wait()
                except TimeoutError:
                    pass
        finally:
            self._told()

    def _told(self) -> None:
        self._again_at = asyncio.get_running_loop().time() + AGAIN_S
        coming, self._coming = self._coming, None
        if coming is not None and not coming.done():
            coming.set_result(None)

    async def _renew(self) -> bool:
        try:
            keys = signing_keys(await self._fetch())
        except Unfetched as error:
            if not self._is_failing:
                kept = "the last ones remain in use" if self._keys else "no token is admitted"
                logger.warning(
                    "cannot fetch the keys of %s, %s: %s", self._oidc.issuer, kept, error
                )
            self._is_failing = True
            return False
        if self._is_failing:
            logger.warning("the keys of %s were fetched again", self._oidc.issuer)
        self._is_failing = False
        if _names(keys) != _names(self._keys):
            self.version += 1
        self._keys = keys
        return True

    async def _fetch(self) -> bytes:
        """Fetch the document of keys. Raises Unfetched: It cannot be fetched."""
        async with aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=FETCH_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            headers={"accept": "application/json", "accept-encoding": "identity"},
        ) as session:
            url = self._oidc.jwks_url
            if url is None:
                told = await _get(session, self._oidc.issuer.rstrip("/") + _DISCOVERY)
                url = _jwks_url(told, self._oidc.issuer)
            return await _get(session, url)


def _names(keys: Iterable[SigningKey]) -> set[tuple[str | None, str, str | None, str]]:
    """Return what identifies each key, to detect changes."""
    return {(each.kid, each.kind, each.alg, each.key.thumbprint()) for each in keys}


def _jwks_url(document: bytes, issuer: str) -> str:
    """Return the URL of the keys from a document of OpenID Connect Discovery 1.0 (section 3).

    Raises Unfetched: The document is invalid or of another issuer, or its URL is not safe.
    """
    try:
        told = msgspec.json.decode(document)
    except (ValueError, RecursionError):
        raise Unfetched(f"{_DISCOVERY} is not JSON") from None
    if not isinstance(told, dict) or told.get("issuer") != issuer:
        raise Unfetched(f"{_DISCOVERY} is not of this issuer (the setting must be as it has it)")
    url = told.get("jwks_uri")
    if not isinstance(url, str) or problem_of(url) is not None:
        raise Unfetched(f"{_DISCOVERY} has no 'jwks_uri' that begins with https://")
    return url


async def _get(session: aiohttp.ClientSession, url: str) -> bytes:
    """Fetch a body, without following redirects."""
    body = bytearray()
    try:
        async with session.get(url, allow_redirects=False) as answer:
            if answer.status != 200:
                raise Unfetched(f"it answers {answer.status}")
            async for part in answer.content.iter_any():
                body += part
                if len(body) > MAX_BYTES:
                    raise Unfetched(f"its document is larger than {MAX_BYTES} bytes")
    except TimeoutError:
        raise Unfetched(f"it does not answer within {FETCH_S:g} s") from None
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise Unfetched(f"it cannot be reached ({type(error).__name__})") from None
    return bytes(body)

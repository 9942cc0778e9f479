"""`python -m bench.tokens`: what it costs to know who calls by a key or a token, in CPU time.

A key; a token that was verified before; and, by algorithm, a token that is new, or forged. All that
is measured runs on the event loop, before a call is read. Takes ten seconds.
"""

import hashlib
import json
import statistics
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable

from joserfc.jwk import ECKey, Key, OKPKey, RSAKey
from joserfc.jws import JWSRegistry
from rich.console import Console
from rich.table import Table

from kairos.core import SERVICE_CLASSES, Unauthorized
from kairos.gateway import Access
from kairos.gateway.auth.jwks import IssuerKeys, signing_keys
from kairos.gateway.auth.signed_tokens import SignedTokens
from kairos.settings import KeySettings, OidcSettings

ROUNDS, TIMES = 9, 5_000
ISSUER, KEY = "https://login.example.com/realms/agents", "kai-4bf92f3577b34da6a3ce929d0e0e4736"
ALGORITHMS = ("RS256", "RS512", "PS256", "ES256", "ES384", "ES512", "EdDSA")


def main() -> None:
    table = Table("who calls is told by", "mean µs", "worst round")
    keys = {alg: _new_key(alg) for alg in ALGORITHMS}
    access = _access(keys)
    key = f"Bearer {KEY}".encode()
    _row(table, r"a key, without \[oidc]", lambda: _without_oidc().caller, key)
    _row(table, r"a key, with \[oidc]", lambda: access.caller, key)
    known = _token(keys["RS256"], "RS256", 0)
    access.caller(known)
    _row(table, f"a token of {len(known) - 7} bytes that is known", lambda: access.caller, known)
    for alg, signer in keys.items():
        new = [_token(signer, alg, number) for number in range(100)]
        _row(table, f"a new token, {alg}", lambda: _access(keys).caller, *new)
        forged = [each[:-8] + b"AAAAAAAA" for each in new]
        _row(table, f"a forged token, {alg}", lambda: _refusing(access), *forged)
    Console().print(table)


class _Published(IssuerKeys):
    """Keys that need not be fetched."""

    def __init__(self, oidc: OidcSettings, keys: dict[str, Key]) -> None:
        super().__init__(oidc)
        told = {"keys": [key.as_dict(private=False) | {"kid": n} for n, key in keys.items()]}
        self._keys = signing_keys(json.dumps(told).encode())


def _access(keys: dict[str, Key]) -> Access:
    oidc = OidcSettings(issuer=ISSUER, audience="kairos")
    now = time.time_ns() // 1000
    tokens = SignedTokens(oidc, _Published(oidc, keys), SERVICE_CLASSES, lambda: now)
    return Access([_key()], tokens=tokens)


def _without_oidc() -> Access:
    return Access([_key()])


def _key() -> KeySettings:
    return KeySettings(sha256=hashlib.sha256(KEY.encode()).hexdigest(), tenant="acme")


def _refusing(access: Access) -> Callable[[bytes], object]:
    def ask(told: bytes) -> object:
        try:
            return access.caller(told)
        except Unauthorized:
            return None

    return ask


def _new_key(alg: str) -> Key:
    if alg == "EdDSA":
        return OKPKey.generate_key("Ed25519")
    if alg.startswith("ES"):
        return ECKey.generate_key({"ES256": "P-256", "ES384": "P-384", "ES512": "P-521"}[alg])
    return RSAKey.generate_key(2048)


def _token(key: Key, alg: str, number: int) -> bytes:
    """Of the size and claims of an access token of Keycloak's, without its roles."""
    now = int(time.time())
    claims = {"iss": ISSUER, "aud": "kairos", "exp": now + 600, "iat": now, "tenant": "acme"}
    claims |= {"sub": f"service-account-agents-{number:032}", "azp": "agents", "typ": "Bearer"}
    claims |= {"jti": f"{number:036}", "scope": "openid email profile", "acr": "1"}
    head = {"alg": alg, "typ": "JWT", "kid": alg}
    told = b".".join(_encoded(json.dumps(each).encode()) for each in (head, claims))
    model = JWSRegistry.algorithms["Ed25519" if alg == "EdDSA" else alg]
    return b"Bearer " + told + b"." + _encoded(model.sign(told, key))


def _encoded(data: bytes) -> bytes:
    return urlsafe_b64encode(data).rstrip(b"=")


def _row(
    table: Table, what: str, made: Callable[[], Callable[[bytes], object]], *told: bytes
) -> None:
    """`made`: gives, for each round, what is asked."""
    rounds = []
    for _ in range(ROUNDS):
        ask = made()
        asked = told * (TIMES // len(told)) if len(told) == 1 else told
        began = time.process_time()
        for each in asked:
            ask(each)
        rounds.append((time.process_time() - began) / len(asked) * 1e6)
    table.add_row(what, f"{statistics.fmean(rounds):.3g}", f"{max(rounds):.3g}")


if __name__ == "__main__":
    main()

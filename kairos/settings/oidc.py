"""Settings of an identity provider, whose signed tokens (JWT) are accepted besides API keys."""

from collections.abc import Mapping
from typing import Literal, get_args

import msgspec

from kairos.core import SetupError
from kairos.settings.addresses import problem_of
from kairos.settings.tenants import Role

Algorithm = Literal[
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"
]
_ALL: tuple[Algorithm, ...] = get_args(Algorithm)
_MOST_LEEWAY_S = 300
_LONGEST = 256  # characters of the name of a claim


class OidcSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An issuer of tokens (OpenID Connect), and the meaning of their claims.

    A claim's name is searched as it is; if it is missing, dots lead into objects, as in
    `kairos.tenant`.
    """

    issuer: str  # as `iss` has it, to the letter; https, or http on loopback
    audience: str  # that `aud` must have
    # URL of its public keys (JWKS). None: from ISSUER/.well-known/openid-configuration.
    jwks_url: str | None = None
    # Allowed signature algorithms. None of them uses a shared secret.
    algorithms: tuple[Algorithm, ...] = _ALL
    leeway_s: int = 30  # allowed difference of clocks
    tenant_claim: str = "tenant"  # the tenant of a call; a token without it is refused
    app_claim: str | None = None  # if it has it, the token is for that app only
    # Classes of service that its calls may ask for: a name or a list; the first is that of calls
    # which name none. A token without it: any, and `standard`.
    class_claim: str | None = None
    # Roles: caller, viewer, admin (see `[[key]]`), a name or a list; with several each counts. A
    # token without any is a caller's. None: so is every token.
    role_claim: str | None = None
    roles: Mapping[str, Role] = {}  # what it may have, where that is not the roles' own names


def check_oidc(oidc: OidcSettings) -> None:
    """Check the settings. Raises SetupError: A value is invalid."""
    _check_url("issuer", oidc.issuer)
    if oidc.jwks_url is not None:
        _check_url("jwks_url", oidc.jwks_url)
    if not oidc.audience:
        raise SetupError("oidc.audience is empty: name what the tokens' 'aud' must have")
    if not oidc.algorithms:
        raise SetupError(f"oidc.algorithms is empty: name some of {', '.join(_ALL)}")
    if not 0 <= oidc.leeway_s <= _MOST_LEEWAY_S:
        raise SetupError(f"oidc.leeway_s {oidc.leeway_s} is out of range (0 to {_MOST_LEEWAY_S})")
    for name in ("tenant_claim", "app_claim", "class_claim", "role_claim"):
        claim = getattr(oidc, name)
        if claim is not None and not 0 < len(claim) <= _LONGEST:
            raise SetupError(f"oidc.{name} must have 1 to {_LONGEST} characters")
    if oidc.roles and oidc.role_claim is None:
        raise SetupError("oidc.roles needs oidc.role_claim: name the claim that has them")


def _check_url(name: str, url: str) -> None:
    if (problem := problem_of(url)) is not None:
        raise SetupError(f"oidc.{name}: '{url}' {problem}")

"""Who is let in by a signed token, and why others are not."""

import hashlib
import hmac
import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kairos.core import SECOND, SERVICE_CLASSES, Unauthorized
from kairos.gateway import Access
from kairos.gateway.auth.jwks import IssuerKeys, signing_keys
from kairos.gateway.auth.signed_tokens import (
    MAX_BYTES,
    MAX_REMEMBERED,
    InvalidToken,
    IssuerUnreachable,
    SignedTokens,
    TokenExpired,
)
from kairos.request import Caller, NotAllowed
from kairos.settings import KeySettings, OidcSettings, is_tenant
from tests.support.issuer import ALGORITHMS, encoded, new_key, signed

KEYS = {alg: new_key(alg, alg) for alg in ALGORITHMS}
RSA = KEYS["RS256"]
ISSUER, NOW_S = "https://login.example", 1_800_000_000
CLAIMS = {"iss": ISSUER, "aud": "kairos", "exp": NOW_S + 600, "tenant": "acme", "sub": "ann"}


class Published(IssuerKeys):
    """An issuer's keys, none of which has to be fetched."""

    def __init__(self, *keys):
        super().__init__(OidcSettings(issuer=ISSUER, audience="kairos"))
        if keys:
            told = {"keys": [each.as_dict(private=False) for each in keys]}
            self._keys = signing_keys(json.dumps(told).encode())

    def withdraw(self, kid):
        self._keys = tuple(each for each in self._keys if each.kid != kid)
        self.version += 1

    def coming(self):
        return None


class Tokens:
    """Those of one issuer at an instant that a test sets."""

    def __init__(self, *keys, published=None, **given):
        self.now_s = NOW_S
        self.keys = published or Published(*(keys or KEYS.values()))
        oidc = OidcSettings(**({"issuer": ISSUER, "audience": "kairos"} | given))
        self.tokens = SignedTokens(
            oidc, self.keys, SERVICE_CLASSES, lambda: int(self.now_s * SECOND)
        )
        self.access = Access([], tokens=self.tokens)

    def caller(self, token):
        told = token if isinstance(token, bytes) else token.encode()
        caller = self.access.caller(b"Bearer " + told)
        return msgspec.structs.replace(caller, name=None)


def token(alg="RS256", key=None, header=None, **claims):
    told = {name: value for name, value in (CLAIMS | claims).items() if value is not None}
    return signed(told, key or KEYS[alg], alg, **(header or {}))


@pytest.mark.parametrize("alg", ALGORITHMS)
def test_a_token_of_each_algorithm_lets_its_tenant_in(alg):
    assert Tokens().caller(token(alg)) == Caller("acme")


def refused(tokens, told):
    """Why; having checked that nothing of the token is told again."""
    with pytest.raises(Unauthorized) as raised:
        tokens.caller(told)
    text = told if isinstance(told, str) else told.decode("latin-1")
    assert not any(len(part) > 8 and part in str(raised.value) for part in text.split("."))
    return f"{raised.value.code}: {raised.value}"


@pytest.mark.parametrize(
    ("claims", "why"),
    [
        ({"iss": "https://other.example"}, "is of another issuer"),
        ({"iss": ISSUER + "/"}, "is of another issuer"),
        ({"iss": None}, "is of another issuer"),
        ({"aud": "billing"}, "is for another audience"),
        ({"aud": ["billing", "kairos2"]}, "is for another audience"),
        ({"aud": None}, "is for another audience"),
        ({"aud": {"kairos": 1}}, "is for another audience"),
        ({"exp": None}, "never expires"),
        ({"exp": float("nan")}, "'exp' is not a time"),
        ({"exp": float("inf")}, "'exp' is not a time"),
        ({"exp": 1e308}, "'exp' is not a time"),
        ({"exp": 10**400}, "'exp' is not a time"),
        ({"nbf": -(10**400)}, "'nbf' is not a time"),
        ({"exp": "tomorrow"}, "'exp' is not a time"),
        ({"exp": True}, "'exp' is not a time"),
        ({"nbf": NOW_S + 31}, "is not valid yet"),
        ({"iat": NOW_S + 31}, "is not valid yet"),
        ({"tenant": None}, "does not say whose it is"),
        ({"tenant": "a/b"}, "does not say in the form of a name whose"),
        ({"tenant": ["acme"]}, "does not say in the form of a name whose"),
        ({"tenant": "x" * 65}, "does not say in the form of a name whose"),
    ],
    ids=str,
)
def test_a_token_whose_claims_are_wrong_lets_nobody_in(claims, why):
    told = refused(Tokens(), token(**claims))
    assert told.startswith("invalid_token: the token")
    assert why in told


def test_a_token_is_let_in_until_it_expires_give_or_take_the_leeway():
    tokens = Tokens(leeway_s=10)
    told = token()
    tokens.now_s = NOW_S + 609
    assert tokens.caller(told).tenant == "acme"  # and is remembered from here on
    tokens.now_s = NOW_S + 610
    with pytest.raises(TokenExpired, match="has expired"):
        tokens.caller(told)
    assert refused(tokens, told) == "token_expired: the token has expired"


def test_a_token_may_be_for_several_audiences_and_be_good_from_a_moment_on():
    told = token(aud=["billing", "kairos"], nbf=NOW_S + 20, iat=NOW_S + 0.5)
    assert Tokens().caller(told).tenant == "acme"


def test_a_token_without_a_signature_lets_nobody_in():
    payload = encoded(json.dumps(CLAIMS).encode())
    for alg in ("none", "None", "NONE"):
        head = encoded(json.dumps({"alg": alg, "kid": "RS256"}).encode())
        for signature in (b"", b"AAAA"):
            assert "algorithm that is not allowed" in refused(
                Tokens(), b".".join((head, payload, signature))
            )


@pytest.mark.parametrize("form", ["PEM", "DER"])
def test_the_public_key_is_no_shared_secret(form):
    """Where the library would take the key for whatever the token says (CVE-2015-9235)."""
    secret = RSA.as_bytes(encoding=form, private=False)
    head = encoded(json.dumps({"alg": "HS256", "kid": "RS256"}).encode())
    signing_input = head + b"." + encoded(json.dumps(CLAIMS).encode())
    signature = encoded(hmac.new(secret, signing_input, hashlib.sha256).digest())
    assert "algorithm that is not allowed" in refused(Tokens(), signing_input + b"." + signature)


def test_only_algorithms_of_the_settings_are_taken():
    tokens = Tokens(algorithms=("ES256",))
    assert tokens.caller(token("ES256")).tenant == "acme"
    assert "algorithm that is not allowed" in refused(tokens, token("RS256"))


def test_a_changed_token_lets_nobody_in():
    head, payload, signature = token().split(".")
    other = encoded(json.dumps(CLAIMS | {"tenant": "umbrella"}).encode()).decode()
    tokens = Tokens()
    assert "signature is wrong" in refused(tokens, f"{head}.{other}.{signature}")
    assert "signature is wrong" in refused(tokens, f"{head}.{payload}.")
    assert "signature is wrong" in refused(tokens, f"{head}.{payload}.{signature[:-8]}")
    assert tokens.caller(f"{head}.{payload}.{signature}").tenant == "acme"


def test_a_key_that_the_token_carries_is_not_taken():
    mine = new_key("RS256", "mine")
    header = {"jwk": mine.as_dict(private=False), "kid": "RS256"}
    assert "signature is wrong" in refused(Tokens(), token(key=mine, header=header))
    header = {"jku": "https://mine.example/keys", "kid": "mine"}
    assert "does not publish" in refused(Tokens(), token(key=mine, header=header))


def test_a_key_of_one_kind_verifies_nothing_of_another():
    header = {"kid": "ES256"}
    assert "does not publish" in refused(Tokens(), token("RS256", header=header))


def test_a_token_that_names_no_key_is_verified_by_the_only_one():
    assert Tokens(RSA).caller(token(header={"kid": None})).tenant == "acme"
    two = Tokens(RSA, new_key("RS256", "second"))
    assert "does not publish" in refused(two, token(header={"kid": None}))


@pytest.mark.parametrize(
    "told",
    [
        b"..",
        b"a.b.c",
        b"e30.e30.",
        b"\xff.\xff.\xff",
        encoded(b"[" * 3000) + b".e30.AAAA",
        encoded(b'{"alg": "RS256", "kid": "RS256", "x": ' + b"[" * 2500) + b".e30.AAAA",
        encoded(b'{"alg": ["RS256"]}') + b".e30.AAAA",
        encoded(b'{"alg": "RS256", "kid": 7}') + b".e30.AAAA",
        encoded(b'"alg"') + b".e30.AAAA",
        encoded(b'{"alg": "RS256", "kid": "RS256", "crit": ["b64"], "b64": false}') + b".e30.AAAA",
        b"a" * 20_000 + b".b.c",
    ],
    ids=range(11),
)
def test_what_is_no_token_is_refused_as_one(told):
    assert refused(Tokens(), told).startswith("invalid_token: the token")


def test_a_token_has_a_size_at_most():
    tokens = Tokens()
    room = MAX_BYTES - len(token(pad=""))
    assert tokens.caller(token(pad="x" * (room * 3 // 4 - 8))).tenant == "acme"
    assert "is larger than 16384 bytes" in refused(tokens, token(pad="x" * (room * 3 // 4 + 8)))


@pytest.mark.parametrize("payload", [b"", b"[]", b"7", b"\xff", b"[" * 9000, b'{"iss": '])
def test_claims_that_are_none_let_nobody_in(payload):
    told = signed(payload, RSA)
    assert refused(Tokens(), told).startswith("invalid_token: the token")


def test_what_has_no_two_dots_is_a_key_and_keys_count_beside_tokens():
    access = Tokens().access
    told = token().encode()
    access.change_keys(
        [KeySettings(sha256=hashlib.sha256(b"kai-1").hexdigest(), tenant="umbrella")]
    )
    assert access.caller(b"Bearer kai-1").tenant == "umbrella"
    assert access.caller(b"Bearer " + told).tenant == "acme"
    with pytest.raises(Unauthorized, match="this API key is not known here"):
        access.caller(b"Bearer kai-2")
    access.change_keys([])
    assert not access.is_open
    with pytest.raises(Unauthorized, match="send an API key"):
        access.caller(None)


def test_claims_say_app_and_classes_wherever_they_stand():
    tokens = Tokens(
        tenant_claim="https://acme.example/tenant",
        app_claim="kairos.app",
        class_claim="kairos.classes",
    )
    told = {"https://acme.example/tenant": "umbrella", "tenant": None}
    assert tokens.caller(token(**told)) == Caller("umbrella")
    one = {"kairos": {"app": "qa", "classes": "batch"}}
    assert tokens.caller(token(**told, **one)) == Caller("umbrella", "qa", "batch", ("batch",))
    two = {"kairos": {"classes": ["interactive", "batch"]}}
    assert tokens.caller(token(**told, **two)) == Caller(
        "umbrella", None, "interactive", ("interactive", "batch")
    )


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ({"app": "a b"}, "claim 'app' is not a valid app name"),
        ({"app": 7}, "claim 'app' is not a valid app name"),
        ({"classes": "gold"}, "claim 'classes' names an unknown class of service"),
        ({"classes": ["batch", 7]}, "claim 'classes' names an unknown class of service"),
        ({"classes": []}, "claim 'classes' names no class of service"),
        ({"classes": 7}, "claim 'classes' names no class of service"),
    ],
    ids=str,
)
def test_an_app_or_a_class_that_cannot_be_lets_nobody_in(told, why):
    tokens = Tokens(app_claim="app", class_claim="classes")
    assert why in refused(tokens, token(**told))


@pytest.fixture
def verified(monkeypatch):
    """Tokens whose signatures are looked at, one after the other."""
    looked_at, real = [], SignedTokens._verified

    def spied(self, told):
        looked_at.append(told)
        return real(self, told)

    monkeypatch.setattr(SignedTokens, "_verified", spied)
    return looked_at


def test_a_token_is_verified_once_and_again_when_the_issuers_keys_change(verified):
    tokens, told = Tokens(), token()
    tokens.caller(told)
    tokens.caller(told)
    assert verified == [told.encode()]
    tokens.keys.version += 1
    tokens.caller(told)
    tokens.caller(told)
    assert verified == [told.encode()] * 2


def test_a_token_is_let_in_no_more_once_its_key_is_withdrawn():
    tokens, told = Tokens(), token()
    tokens.caller(told)
    tokens.keys.withdraw("RS256")
    assert "does not publish" in refused(tokens, told)


def test_so_many_tokens_are_remembered_and_those_in_use_longest(monkeypatch, verified):
    monkeypatch.setattr("kairos.gateway.auth.signed_tokens.MAX_REMEMBERED", 2)
    tokens = Tokens(KEYS["EdDSA"])
    first, *others = (token("EdDSA", sub=str(n)) for n in range(4))
    for each in (first, *others, others[0]):
        tokens.caller(each)
        tokens.caller(first)
    assert verified == [each.encode() for each in (first, *others, others[0])]
    assert len(tokens.tokens._known) == 2
    assert MAX_REMEMBERED == 10_000


@pytest.mark.parametrize(
    ("subject", "name"),
    [("auth0|ann", "auth0|ann"), (None, None), (7, None), ("a\nb", None), ("x" * 129, None)],
)
def test_a_caller_is_called_what_the_issuer_calls_it(subject, name):
    told = b"Bearer " + token(sub=subject).encode()
    assert Tokens().access.caller(told).name == name


def test_who_is_refused_is_not_remembered():
    tokens = Tokens()
    refused(tokens, token(aud="billing"))
    assert not tokens.tokens._known


def test_a_caller_is_known_by_its_tenant_once_its_token_was_verified():
    tokens = Tokens()
    told = b"Bearer " + token().encode()
    assert tokens.access.known_as(told, "at 10.0.0.1") == "at 10.0.0.1"
    tokens.access.caller(told)
    assert tokens.access.known_as(told, "at 10.0.0.1") == "acme"


def test_without_any_keys_nobody_is_told_that_its_token_is_wrong():
    with pytest.raises(IssuerUnreachable):
        Tokens(published=Published()).caller(token())
    assert issubclass(InvalidToken, Unauthorized)


@pytest.mark.parametrize(
    ("told", "roles"),
    [
        (None, ("caller",)),
        ("caller", ("caller",)),
        ("viewer", ("viewer",)),
        ("admin", ("caller", "viewer", "admin")),
        (["viewer", "caller", "offline_access"], ("caller", "viewer")),
        (["offline_access"], ("caller",)),
        ({"admin": True}, ("caller",)),
        ([["admin"], 7], ("caller",)),
    ],
    ids=str,
)
async def test_a_claim_says_which_roles_a_token_has(told, roles):
    tokens = Tokens(role_claim="realm_access.roles")
    shown = b"Bearer " + token(realm_access={"roles": told}).encode()
    found = await tokens.access.operator(shown, roles[-1]) if "viewer" in roles else None
    assert (found or tokens.access.caller(shown)).roles == roles


async def test_roles_may_be_called_otherwise_at_the_issuer():
    tokens = Tokens(role_claim="groups", roles={"llm-ops": "admin", "sre": "viewer"})
    admin = await tokens.access.operator(b"Bearer " + token(groups="llm-ops").encode(), "admin")
    assert "admin" in admin.roles
    with pytest.raises(NotAllowed, match="needs the role viewer; the key or token has caller"):
        await tokens.access.operator(b"Bearer " + token(groups=["admin"]).encode(), "viewer")
    with pytest.raises(NotAllowed, match="needs the role caller; the key or token has viewer"):
        tokens.caller(token(groups="sre"))


async def test_without_a_claim_for_roles_every_token_is_a_callers_and_operators_are_not_asked():
    tokens = Tokens()
    assert tokens.caller(token(roles=["admin"])).roles == ("caller",)
    assert (await tokens.access.operator(None, "admin")).tenant == "default"


_JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=8),
    lambda each: st.lists(each, max_size=3) | st.dictionaries(st.text(max_size=5), each),
    max_leaves=8,
)
_CLAIMS = st.dictionaries(
    st.sampled_from(["iss", "aud", "exp", "nbf", "iat", "sub", "tenant", "app", "class", "role"]),
    _JSON | st.sampled_from([ISSUER, "kairos", NOW_S + 60, "batch", "admin", ["viewer"]]),
)


@given(_CLAIMS, st.booleans())
def test_whatever_claims_are_signed_they_let_a_caller_in_or_say_why_not(claims, is_whole):
    tokens = Tokens(KEYS["EdDSA"], app_claim="app", class_claim="class", role_claim="role")
    told = signed(CLAIMS | claims if is_whole else claims, KEYS["EdDSA"], "EdDSA")
    try:
        caller = tokens.access.caller(b"Bearer " + told.encode())
    except (Unauthorized, NotAllowed):
        return
    assert is_tenant(caller.tenant)
    assert caller.service_class in SERVICE_CLASSES


@given(st.binary(max_size=200), st.binary(max_size=200), st.binary(max_size=80))
def test_whatever_is_shown_in_the_form_of_a_token_is_refused(head, claims, signature):
    parts = (encoded(head), encoded(claims), encoded(signature))
    for told in (b".".join(parts), head + b"." + claims + b"." + signature):
        with pytest.raises(Unauthorized):
            Tokens(KEYS["EdDSA"]).access.caller(b"Bearer " + told)

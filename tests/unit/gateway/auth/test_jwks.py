"""What is read of an issuer's keys."""

import json

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from kairos.gateway.auth.jwks import MAX_KEYS, Unfetched, signing_keys
from tests.support.issuer import encoded, new_key

RSA, P256, ED = new_key("RS256", "r"), new_key("ES256", "e"), new_key("EdDSA", "d")


def document(*keys):
    return json.dumps({"keys": list(keys)}).encode()


def public(key, **given):
    told = key.as_dict(private=False) | given
    return {name: value for name, value in told.items() if value is not None}


def kinds(*keys):
    return [(each.kid, each.kind) for each in signing_keys(document(*keys))]


def test_keys_of_each_kind_are_read():
    assert kinds(public(RSA), public(P256), public(ED)) == [
        ("r", "RSA"),
        ("e", "P-256"),
        ("d", "Ed25519"),
    ]


@pytest.mark.parametrize(
    "other",
    [
        public(RSA, use="enc"),
        public(RSA, key_ops=["encrypt"]),
        {"kty": "oct", "k": "c2VjcmV0LXNlY3JldC1zZWNyZXQ", "kid": "x"},
        {"kty": "RSA", "kid": "x"},
        {"kty": "EC", "crv": "secp256k1", "x": "AA", "y": "AA"},
        {"kty": "OKP", "crv": "X25519", "x": "AA"},
        {"kty": "RSA", "n": 7, "e": []},
        {"kty": ["RSA"]},
        public(P256, y="AAAA"),
        public(RSA, kid=7),
        public(RSA, alg=["RS256"]),
        public(RSA, key_ops=7),
        public(RSA, use=[]),
        "key",
        None,
    ],
    ids=range(15),
)
def test_what_is_no_key_to_verify_with_is_passed_over(other):
    assert kinds(other, public(P256)) == [("e", "P-256")]


@pytest.mark.parametrize("bits", [1024, 2040])
def test_a_short_rsa_key_is_passed_over(bits):
    numbers = rsa.generate_private_key(65537, bits).public_key().public_numbers()
    n = encoded(numbers.n.to_bytes(bits // 8, "big")).decode()
    assert kinds({"kty": "RSA", "n": n, "e": "AQAB"}, public(P256)) == [("e", "P-256")]


def test_a_private_key_that_is_published_is_kept_as_a_public_one():
    [key] = signing_keys(document(RSA.as_dict(private=True)))
    assert not key.key.is_private


@pytest.mark.parametrize(
    ("told", "problem"),
    [
        (b"", "is not JSON"),
        (b"<html>", "is not JSON"),
        (b"\xff", "is not JSON"),
        (b"[" * 60_000, "is not JSON"),
        (b"[]", "no list of 'keys'"),
        (b'{"keys": {}}', "no list of 'keys'"),
        (b'{"keys": []}', "none of its keys can be used"),
        (document(*[public(P256)] * (MAX_KEYS + 1)), "has 65 keys"),
    ],
    ids=range(8),
)
def test_what_is_no_set_of_keys_is_refused_as_a_whole(told, problem):
    with pytest.raises(Unfetched, match=problem):
        signing_keys(told)


def test_a_key_is_for_its_own_algorithms():
    [rsa] = signing_keys(document(public(RSA)))
    [bound] = signing_keys(document(public(RSA, alg="PS256")))
    [ed] = signing_keys(document(public(ED, alg="Ed25519")))
    assert [rsa.is_for("r", alg) for alg in ("RS256", "PS512", "ES256", "HS256", "none")] == [
        *(True, True, False, False, False)
    ]
    assert [bound.is_for("r", alg) for alg in ("RS256", "PS256")] == [False, True]
    assert [ed.is_for("d", alg) for alg in ("EdDSA", "Ed25519", "RS256")] == [True, True, False]
    assert not rsa.is_for("another", "RS256")
    assert rsa.is_for(None, "RS256")

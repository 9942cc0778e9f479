"""API keys and the tenants that they stand for."""

from datetime import UTC, datetime, timedelta
from hashlib import sha256

import pytest

from kairos.core import Unauthorized
from kairos.gateway import Access
from kairos.request import Caller
from kairos.settings import KeySettings

KEY = "kai-8b1f0c"
ACCESS = Access(
    [
        KeySettings(sha256=sha256(KEY.encode()).hexdigest(), tenant="acme"),
        KeySettings(sha256=sha256(b"kai-other").hexdigest(), tenant="umbrella", app="billing"),
    ]
)


@pytest.mark.parametrize("authorization", [None, b"", b"Bearer anything", b"Basic eDp5"])
def test_without_keys_everybody_is_let_in_as_one_tenant(authorization):
    assert Access([]).caller(authorization).tenant == "default"


@pytest.mark.parametrize(
    ("authorization", "tenant"),
    [
        (b"Bearer kai-8b1f0c", "acme"),
        (b"bearer kai-8b1f0c", "acme"),
        (b"BEARER  kai-8b1f0c ", "acme"),
        (b"Bearer kai-other", "umbrella"),
    ],
)
def test_a_key_lets_its_tenant_in(authorization, tenant):
    assert ACCESS.caller(authorization).tenant == tenant


def test_a_key_may_be_for_one_app():
    digests = [sha256(each).hexdigest()[:8] for each in (b"kai-other", KEY.encode())]
    assert ACCESS.caller(b"Bearer kai-other") == Caller("umbrella", "billing", name=digests[0])
    assert ACCESS.caller(b"Bearer kai-8b1f0c") == Caller("acme", name=digests[1])


@pytest.mark.parametrize(
    "authorization", [None, b"", b"Bearer", b"Bearer ", b"kai-8b1f0c", b"Basic kai-8b1f0c", b"\xff"]
)
def test_a_request_without_a_bearer_token_is_told_to_send_one(authorization):
    with pytest.raises(Unauthorized, match=r"^send an API key: 'Authorization: Bearer KEY'"):
        ACCESS.caller(authorization)


@pytest.mark.parametrize(
    "token",
    [
        b"kai-8b1f0",
        b"kai-8b1f0c x",
        b"KAI-8B1F0C",
        sha256(KEY.encode()).hexdigest().encode(),
        b"acme",
        b"\xff\xfe",
        b"  ",
    ],
)
def test_any_other_token_is_refused_and_not_repeated(token):
    with pytest.raises(Unauthorized, match=r"^this API key is not known here$"):
        ACCESS.caller(b"Bearer " + token)


def test_later_changes_of_the_callers_table_let_nobody_in():
    keys = [KeySettings(sha256=sha256(b"one").hexdigest(), tenant="acme")]
    access = Access(keys)
    keys.append(KeySettings(sha256=sha256(b"two").hexdigest(), tenant="umbrella"))

    with pytest.raises(Unauthorized):
        access.caller(b"Bearer two")


def test_keys_can_be_changed_and_only_the_new_ones_count():
    one, two = [
        KeySettings(sha256=sha256(each).hexdigest(), tenant="acme") for each in (b"one", b"two")
    ]
    access = Access([one])
    access.change_keys([two])

    assert access.caller(b"Bearer two").tenant == "acme"
    with pytest.raises(Unauthorized):
        access.caller(b"Bearer one")


@pytest.mark.parametrize(
    ("access", "authorization", "name"),
    [
        (ACCESS, b"Bearer kai-8b1f0c", "acme"),
        (ACCESS, b"Bearer wrong", "at 10.0.0.1"),
        (ACCESS, None, "at 10.0.0.1"),
        (Access([]), b"Bearer kai-8b1f0c", "at 10.0.0.1"),
    ],
)
def test_a_caller_is_its_tenant_once_it_shows_a_key_and_its_address_else(
    access, authorization, name
):
    assert access.known_as(authorization, "at 10.0.0.1") == name


NOON = datetime(2027, 1, 31, 12, tzinfo=UTC)
EXPIRING = KeySettings(sha256=sha256(b"kai-old").hexdigest(), tenant="acme", expires=NOON)
LASTING = KeySettings(sha256=sha256(b"kai-new").hexdigest(), tenant="acme")
MICROSECOND = timedelta(microseconds=1)


def clock(offset):
    """So far from noon."""
    return lambda: (NOON - datetime(1970, 1, 1, tzinfo=UTC) + offset) // MICROSECOND


@pytest.mark.parametrize("before", [MICROSECOND, timedelta(days=900)])
def test_a_key_is_let_in_until_it_expires(before):
    access = Access([EXPIRING], now=clock(-before))
    assert access.caller(b"Bearer kai-old").tenant == "acme"


@pytest.mark.parametrize("after", [timedelta(0), MICROSECOND, timedelta(days=900)])
def test_from_then_on_it_is_refused_and_told_so(after):
    access = Access([EXPIRING, LASTING], now=clock(after))
    with pytest.raises(Unauthorized, match=r"^this API key has expired$") as refused:
        access.caller(b"Bearer kai-old")
    assert refused.value.status == 401
    assert access.caller(b"Bearer kai-new").tenant == "acme"
    assert access.known_as(b"Bearer kai-old", "at 10.0.0.1") == "at 10.0.0.1"


def test_it_is_the_clock_at_the_call_that_counts_and_that_of_the_world_by_default():
    now = [0]
    access = Access([EXPIRING], now=lambda: now[0])
    access.caller(b"Bearer kai-old")
    now[0] = 2**62
    with pytest.raises(Unauthorized):
        access.caller(b"Bearer kai-old")

    for hours, is_let_in in ((-1, False), (1, True)):
        expires = datetime.now(UTC) + timedelta(hours=hours)
        access = Access([KeySettings(sha256=EXPIRING.sha256, tenant="acme", expires=expires)])
        assert (access.known_as(b"Bearer kai-old", "nobody") == "acme") is is_let_in


def test_a_key_that_does_not_expire_is_not_worth_a_look_at_the_clock():
    def broken():
        raise AssertionError

    assert Access([EXPIRING, LASTING], now=broken).caller(b"Bearer kai-new").tenant == "acme"


def test_keys_that_have_all_expired_open_nothing():
    access = Access([EXPIRING], now=lambda: 2**62)
    assert not access.is_open
    with pytest.raises(Unauthorized):
        access.caller(None)


def test_where_a_key_is_needed_nobody_is_let_in_while_there_is_none():
    access = Access([], needed=True)
    assert not access.is_open
    for authorization in (None, b"Bearer kai-new"):
        with pytest.raises(Unauthorized):
            access.caller(authorization)
    assert access.known_as(b"Bearer kai-new", "at 10.0.0.1") == "at 10.0.0.1"
    access.change_keys([LASTING], needed=True)
    assert access.caller(b"Bearer kai-new").tenant == "acme"
    access.change_keys([])
    assert access.is_open
    assert access.caller(None).tenant == "default"

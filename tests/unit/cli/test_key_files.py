"""Keys are made, revoked and rotated, and a file is changed whole or not at all."""

import fcntl
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from hashlib import sha256

import pytest

from kairos.cli import keys
from kairos.core import SECOND, SetupError, Unauthorized
from kairos.gateway import Access
from kairos.request import Caller, NotAllowed
from kairos.settings import read_keys

NOW = datetime(2026, 11, 25, 12, tzinfo=UTC)
NOW_US = int(NOW.timestamp()) * SECOND
DAY = timedelta(days=1)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "keys.toml"


@pytest.fixture
def made(path):
    """`made(...)` makes a key in the file, and gives the key itself."""

    def create(tenant="acme", **given):
        told = []
        keys.create_key(path, tenant, told.append, **{"now_us": NOW_US} | given)
        (secret,) = told
        return secret

    return create


def bearer(secret):
    return f"Bearer {secret}".encode()


def access(path, at=NOW):
    return Access(read_keys(path), needed=True, now=lambda: int(at.timestamp()) * SECOND)


def files(path):
    return {each.name: each.read_bytes() for each in path.parent.iterdir()}


def test_a_key_is_random_and_its_digest_alone_is_kept(path, made):
    one, two = made(), made(app="qa", name="ci", expires="90d")
    assert one != two
    assert all(each.startswith("kai-") and len(each) == 47 for each in (one, two))
    first, second = read_keys(path)
    assert first.sha256 == sha256(one.encode()).hexdigest()
    assert (first.tenant, first.app, first.name, first.expires) == ("acme", None, None, None)
    assert (second.app, second.name, second.expires) == ("qa", "ci", NOW + 90 * DAY)
    assert first.created == second.created == NOW
    text = path.read_text()
    assert not any(each in text or each[4:] in text for each in (one, two))
    assert text.startswith("# `kairos keys` writes this file again with each change: comments")


def test_a_key_that_was_made_is_let_in_until_it_expires(path, made):
    secret = bearer(made(app="qa", expires="1d"))
    assert access(path).caller(secret) == Caller("acme", "qa", name=read_keys(path)[0].sha256[:8])
    assert access(path, NOW + DAY - timedelta(seconds=1)).caller(secret).tenant == "acme"
    with pytest.raises(Unauthorized, match=r"^this API key has expired$"):
        access(path, NOW + DAY).caller(secret)


def test_a_key_that_was_made_has_its_role(path, made):
    caller, viewer, admin = (made(role=role) for role in ("caller", "viewer", "admin"))
    assert [each.role for each in read_keys(path)] == ["caller", "viewer", "admin"]
    assert path.read_text().count("role = ") == 2  # what is at its default is left out
    assert access(path).caller(bearer(caller)).roles == ("caller",)
    assert access(path).caller(bearer(admin)).roles == ("caller", "viewer", "admin")
    with pytest.raises(NotAllowed, match="needs the role caller; the key or token has viewer"):
        access(path).caller(bearer(viewer))


def test_a_new_file_is_its_owners_alone_and_nothing_is_left_beside_it(path, made):
    made()
    assert path.stat().st_mode & 0o777 == 0o600
    assert set(files(path)) == {"keys.toml", ".keys.toml.lock"}


def test_who_may_read_a_file_may_do_so_still(path, made):
    made()
    path.chmod(0o640)
    made()
    assert path.stat().st_mode & 0o777 == 0o640


def test_a_link_stays_one(path, made, tmp_path):
    (tmp_path / "there").mkdir()
    path.symlink_to(tmp_path / "there" / "real.toml")
    made()
    made()
    assert path.is_symlink()
    assert len(read_keys(tmp_path / "there" / "real.toml")) == 2


def test_a_revoked_key_is_refused_and_the_others_are_not(path, made):
    one, two = made(name="one"), made(name="two")
    assert keys.revoke_key(path, "one").name == "one"
    assert access(path).caller(bearer(two)).tenant == "acme"
    with pytest.raises(Unauthorized, match=r"^this API key is not known here$"):
        access(path).caller(bearer(one))


def test_once_the_last_key_is_revoked_nobody_is_let_in(path, made):
    one = made(name="one")
    keys.revoke_key(path, "one")
    for authorization in (None, bearer(one)):
        with pytest.raises(Unauthorized):
            access(path).caller(authorization)


def test_a_key_without_a_name_is_called_by_its_digest(path, made):
    one, two = made(), made()
    digest = sha256(one.encode()).hexdigest()
    keys.revoke_key(path, digest[:8])
    assert [key.sha256 for key in read_keys(path)] == [sha256(two.encode()).hexdigest()]


def test_after_a_rotation_the_old_key_is_let_in_until_its_grace_ends(path, made):
    before, old = made("other"), made(app="qa", name="ci")
    told = []
    rotated = keys.rotate_key(path, "ci", told.append, now_us=NOW_US + SECOND, grace="2h")
    (new,) = told
    assert new != old
    second, third = read_keys(path)[1:]
    assert (second, third) == rotated
    assert (second.tenant, second.app, second.name, second.expires) == ("acme", "qa", "ci", None)
    assert second.created == NOW + timedelta(seconds=1)
    ends = NOW + timedelta(hours=2, seconds=1)
    assert (third.name, third.created, third.expires) == (None, NOW, ends)
    for at in (NOW, ends - timedelta(seconds=1)):
        assert {access(path, at).caller(bearer(each)) for each in (old, new)} == {
            Caller("acme", "qa", key=each.name, name=each.label) for each in rotated
        }
    assert access(path, ends).caller(bearer(new)) == Caller("acme", "qa", key="ci", name="ci")
    with pytest.raises(Unauthorized, match="has expired"):
        access(path, ends).caller(bearer(old))
    assert access(path, ends).caller(bearer(before)).tenant == "other"


def test_without_grace_the_old_key_ends_at_once(path, made):
    old = made(name="ci")
    keys.rotate_key(path, "ci", lambda _: None, now_us=NOW_US, grace="0s")
    with pytest.raises(Unauthorized, match="has expired"):
        access(path).caller(bearer(old))


def test_a_grace_lets_nobody_in_for_longer_than_before(path, made):
    made(name="ci", expires="1d")
    _, old = keys.rotate_key(path, "ci", lambda _: None, now_us=NOW_US, grace="9d")
    assert old.expires == NOW + DAY


def test_the_new_key_lives_as_long_as_the_old_one_was_to_or_as_is_said(path, made):
    made(name="ci", expires="30d")
    later = NOW_US + 20 * 86_400 * SECOND
    new, _ = keys.rotate_key(path, "ci", lambda _: None, now_us=later)
    assert new.expires == NOW + 50 * DAY
    new, _ = keys.rotate_key(path, "ci", lambda _: None, now_us=later, expires="2027-12-31")
    assert new.expires == datetime(2027, 12, 31, tzinfo=UTC)


def test_for_how_long_the_new_key_lives_must_be_said_where_the_old_one_does_not(path, made):
    made(name="ci", expires="30d")
    path.write_text(path.read_text().replace("created", "# created"))
    assert said(path, lambda: keys.rotate_key(path, "ci", print, now_us=NOW_US)) == (
        "'ci' expires, and does not say when it was made: say with --expires how long the new key "
        "is to live"
    )


def said(path, act) -> str:
    """Why nothing was changed."""
    before = files(path)
    with pytest.raises(SetupError) as refused:
        act()
    after = files(path)
    after.pop(".keys.toml.lock", None)
    before.pop(".keys.toml.lock", None)
    assert after == before
    return str(refused.value)


def test_a_name_is_given_once(path, made):
    made(name="ci")
    assert said(path, lambda: made(name="ci")) == (
        f"{path}: a key is called 'ci' already; choose another name"
    )
    digits = read_keys(path)[0].sha256[:8]
    made(name=digits)  # which no other key is called by: that one has a name
    unnamed = sha256(made().encode()).hexdigest()[:8]
    assert "already" in said(path, lambda: made(name=unnamed))


def test_of_two_that_are_called_alike_none_is_taken(path, made):
    made(name="x")
    made()
    digits = read_keys(path)[1].label
    path.write_text(path.read_text().replace('"x"', f'"{digits}"'))
    assert said(path, lambda: keys.revoke_key(path, digits)) == (
        f"{path}: 2 keys are called '{digits}'; give each a name there"
    )


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"tenant": "two words"}, "'two words' is not a valid tenant name (letters, digits"),
        ({"app": "two words"}, "'two words' is not a valid app name"),
        ({"name": "two words"}, "'two words' is not a valid key name (letters, digits, _ . -)"),
        ({"expires": "soon"}, "'soon' is not a time to expire at: write a duration"),
        ({"expires": "-1d"}, "'-1d' is not a time to expire at: write a duration"),
        ({"expires": "999999999d"}, "'999999999d' is not a time to expire at: write a duration"),
        ({"expires": "0d"}, "'0d' is not a time to expire at: it has passed"),
        ({"expires": "2026-11-25"}, "'2026-11-25' is not a time to expire at: it has passed"),
        ({"expires": "9999-06-01"}, "a key of tenant 'acme' has an invalid date"),
    ],
)
def test_what_cannot_be_made_is_said_and_changes_nothing(path, made, given, problem):
    made()
    assert said(path, lambda: made(**given)).startswith(problem)


@pytest.mark.parametrize(
    ("text", "instant"),
    [
        ("90s", NOW + timedelta(seconds=90)),
        ("30m", NOW + timedelta(minutes=30)),
        ("24h", NOW + DAY),
        ("2027-01-31", datetime(2027, 1, 31, tzinfo=UTC)),
        ("2027-01-31T12:00", datetime(2027, 1, 31, 12, tzinfo=UTC)),
        ("2027-01-31T12:00+02:00", datetime(2027, 1, 31, 10, tzinfo=UTC)),
        ("2027-01-31T12:00Z", datetime(2027, 1, 31, 12, tzinfo=UTC)),
    ],
)
def test_when_a_key_expires_can_be_said_in_these_ways(path, made, text, instant):
    made(expires=text)
    assert read_keys(path)[0].expires == instant


@pytest.mark.parametrize(
    "text", ["key = [", "port = 1", '[[key]]\nsha256 = "x"\ntenant = "a"\n', "\udcff"]
)
def test_a_broken_file_is_left_as_it_is(path, made, text):
    path.write_bytes(text.encode(errors="surrogateescape"))
    for act in (
        made,
        lambda: keys.revoke_key(path, "ci"),
        lambda: keys.rotate_key(path, "ci", print, now_us=NOW_US),
    ):
        assert str(path) in said(path, act)


def test_a_file_that_others_can_write_is_left_as_it_is(path, made):
    made(name="ci")
    path.chmod(0o666)
    assert "chmod 600" in said(path, made)
    assert "chmod 600" in said(path, lambda: keys.revoke_key(path, "ci"))


def test_what_is_not_there_is_not_changed_and_leaves_no_lock(path, made):
    for act in (
        lambda: keys.revoke_key(path, "ci"),
        lambda: keys.rotate_key(path, "ci", print, now_us=NOW_US),
    ):
        assert "there is no such file of keys" in said(path, act)
    assert files(path) == {}
    made()
    assert said(path, lambda: keys.revoke_key(path, "ci")) == (
        f"{path}: no key is called 'ci'; 'kairos keys list {path}' shows what they are called"
    )


def test_where_there_is_no_directory_it_is_said(tmp_path):
    path = tmp_path / "gone" / "keys.toml"
    with pytest.raises(SetupError, match=r"^cannot write next to .*: No such file or directory$"):
        keys.create_key(path, "acme", print, now_us=NOW_US)


def test_a_loop_of_links_is_said(path, made):
    path.symlink_to(path)
    with pytest.raises(SetupError, match=r"keys\.toml"):
        made()


@pytest.mark.parametrize("what", [KeyboardInterrupt, SetupError("the key cannot be printed")])
def test_a_key_that_nobody_got_is_not_kept(path, made, what):
    made(name="ci")
    before = files(path)

    def fail(_):
        raise what

    kind = what if isinstance(what, type) else type(what)
    with pytest.raises(kind):
        keys.create_key(path, "acme", fail, now_us=NOW_US)
    with pytest.raises(kind):
        keys.rotate_key(path, "ci", fail, now_us=NOW_US)
    assert files(path) == before
    made()  # and the lock is free


def test_two_at_once_lose_nothing(path, made, monkeypatch):
    """The second is held up where it reads, until the first has written."""
    made(name="before")
    begun, waits, go_on = threading.Event(), threading.Event(), threading.Event()
    lock = fcntl.flock

    def wait_for_lock(*what):
        waits.set()
        lock(*what)

    def show(_):
        begun.set()
        assert go_on.wait(60)

    first = threading.Thread(
        target=keys.create_key, args=(path, "first", show), kwargs={"now_us": NOW_US}
    )
    second = threading.Thread(
        target=keys.create_key, args=(path, "second", len), kwargs={"now_us": NOW_US}
    )
    first.start()
    assert begun.wait(60)
    monkeypatch.setattr(fcntl, "flock", wait_for_lock)
    second.start()
    assert waits.wait(60)
    go_on.set()
    for each in (first, second):
        each.join(60)
    assert [key.tenant for key in read_keys(path)] == ["acme", "first", "second"]


def test_many_processes_at_once_lose_nothing(path):
    program = (
        "import sys, pathlib; from kairos.cli import keys\n"
        "path, tenant, now = pathlib.Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])\n"
        "for n in range(8):\n"
        "    keys.create_key(path, tenant, len, now_us=now, name=f'{tenant}-{n}')\n"
    )
    running = [
        subprocess.Popen([sys.executable, "-c", program, path, f"t{n}", str(NOW_US)])
        for n in range(3)
    ]
    assert [each.wait(60) for each in running] == [0, 0, 0]
    assert {key.name for key in read_keys(path)} == {
        f"t{n}-{m}" for n in range(3) for m in range(8)
    }


def test_the_table_shows_what_keys_are_and_no_digest_in_full(path, made):
    made("a", name="ci", expires="1h")
    made("team-b", app="qa", role="viewer")
    first, second = read_keys(path)
    at = NOW_US + 3_600 * SECOND
    one, two = first.sha256[:8], second.sha256[:8]
    made_at, until = "2026-11-25T12:00:00Z", "2026-11-25T13:00:00Z"
    heads, *rows = keys.key_table(read_keys(path), at).splitlines()
    assert heads.split() == [
        "name",
        "tenant",
        "app",
        "role",
        "created",
        "expires",
        "state",
        "sha256",
    ]
    assert rows == [
        f"ci        a       any  caller  {made_at}  {until}  expired  {one}",
        f"{two}  team-b  qa   viewer  {made_at}  never                 active   {two}",
    ]
    assert f"  active  {one}" in keys.key_table([first], at - 1)
    assert keys.key_table([], NOW_US).startswith("name  tenant")

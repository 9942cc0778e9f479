"""Whatever keys a file may have, what is written of them is read as it was."""

import string
import tomllib
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, timezone

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from kairos.settings import KeySettings, key_to_toml, read_keys
from kairos.settings.key_file import KeyFile

plain = string.ascii_letters + string.digits + "_"
digests = st.text("0123456789abcdef", min_size=64, max_size=64)
tenants = st.text(plain + ".-", min_size=1, max_size=64)
apps = st.builds(str.__add__, st.sampled_from(plain), st.text(plain + ".:@/+=-", max_size=127))
names = st.builds(str.__add__, st.sampled_from(plain), st.text(plain + ".-", max_size=63))
zones = st.integers(-23 * 60, 23 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
instants = st.builds(
    datetime.astimezone,
    st.datetimes(
        datetime(2000, 1, 1), datetime(9998, 12, 31, 23, 59, 59, 999_999), timezones=st.just(UTC)
    ),
    st.just(UTC) | zones,
)


def keys(**fields):
    """Of two no digest and no name is the same."""
    made = st.builds(
        KeySettings,
        sha256=digests,
        **{"expires": st.none() | instants, "created": st.none() | instants} | fields,
    )
    apart = (lambda key: key.sha256, lambda key: key.name or key.sha256)
    return st.lists(made, max_size=5, unique_by=apart).map(tuple)


@given(keys(tenant=tenants, app=st.none() | apps, name=st.none() | names))
def test_keys_are_read_as_they_were_written(tmp_path_factory, written):
    path = tmp_path_factory.getbasetemp() / "keys.toml"
    path.write_text(key_to_toml(written))
    path.chmod(0o600)
    assert read_keys(path) == written


@given(keys(tenant=st.text(), app=st.none() | st.text(), name=st.none() | st.text()))
def test_so_is_any_text(written):
    """Also such as no name may have: no text ends its string and begins another key."""
    assert msgspec.convert(tomllib.loads(key_to_toml(written)), KeyFile).key == written


class _More(KeySettings, frozen=True, kw_only=True):
    """As keys may have one day."""

    words: tuple[str, ...] = ()
    number: int | None = None
    ratio: float = 1.0
    yes: bool = False
    table: Mapping[str, int] = {}


class _MoreKeys(msgspec.Struct):
    key: tuple[_More, ...] = ()


@given(
    st.lists(
        st.builds(
            _More,
            sha256=digests,
            tenant=tenants,
            words=st.lists(st.text()).map(tuple),
            number=st.none() | st.integers(-(2**63), 2**63 - 1),
            ratio=st.floats(allow_nan=False),
            yes=st.booleans(),
            table=st.dictionaries(st.text(), st.integers(0, 9)),
        )
    ).map(tuple)
)
def test_so_are_other_fields(written):
    assert msgspec.convert(tomllib.loads(key_to_toml(written)), _MoreKeys).key == written

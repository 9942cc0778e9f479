"""The file of keys: what may stand in it, and what is said of one that is wrong."""

import os
from datetime import UTC, datetime

import pytest

from kairos.core import InvalidFile, SetupError
from kairos.settings import KeySettings, key_to_toml, load_settings, read_keys
from kairos.settings.tenants import TenantSettings

DIGEST, OTHER = "0123456789abcdef" * 4, "f" * 64
NEW_YEAR = datetime(2027, 1, 1, tzinfo=UTC)
KEY = f'[[key]]\nsha256 = "{DIGEST}"\ntenant = "acme"\n'


@pytest.fixture
def file(tmp_path):
    """`file(TEXT)` writes it; and where it is."""
    path = tmp_path / "keys.toml"

    def write(text, mode=0o600):
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        path.chmod(mode)
        return path

    return write


def problem(path) -> str:
    with pytest.raises(InvalidFile) as refused:
        read_keys(path)
    assert str(refused.value).startswith(f"{path}: ")
    return str(refused.value).removeprefix(f"{path}: ")


@pytest.mark.parametrize("text", ["", "# no keys\n", "key = []"])
def test_a_file_may_have_no_keys(file, text):
    assert read_keys(file(text)) == ()


def test_a_settings_file_takes_the_same_dates(file):
    (key,) = load_settings(file(f"{KEY}expires = 2027-01-01"), {}, {}).key
    assert key.expires == NEW_YEAR


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("key = 7", "Expected `array`, got `int` - at `$.key`; it may have [[key]] tables alone"),
        ("key = [7]", "Expected `object`, got `int` - at `$.key[0]`; it may have"),
        ("port = 1", "Object contains unknown field `port`; it may have [[key]] tables alone"),
        (KEY + "rights = 1", "unknown field `rights` - at `$.key[0]`"),
        (KEY + "expires = 7", "Expected `datetime | null`, got `int` - at `$.key[0].expires`"),
        (KEY + "expires = 07:00:00", "Expected `datetime | null`"),
        (KEY + "expires = 2027-02-30", "not TOML: Invalid date or datetime"),
        ("key = [", "not TOML: Invalid value (at end of document)"),
        ("a = " + "[" * 5_000, "not TOML: nested too deeply"),
        (b"\xff", "not TOML: 'utf-8' codec can't decode"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(file, text, said):
    assert said in problem(file(text))


def refusal(path) -> str:
    with pytest.raises(SetupError) as refused:
        read_keys(path)
    return str(refused.value)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ('name = "a b"', "'a b' is not a valid key name (letters, digits, _ . -)"),
        ('name = "-x"', "'-x' is not a valid key name (letters, digits, _ . -)"),
        ('name = ""', "'' is not a valid key name (letters, digits, _ . -)"),
        ('app = "a b"', "'a b' is not a valid app name"),
        (
            "expires = 1999-12-31",
            "a key of tenant 'acme' has an invalid date: years are 2000 to 9998",
        ),
        (
            "created = 9999-12-31T23:59:59-12:00",
            "a key of tenant 'acme' has an invalid date: years are 2000 to 9998",
        ),
    ],
)
def test_what_is_wrong_with_a_key_is_said_with_its_file(file, fields, said):
    path = file(KEY + fields)
    assert refusal(path) == f"{path}: {said}"


def test_two_keys_have_two_names(file):
    path = file(f'{KEY}name = "ci"\n{KEY.replace(DIGEST, OTHER)}name = "ci"\n')
    assert refusal(path) == f"{path}: two keys are called 'ci'"


def test_what_is_in_place_of_a_digest_is_not_repeated(file):
    path = file(KEY.replace(DIGEST, "kai-secret"))
    assert "kai-secret" not in refusal(path)


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_that_others_can_write_is_refused(file, mode):
    path = file(KEY, mode)
    assert problem(path) == f"others can write it, and add keys: 'chmod 600 {path}'"


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o444])
def test_others_may_read_it_as_it_has_digests_alone(file, mode):
    assert len(read_keys(file(KEY, mode))) == 1


def test_what_is_no_file_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe", 0o600)
    assert problem(tmp_path / "pipe") == "this is not a regular file"
    assert problem(tmp_path) == "this is not a regular file"


def test_settings_have_the_keys_of_both_files(tmp_path, file):
    path = file(KEY)
    settings = tmp_path / "kairos.toml"
    settings.write_text(f'keys_path = "{path}"\n{KEY.replace(DIGEST, OTHER)}')
    assert [key.sha256 for key in load_settings(settings, {}, {}).key] == [OTHER, DIGEST]
    assert [key.sha256 for key in load_settings(None, {"KAIROS_KEYS_PATH": str(path)}, {}).key] == [
        DIGEST
    ]

    settings.write_text(f'keys_path = "{path}"\n{KEY}')
    with pytest.raises(SetupError, match="the same key is given twice"):
        load_settings(settings, {}, {})


def test_with_a_file_of_keys_a_key_is_asked_for_even_if_there_is_none(file):
    assert not load_settings(None, {}, {}).asks_for_keys
    assert load_settings(
        None, {}, {"key": [KeySettings(sha256=DIGEST, tenant="acme")]}
    ).asks_for_keys
    assert load_settings(None, {}, {"keys_path": str(file(""))}).asks_for_keys


def test_a_tenant_whose_last_key_was_revoked_keeps_no_settings_from_being_read(file):
    tenants = [TenantSettings(name="acme", weight=2)]
    assert load_settings(None, {}, {"keys_path": str(file("")), "tenant": tenants}).key == ()


def test_what_is_at_its_default_is_not_written():
    assert key_to_toml([KeySettings(sha256=DIGEST, tenant="acme")]).partition("\n")[2] == f"\n{KEY}"

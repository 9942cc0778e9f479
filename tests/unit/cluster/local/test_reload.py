"""What becomes of settings that are read again."""

import json
import logging

import pytest

from kairos.cluster import Reload
from kairos.core import InvalidRequest, SetupError
from kairos.gateway import Reread
from kairos.observe import open_audit_log
from kairos.settings import EngineSettings, KeySettings, Settings

ENGINE, OTHER = EngineSettings(url="http://a:1"), EngineSettings(url="http://b:2")
KEY = KeySettings(sha256="0" * 64, tenant="acme")


class Reloaded:
    """Engines and keys can change; the rest cannot."""

    def __init__(self, audit=None):
        self.changed = []
        changes = {
            "engine": lambda settings: self.changed.append(settings.engine),
            "key": lambda settings: self.changed.append(settings.key),
        }
        self._reload = Reload(Settings(engine=(ENGINE,)), changes, audit)

    def read(self, **given):
        """What was changed for these settings."""
        self.changed.clear()
        self._reload(lambda: Settings(**{"engine": (ENGINE,)} | given))
        return list(self.changed)

    def fail(self, message):
        self.changed.clear()
        self._reload(lambda: self._raise(message))
        return list(self.changed)

    def _raise(self, message):
        raise SetupError(message)


@pytest.fixture
def reloaded():
    return Reloaded()


@pytest.fixture
def said(caplog):
    """The log since it was asked last."""
    caplog.set_level(logging.INFO, "kairos.cluster.local.reload")

    def since():
        lines = [record.getMessage() for record in caplog.records]
        caplog.clear()
        return lines

    return since


def test_what_can_change_does_and_is_named(reloaded, said):
    assert reloaded.read(engine=(OTHER,), key=(KEY,)) == [(OTHER,), (KEY,)]
    assert said() == ["the settings were read again; changed: engine, key"]


def test_what_is_as_it_was_is_left_alone_but_engines_are_put_right(reloaded, said):
    assert reloaded.read() == [(ENGINE,)]
    assert said() == ["the settings were read again; changed: nothing"]


def test_what_has_changed_once_is_compared_with_that(reloaded, said):
    reloaded.read(key=(KEY,))
    said()
    assert reloaded.read(key=(KEY,)) == [(ENGINE,)]
    assert said() == ["the settings were read again; changed: nothing"]
    assert reloaded.read() == [(ENGINE,), ()]


def test_what_cannot_change_is_named_each_time_and_the_rest_is_applied(reloaded, said):
    for _ in range(2):
        assert reloaded.read(port=9, policy="fcfs", kafka={"a": "secret"}) == [(ENGINE,)]
        assert said() == [
            "the settings were read again; changed: nothing",
            "needs a restart, and stays as it was: port, policy, kafka",
        ]


def test_files_of_tls_are_read_again_under_the_same_names():
    settings, told = Settings(tls_certificate="a.crt", tls_key="a.key"), []
    Reload(settings, {"tls_certificate": told.append, "tls_key": told.append})(lambda: settings)
    assert told == [settings]


def test_settings_that_are_wrong_change_nothing_and_say_why(reloaded, said):
    assert reloaded.fail("port 70000 is not a port") == []
    assert said() == ["the settings stay as they are: port 70000 is not a port"]
    assert reloaded.read(key=(KEY,)) == [(ENGINE,), (KEY,)]


def test_each_reading_is_in_the_audit_log(tmp_path):
    path = tmp_path / "audit.jsonl"
    with open_audit_log(str(path)) as audit:
        reloaded = Reloaded(audit)
        reloaded.read(key=(KEY,))
        reloaded.read(key=(KEY,))
        reloaded.fail("port 70000 is not a port")
    told = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(each["what"], each["target"], each.get("message")) for each in told[:2]] == [
        ("reload", "key", None),
        ("reload", "nothing", None),
    ]
    assert told[2]["message"] == "port 70000 is not a port"


def test_read_again_from_the_same_files_it_tells_what_came_of_it():
    reload = Reload(Settings(), {"key": lambda _: None})
    with pytest.raises(InvalidRequest, match="there is nothing to read again"):
        reload.again()
    reload.load = lambda: Settings(key=(KEY,), port=9)
    assert reload.again() == Reread(changed=["key"], needs_restart=["port"], problem=None)
    reload.load = _broken
    assert reload.again().problem == "no such port"


def _broken():
    raise SetupError("no such port")

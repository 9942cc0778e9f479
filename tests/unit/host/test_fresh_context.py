"""A context that is made anew when its files change."""

import logging
import shutil
from datetime import UTC, datetime, timedelta

import pytest

from kairos.core import SetupError
from kairos.host import FreshContext
from kairos.host.fresh_context import LOOK_S
from kairos.settings import TlsFiles, server_context
from tests.support.certificates import Authority


class Time:
    def __init__(self):
        self.now_s = 100.0

    def __call__(self):
        return self.now_s

    def passes(self):
        self.now_s += LOOK_S


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path)


@pytest.fixture
def time():
    return Time()


@pytest.fixture
def said(caplog):
    caplog.set_level(logging.INFO)

    def new():
        found = [record.getMessage() for record in caplog.records]
        caplog.clear()
        return found

    return new


def fresh(files, time):
    return FreshContext("the port", files, server_context, time)


def test_files_that_changed_are_read_at_the_next_look_and_not_before(authority, time, said):
    files = authority.issue()
    context = fresh(files, time)
    first = context()
    authority.issue()
    assert context() is first
    time.passes()
    assert context() is not first
    assert said() == [f"the port: TLS uses what was read of {files.certificate}, {files.key}"]


def test_files_of_no_use_change_nothing_and_are_told_once(authority, time, said):
    files = authority.issue()
    context = fresh(files, time)
    first = context()
    whole = authority.issue("other")
    shutil.copy(whole.certificate, files.certificate)  # its key comes later
    for _ in range(3):
        time.passes()
        assert context() is first
    [told] = said()
    assert told.startswith("the port: TLS keeps the last valid files: ")
    assert "server.key: the key is not that of the certificate" in told

    shutil.copy(whole.key, files.key)
    time.passes()
    assert context() is not first
    assert len(said()) == 1


def test_files_that_are_gone_change_nothing(authority, time, said):
    files = authority.issue()
    context = fresh(files, time)
    first = context()
    files.paths[0].unlink()
    time.passes()
    assert context() is first
    assert "No such file" in said()[0]
    authority.issue()
    time.passes()
    assert context() is not first


def test_one_that_expired_is_told_and_used(authority, time, said):
    long_ago = datetime.now(UTC) - timedelta(days=9)
    context = fresh(authority.issue(begins=long_ago, days=1), time)
    [told] = said()
    assert told.startswith("the port: ")
    assert "the certificate expired on" in told
    authority.issue()
    time.passes()
    context()
    assert len(said()) == 1  # that it was read


def test_it_begins_with_files_that_can_be_used(authority, time):
    with pytest.raises(SetupError):
        fresh(TlsFiles("none.crt", "none.key"), time)

"""A context that is made anew when its files change."""

import logging
import os
import shutil
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from kairos.errors import SetupError
from kairos.live.process.fresh_context import LOOK_S, FreshContext
from kairos.tls_settings import TlsFiles, server_context
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


def test_it_stays_the_same_while_nothing_changes(authority, time, said):
    context = fresh(authority.issue(), time)
    first = context()
    for _ in range(3):
        time.passes()
        assert context() is first
    assert said() == []


def test_files_that_changed_are_read_at_the_next_look_and_not_before(authority, time, said):
    files = authority.issue()
    context = fresh(files, time)
    first = context()
    authority.issue()
    assert context() is first
    time.passes()
    assert context() is not first
    assert said() == [f"the port: TLS uses what was read of {files.certificate}, {files.key}"]


@pytest.mark.parametrize("is_link", [False, True])
def test_a_file_that_is_put_in_anothers_place_has_changed(authority, time, tmp_path, is_link):
    old, new = authority.issue("old"), authority.issue("new")
    for path in (new.certificate, new.key):  # of the same age and size, perhaps
        os.utime(path, ns=(0, 0))
    used = TlsFiles(str(tmp_path / "used.crt"), str(tmp_path / "used.key"))
    pairs = list(zip((old.certificate, old.key), used.paths, strict=True))
    for path, at in pairs:
        os.utime(path, ns=(0, 0))
        at.symlink_to(path) if is_link else shutil.copy2(path, at)
    context = fresh(used, time)
    first = context()
    for path, at in zip((new.certificate, new.key), used.paths, strict=True):
        at.unlink()
        at.symlink_to(path) if is_link else Path(path).replace(at)
    time.passes()
    assert context() is not first


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
    assert told.startswith("the port: TLS goes on with its files as they were before: ")
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


def test_other_files_are_used_at_once(authority, time):
    context = fresh(authority.issue(), time)
    assert context().verify_mode is ssl.CERT_NONE
    other = authority.issue("other")
    context.use(TlsFiles(other.certificate, other.key, authority.ca))
    assert context().verify_mode is ssl.CERT_REQUIRED


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

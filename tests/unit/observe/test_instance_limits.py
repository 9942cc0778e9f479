"""The limits of instances that joined in files of the log that are gone."""

import stat

import pytest

from kairos.core import FirstToken, InstanceJoined, Record
from kairos.observe import FactLog, fact_log, read_limits
from kairos.observe.fact_log import InstanceLimits
from tests.support.simulate import build

FILE = "instances.json"


def joins(name, **limits):
    return Record(0, InstanceJoined(build.instance(name, **limits)))


def write(directory, *records, max_files=2):
    log = FactLog(directory, file_bytes=1, max_files=max_files)
    for record in records:
        log(record)
        log.flush()
    log.close()


OTHERS = [Record(n, FirstToken("r")) for n in range(3)]


def test_a_log_that_is_whole_needs_no_such_file(tmp_path):
    write(tmp_path, joins("a"), *OTHERS, max_files=16)
    assert not (tmp_path / FILE).exists()
    assert read_limits(tmp_path) == []


def test_once_the_oldest_files_are_gone_the_last_limits_are_kept(tmp_path):
    write(tmp_path, joins("a"), joins("b"), joins("a", seqs=9), *OTHERS)

    assert read_limits(tmp_path) == [build.instance("b"), build.instance("a", seqs=9)]
    assert stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600


def test_a_restart_keeps_what_the_process_before_it_knew(tmp_path):
    write(tmp_path, joins("a"), *OTHERS)
    write(tmp_path, joins("b"), max_files=16)
    assert [each.id for each in read_limits(tmp_path)] == ["a", "b"]


def test_a_restart_that_drops_the_file_keeps_what_joins_after_it(tmp_path):
    write(tmp_path, joins("a"), OTHERS[0], max_files=2)
    assert read_limits(tmp_path) == []
    write(tmp_path, joins("a"), max_files=2)
    assert [each.id for each in read_limits(tmp_path)] == ["a"]


def test_of_too_many_instances_those_told_of_last_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(fact_log, "_MOST", 2)
    write(tmp_path, joins("a"), joins("b"), joins("a"), joins("c"), *OTHERS)
    assert [each.id for each in read_limits(tmp_path)] == ["a", "c"]


def test_nothing_is_written_where_nothing_is_new(tmp_path):
    write(tmp_path, joins("a"), *OTHERS)
    before = (tmp_path / FILE).stat().st_ino
    write(tmp_path, *OTHERS)
    assert (tmp_path / FILE).stat().st_ino == before


@pytest.mark.parametrize("content", [b"", b"[{}]", b"\xff", b"{}"])
def test_a_damaged_file_is_none(tmp_path, content):
    (tmp_path / FILE).write_bytes(content)
    assert read_limits(tmp_path) == []


def test_a_file_that_cannot_be_written_is_said_once_and_written_later(tmp_path, caplog):
    directory = tmp_path / "later"
    limits = InstanceLimits(directory)
    limits.is_needed = True
    limits.record_limits(build.instance("a"))
    limits.write()
    limits.write()
    assert [record.message[:43] for record in caplog.records] == [
        "the limits of instances cannot be saved: ca"
    ]
    directory.mkdir()
    limits.write()
    assert [each.id for each in read_limits(directory)] == ["a"]

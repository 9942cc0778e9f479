"""The log of facts on disk: what goes in comes out, and it stays within its bounds."""

import os
import resource
import stat
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kairos.core import (
    Arrived,
    Cancelled,
    Dispatch,
    Failed,
    Finished,
    FirstToken,
    InstanceJoined,
    InstanceLeft,
    InvalidFile,
    Record,
    Refuse,
    Started,
    WorkflowEnded,
)
from kairos.observe import FactLog, note_start, read_facts, read_recent
from tests.support.simulate import build


def records(count: int) -> list[Record]:
    return [Record(n, FirstToken(f"r{n:05d}"), (Dispatch(f"r{n}", "a"),)) for n in range(count)]


LINE_BYTES = len(msgspec.json.encode(records(1)[0])) + 1  # of such a record with n < 10


def write(directory: Path, *written: Record, **bounds: int) -> None:
    log = FactLog(directory, **bounds)
    for record in written:
        log(record)
        log.flush()
    log.close()


def files(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


names = st.text(st.characters(codec="utf-8"), max_size=8)
counts = st.none() | st.integers(0, 2**48)
facts = st.one_of(
    st.builds(Arrived, st.builds(build.request, names, at=st.integers(0, 2**62), agent=names)),
    st.builds(FirstToken, names),
    st.builds(Finished, names, counts, counts, counts),
    st.builds(Failed, names, names),
    st.builds(Cancelled, names),
    st.builds(InstanceJoined, st.builds(build.instance, names, models=st.lists(names), kv=counts)),
    st.builds(InstanceLeft, names),
    st.builds(WorkflowEnded, names, names),
)
commands = st.builds(Dispatch, names, names) | st.builds(Refuse, names, st.none() | names)
histories = st.lists(
    st.builds(Record, st.integers(0, 2**62), facts, st.lists(commands, max_size=3).map(tuple))
)


@given(histories, histories)
def test_what_is_written_is_read_back_equal_across_a_restart(first, second):
    with TemporaryDirectory() as directory:
        write(Path(directory), *first)
        write(Path(directory), *second)

        assert list(read_facts(Path(directory))) == first + second
        assert files(Path(directory)) == ["facts-000001.jsonl", "facts-000002.jsonl"]


def test_records_are_readable_once_flushed_and_not_written_twice(tmp_path):
    first, second = records(2)
    log = FactLog(tmp_path)

    log(first)
    assert list(read_facts(tmp_path)) == []
    log.flush()
    log.flush()
    assert list(read_facts(tmp_path)) == [first]
    log(second)
    log.close()
    assert list(read_facts(tmp_path)) == [first, second]


def test_a_busy_log_is_written_in_blocks_of_64_kib_without_being_told(tmp_path):
    log = FactLog(tmp_path)
    for record in records(2_000):
        log(record)

    written = (tmp_path / "facts-000001.jsonl").stat().st_size

    log.close()
    behind = (tmp_path / "facts-000001.jsonl").stat().st_size - written
    assert written > 0
    assert 0 <= behind < 1 << 16


def test_the_oldest_files_make_room_for_new_ones(tmp_path):
    history = records(9)

    write(tmp_path, *history, file_bytes=2 * LINE_BYTES, max_files=3)

    assert files(tmp_path) == [f"facts-00000{n}.jsonl" for n in (3, 4, 5)]
    assert list(read_facts(tmp_path)) == history[4:]


@pytest.mark.parametrize("max_files", [1, 2, 5])
def test_the_log_never_holds_more_files_nor_larger_ones_than_it_may(tmp_path, max_files):
    log = FactLog(tmp_path, file_bytes=1_000, max_files=max_files)
    for record in records(100):
        log(record)
        log.flush()
        sizes = [path.stat().st_size for path in tmp_path.iterdir()]
        assert len(sizes) <= max_files
        assert max(sizes) < 1_000 + 2 * LINE_BYTES
    log.close()


def test_a_restart_goes_on_in_a_new_file_and_keeps_to_the_number_of_files(tmp_path):
    for record in records(4):
        write(tmp_path, record, max_files=2)

    assert files(tmp_path) == ["facts-000003.jsonl", "facts-000004.jsonl"]
    assert list(read_facts(tmp_path)) == records(4)[2:]


def test_other_files_in_the_directory_are_left_alone(tmp_path):
    for name in ("notes.txt", "facts-1.jsonl", "facts-000001.jsonl.bak"):
        (tmp_path / name).write_text("mine")

    write(tmp_path, *records(3), file_bytes=1, max_files=1)

    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert len(files(tmp_path)) == 4
    assert list(read_facts(tmp_path)) == records(3)[2:]


def test_a_last_line_cut_short_by_a_crash_is_left_out_and_what_follows_is_read(tmp_path):
    first, second, third = records(3)
    write(tmp_path, first, second)
    with (tmp_path / "facts-000001.jsonl").open("r+b") as crashed:
        crashed.truncate(2 * LINE_BYTES - 10)
    write(tmp_path, third)

    assert list(read_facts(tmp_path)) == [first, third]


@pytest.mark.parametrize("line", [b"", b"no JSON", b'{"at": 1}', b'{"at":1,"event":{"type":"X"}}'])
def test_any_other_line_that_is_no_record_is_named(tmp_path, line):
    write(tmp_path, *records(1))
    path = tmp_path / "facts-000001.jsonl"
    path.write_bytes(path.read_bytes() + line + b"\n")

    with pytest.raises(InvalidFile, match=r"facts-000001\.jsonl:2: invalid record: "):
        list(read_facts(tmp_path))


def test_what_a_full_disk_did_not_take_is_written_when_there_is_room_again(tmp_path, caplog):
    history = records(3)
    log = FactLog(tmp_path)
    log(history[0])
    log.flush()
    log(history[1])
    log(history[2])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LINE_BYTES + 50, hard))
    try:
        log.flush()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (tmp_path / "facts-000001.jsonl").stat().st_size == LINE_BYTES + 50

    log.close()

    assert list(read_facts(tmp_path)) == history
    assert [record.message for record in caplog.records] == [
        f"the log in {tmp_path} cannot be written: [Errno 27] File too large",
        "the log is written again; 0 facts are lost",
    ]


def test_while_nothing_can_be_written_a_bounded_part_is_kept(tmp_path, monkeypatch, caplog):
    history = records(5)
    monkeypatch.setattr("kairos.observe.fact_log._PENDING_LIMIT_BYTES", 2 * LINE_BYTES)
    log = FactLog(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        for record in history:
            log(record)
        log.flush()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    log.close()

    kept = list(read_facts(tmp_path))
    assert kept == history[: len(kept)]
    assert 2 <= len(kept) < 5
    assert caplog.records[-1].message == f"the log is written again; {5 - len(kept)} facts are lost"


def test_only_the_owner_can_read_the_log(tmp_path):
    before = os.umask(0)
    try:
        write(tmp_path, *records(1))
    finally:
        os.umask(before)

    assert stat.S_IMODE((tmp_path / "facts-000001.jsonl").stat().st_mode) == 0o600


def test_the_directory_is_made_if_it_is_missing(tmp_path):
    write(tmp_path / "a" / "b", *records(1))

    assert list(read_facts(tmp_path / "a" / "b")) == records(1)


def test_what_a_killed_process_left_open_has_failed_but_what_its_successor_knows(tmp_path):
    gone, kept = (build.request(name, at=5) for name in ("gone", "kept"))
    joined = [InstanceJoined(build.instance(name)) for name in ("a", "b")]
    before = [Record(5, event) for event in (*joined, Arrived(gone), Arrived(kept))]
    write(tmp_path, *before)
    log = FactLog(tmp_path)
    note_start(log, 9, ("kept",), ("b",))
    log.close()
    write(tmp_path, Record(10, Finished("kept")))

    started = Record(9, Started(("kept",), ("b",)))
    lost = [Record(5, Failed("gone", "lost_at_restart")), Record(5, InstanceLeft("a"))]
    assert list(read_facts(tmp_path)) == [*before, *lost, started, Record(10, Finished("kept"))]


def test_instances_that_were_there_in_old_files_have_left_at_a_restart(tmp_path):
    write(tmp_path, Record(1, InstanceJoined(build.instance("a"))), *records(3)[2:])
    log = FactLog(tmp_path)
    note_start(log, 9)
    log.close()
    write(tmp_path, Record(20, FirstToken("r")))
    told = list(read_recent(tmp_path, 15, (InstanceJoined, InstanceLeft)))
    kinds = [type(each.event) for each in told]
    assert kinds == [InstanceJoined, InstanceLeft, Started, FirstToken]

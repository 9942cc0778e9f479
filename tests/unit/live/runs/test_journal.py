import signal
import sqlite3
import stat
import subprocess
import sys
import time

import pytest

from kairos.errors import SetupError
from kairos.live.process import group_commit
from kairos.live.process.group_commit import GroupCommit
from kairos.live.process.sqlite_file import connect
from kairos.live.runs.journal import FailedRow, KeptResult, RunJournal

ONE, TWO = "signature one", "signature two"


def quiet(line):
    assert line is None, line


@pytest.fixture
def journal(tmp_path):
    made = RunJournal(tmp_path / "journal.sqlite", quiet)
    yield made
    made.close()


def test_the_first_result_of_a_row_and_node_counts(journal):
    journal.keep(0, 7, "a", ONE, "first", shared=False)
    journal.keep(0, 7, "a", ONE, "second", shared=False)
    journal.keep(1, 7, "b", ONE, "of another stage", shared=False)
    journal.settle()

    assert journal.known(0, 7) == {"a": KeptResult(ONE, "first")}


def test_a_result_of_another_signature_takes_its_place(journal):
    journal.keep(0, 7, "a", ONE, "before the edit", shared=True)
    journal.keep(0, 7, "a", TWO, ["after", 1], shared=False)
    journal.settle()

    assert journal.known(0, 7) == {"a": KeptResult(TWO, ["after", 1])}


def test_what_rows_share_is_kept_once(journal, tmp_path):
    for row in range(100):
        journal.keep(0, row, "a", ONE, "x" * 10_000, shared=True)
    journal.settle()

    assert all(journal.known(0, row)["a"].value == "x" * 10_000 for row in range(100))
    size = sum(file.stat().st_size for file in tmp_path.iterdir())
    assert size < 300_000


def test_what_only_its_row_needs_is_kept_until_that_has_ended(journal, tmp_path):
    vectors = ["x" * 2_000] * 50
    for row in range(200):
        journal.keep(0, row, "v", f"{ONE} {row}", vectors, shared=True, until_end=True)
        journal.keep(0, row, "a", TWO, "answer", shared=False)
        journal.settle()
        assert journal.known(0, row)["v"].value == vectors
        journal.end(0, row, "written", b"digest", {})
    journal.settle()

    assert all(set(journal.known(0, row)) == {"a"} for row in range(200))
    file = tmp_path / "journal.sqlite"
    assert file.stat().st_size < 2_000_000 < 200 * sum(map(len, vectors))


def test_what_only_its_row_needs_stays_where_that_failed_and_through_a_restart(tmp_path):
    path = tmp_path / "journal.sqlite"
    first = RunJournal(path, quiet)
    first.keep(0, 1, "v", ONE, ["x"], shared=False, until_end=True)
    first.end(0, 1, "failed", b"digest", "no answer", node="a")
    first.close()

    again = RunJournal(path, quiet)
    assert again.known(0, 1) == {"v": KeptResult(ONE, ["x"])}
    again.end(0, 1, "written", b"digest", {})
    again.settle()
    assert again.known(0, 1) == {}
    again.close()


def test_equal_signatures_need_not_have_equal_values(journal):
    journal.keep(0, 1, "a", ONE, "drawn", shared=False)
    journal.keep(0, 2, "a", ONE, "drawn again", shared=False)
    journal.settle()

    assert journal.known(0, 1)["a"].value == "drawn"
    assert journal.known(0, 2)["a"].value == "drawn again"


def test_a_row_has_ended_only_with_what_it_began_with(journal):
    assert journal.is_empty()
    journal.end(0, 1, "written", b"d1", {"out": 1})
    journal.end(0, 2, "failed", b"d2", "it broke", node="a")
    journal.settle()

    assert not journal.is_empty()
    assert journal.has_ended(0, 1, b"d1")
    assert not journal.has_ended(0, 1, b"edited")
    assert not journal.has_ended(0, 2, b"d2"), "what failed is tried again"
    assert not journal.has_ended(1, 1, b"d1")


def test_a_row_that_was_done_again_counts_as_it_ended_last(journal):
    journal.end(0, 1, "written", b"d1", {"out": 1})
    journal.end(0, 1, "written", b"d1", {"out": "a second time"})
    journal.end(0, 2, "failed", b"d2", "it broke", node="a")
    journal.end(0, 2, "written", b"d2", {"out": 2})
    journal.end(0, 3, "written", b"d3", {"out": 3})
    journal.end(0, 3, "dropped", b"edited", None)
    journal.settle()

    assert list(journal.written(0, 9)) == [(1, {"out": 1}), (2, {"out": 2})]
    assert journal.outcomes(0, 9) == {"written": 2, "dropped": 1}


def test_rows_come_in_their_order_and_only_those_that_the_table_has(journal):
    for row in (5, 3, 9, 1):
        journal.end(0, row, "written", b"d", {"n": row})
    journal.end(0, 4, "failed", b"d", "why", node="a")
    journal.end(0, 2, "failed", b"d", "unreadable")
    journal.settle()

    assert [row for row, _ in journal.written(0, 9)] == [1, 3, 5]
    assert list(journal.failed(0, 9)) == [
        FailedRow(2, None, "unreadable"),
        FailedRow(4, "a", "why"),
    ]


def test_groups_come_by_their_smallest_row_and_their_items_by_row(journal):
    for row, key in ((4, "b"), (1, "c"), (0, "b"), (3, "a"), (2, "c"), (8, "later"), (5, "b")):
        journal.end(0, row, "gathered", b"d", {"row": row}, key=key)
    journal.end(0, 5, "dropped", b"edited", None)
    journal.settle()

    groups = [(key, [item["row"] for item in items]) for key, items in journal.groups(8)]
    assert groups == [("b", [0, 4]), ("c", [1, 2]), ("a", [3])]


def test_a_group_that_is_larger_than_a_row_may_be_is_told_apart(journal):
    for row in range(6):
        journal.end(0, row, "gathered", b"d", "x" * (2 << 20), key="large")
    journal.end(0, 7, "gathered", b"d", "x", key="small")
    journal.settle()

    assert list(journal.groups(9)) == [("large", None), ("small", ["x"])]


def test_its_files_are_for_its_owner_alone(journal, tmp_path):
    journal.keep(0, 1, "a", ONE, "secret", shared=False)
    journal.settle()

    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()}
    assert len(modes) == 3
    assert set(modes.values()) == {0o600}


def test_what_is_no_journal_is_refused(tmp_path):
    (tmp_path / "text").write_text("no database, but rather long, " * 100)
    with pytest.raises(SetupError, match="cannot be used as a run's journal"):
        RunJournal(tmp_path / "text", quiet)

    connect(tmp_path / "other").execute("PRAGMA user_version = 99")
    with pytest.raises(SetupError, match="was written by another version of Kairos"):
        RunJournal(tmp_path / "other", quiet)


WRITER = """
import sys
from pathlib import Path
from kairos.live.runs.journal import RunJournal

journal = RunJournal(Path(sys.argv[1]), print)
row = 0
while True:
    journal.keep(0, row, "a", "s", row, shared=False)
    journal.end(0, row, "written", b"d", {"n": row})
    row += 1
    while journal.backlog > 2000:
        pass
    print(row, flush=True)
"""


@pytest.mark.parametrize("after_rows", [1, 300, 5000])
def test_after_a_kill_all_up_to_some_change_is_there_and_nothing_after_it(tmp_path, after_rows):
    path = tmp_path / "journal.sqlite"
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, path], stdout=subprocess.PIPE, text=True
    )
    for line in writer.stdout:
        if int(line) >= after_rows:
            break
    told = int(line)
    writer.send_signal(signal.SIGKILL)
    writer.stdout.read()
    writer.wait()
    writer.stdout.close()
    journal = RunJournal(path, quiet)

    rows = [row for row, _ in journal.written(0, 1 << 60)]
    assert rows == list(range(len(rows)))
    assert all(journal.known(0, row) for row in rows)
    assert told - len(rows) < 3000  # what it may have been behind
    journal.close()


class Table:
    """A table that grows, in a database that holds so many pages."""

    def __init__(self, path, pages):
        self.connection = connect(path)
        self.connection.execute("CREATE TABLE t (n INTEGER, filler BLOB)")
        self.limit(pages)

    def limit(self, pages):
        self.connection.execute(f"PRAGMA max_page_count = {pages}")

    def rows(self, path):
        with sqlite3.connect(path) as reading:
            found = [n for (n,) in reading.execute("SELECT n FROM t ORDER BY rowid")]
        reading.close()
        return found


def until(condition, limit_s=60):
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_a_full_disk_is_waited_for_and_nothing_is_lost(tmp_path, monkeypatch):
    monkeypatch.setattr(group_commit, "RETRY_S", 0.02)
    table, told = Table(tmp_path / "db", 20), []
    commit = GroupCommit(table.connection, told.append)
    for n in range(500):
        commit.add("INSERT INTO t VALUES (?, ?)", n, b"x" * 1000)

    until(lambda: told)
    assert "full" in told[0]
    assert commit.backlog > 0
    assert commit.backlog_bytes == commit.backlog * 1000
    time.sleep(0.1)
    assert len(told) == 1, "it is told once"
    table.limit(10_000)
    commit.settle()
    assert told[1:] == [None]
    assert (commit.backlog, commit.backlog_bytes) == (0, 0)
    assert table.rows(tmp_path / "db") == list(range(500))
    commit.close()


def test_a_full_disk_keeps_nobody_from_ending(tmp_path, monkeypatch):
    monkeypatch.setattr(group_commit, "RETRY_S", 0.02)
    table = Table(tmp_path / "db", 20)
    commit = GroupCommit(table.connection, lambda _: None)
    for n in range(500):
        commit.add("INSERT INTO t VALUES (?, ?)", n, b"x" * 1000)
    commit.close(give_up=True)

    rows = table.rows(tmp_path / "db")
    assert rows == list(range(len(rows)))
    assert len(rows) < 500


def test_after_what_a_full_disk_did_not_take_at_the_end_nothing_gets_there(tmp_path, monkeypatch):
    monkeypatch.setattr(group_commit, "RETRY_S", 0.02)
    table, told = Table(tmp_path / "db", 20), []
    commit = GroupCommit(table.connection, told.append)
    commit.add("INSERT INTO t VALUES (?, ?)", 1, b"x" * 100_000)
    until(lambda: told)
    commit.add("INSERT INTO t VALUES (?, ?)", 2, b"for this there is room")
    commit.close(give_up=True)

    assert table.rows(tmp_path / "db") == []


def test_what_may_be_lost_is_dropped_while_the_disk_is_full(tmp_path):
    table, told = Table(tmp_path / "db", 20), []
    commit = GroupCommit(table.connection, told.append, may_lose=True)
    for n in range(500):
        commit.add("INSERT INTO t VALUES (?, ?)", n, b"x" * 1000)
    commit.settle()

    assert (commit.backlog, commit.backlog_bytes) == (0, 0)
    assert told
    commit.close()


def test_a_change_that_makes_no_sense_is_told_to_whoever_comes_next(tmp_path):
    table = Table(tmp_path / "db", 1000)
    commit = GroupCommit(table.connection, lambda _: None)
    commit.add("INSERT INTO nowhere VALUES (1)")

    with pytest.raises(sqlite3.OperationalError, match="no such table: nowhere"):
        commit.settle()
    with pytest.raises(sqlite3.OperationalError, match="no such table: nowhere"):
        commit.add("INSERT INTO t VALUES (1, '')")
    commit.close()


def test_changes_are_committed_in_groups(tmp_path):
    path = tmp_path / "db"
    table = Table(path, 100_000)
    statements = []
    table.connection.set_trace_callback(statements.append)
    commit = GroupCommit(table.connection, lambda _: None)
    for n in range(10_000):
        commit.add("INSERT INTO t VALUES (?, '')", n)
    commit.settle()

    commits = statements.count("COMMIT")
    assert 10_000 / group_commit.GROUP_CHANGES <= commits < 200
    commit.close()


def test_a_single_change_is_on_the_disk_soon_without_being_asked_for(tmp_path):
    table = Table(tmp_path / "db", 1000)
    commit = GroupCommit(table.connection, lambda _: None)
    commit.add("INSERT INTO t VALUES (1, '')")

    until(lambda: commit.backlog == 0)
    assert table.rows(tmp_path / "db") == [1]
    commit.close()

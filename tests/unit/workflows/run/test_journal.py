import sqlite3
import stat
import time

import pytest

from kairos.core import SetupError
from kairos.host import GroupCommit, connect_sqlite, group_commit
from kairos.workflows.execute.facts import Known
from kairos.workflows.run.journal import RunJournal
from kairos.workflows.run.result_store import FailedRow

ONE, TWO = "signature one", "signature two"


def quiet(line):
    assert line is None, line


@pytest.fixture
def journal(tmp_path):
    made = RunJournal(tmp_path / "journal.sqlite", quiet)
    yield made
    made.close()


def test_a_result_of_another_signature_takes_its_place(journal):
    journal.keep_result(0, 7, "a", ONE, "before the edit", shared=True)
    journal.keep_result(0, 7, "a", TWO, ["after", 1], shared=False)
    journal.settle()

    assert journal.resumed(0, [7])[7].results == {"a": Known(TWO, ["after", 1])}


def test_what_only_its_row_needs_is_kept_until_that_has_ended(journal, tmp_path):
    vectors = ["x" * 2_000] * 50
    for row in range(200):
        journal.keep_result(0, row, "v", f"{ONE} {row}", vectors, shared=True, until_end=True)
        journal.keep_result(0, row, "a", TWO, "answer", shared=False)
        journal.settle()
        assert journal.resumed(0, [row])[row].results["v"].value == vectors
        journal.end_row(0, row, "written", b"digest", {})
    journal.settle()

    assert all(set(journal.resumed(0, [row])[row].results) == {"a"} for row in range(200))
    file = tmp_path / "journal.sqlite"
    assert file.stat().st_size < 2_000_000 < 200 * sum(map(len, vectors))


def test_a_row_that_was_done_again_counts_as_it_ended_last(journal):
    journal.end_row(0, 1, "written", b"d1", {"out": 1})
    journal.end_row(0, 1, "written", b"d1", {"out": "a second time"})
    journal.end_row(0, 2, "failed", b"d2", "it broke", node="a")
    journal.end_row(0, 2, "written", b"d2", {"out": 2})
    journal.end_row(0, 3, "written", b"d3", {"out": 3})
    journal.end_row(0, 3, "dropped", b"edited", None)
    journal.settle()

    assert list(journal.written(0, 9)) == [(1, {"out": 1}), (2, {"out": 2})]
    assert journal.outcomes(0, 9) == {"written": 2, "dropped": 1}


def test_rows_come_in_their_order_and_only_those_that_the_table_has(journal):
    for row in (5, 3, 9, 1):
        journal.end_row(0, row, "written", b"d", {"n": row})
    journal.end_row(0, 4, "failed", b"d", "why", node="a")
    journal.end_row(0, 2, "failed", b"d", "unreadable")
    journal.settle()

    assert [row for row, _ in journal.written(0, 9)] == [1, 3, 5]
    assert list(journal.failed(0, 9)) == [
        FailedRow(2, None, "unreadable"),
        FailedRow(4, "a", "why"),
    ]


def test_a_group_that_is_larger_than_a_row_may_be_is_told_apart(journal):
    for row in range(6):
        journal.end_row(0, row, "gathered", b"d", "x" * (2 << 20), key="large")
    journal.end_row(0, 7, "gathered", b"d", "x", key="small")
    journal.settle()

    assert list(journal.groups(9)) == [(0, "large", None), (1, "small", ["x"])]


def test_its_files_are_for_its_owner_alone(journal, tmp_path):
    journal.keep_result(0, 1, "a", ONE, "secret", shared=False)
    journal.settle()

    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()}
    assert len(modes) == 3
    assert set(modes.values()) == {0o600}


def test_what_is_no_journal_is_refused(tmp_path):
    (tmp_path / "text").write_text("no database, but rather long, " * 100)
    with pytest.raises(SetupError, match="cannot be used as a run's journal"):
        RunJournal(tmp_path / "text", quiet)

    connect_sqlite(tmp_path / "other").execute("PRAGMA user_version = 99")
    with pytest.raises(SetupError, match="was written by another version of Kairos"):
        RunJournal(tmp_path / "other", quiet)


class Table:
    """A table that grows, in a database that holds so many pages."""

    def __init__(self, path, pages):
        self.connection = connect_sqlite(path)
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
    table, told, tries = Table(tmp_path / "db", 20), [], []
    table.connection.set_trace_callback(
        lambda statement: tries.append(1) if statement.startswith("BEGIN") else None
    )
    commit = GroupCommit(table.connection, told.append)
    for n in range(500):
        commit.add("INSERT INTO t VALUES (?, ?)", n, b"x" * 1000)

    until(lambda: told)
    assert "full" in told[0]
    assert commit.backlog > 0
    assert commit.backlog_bytes == commit.backlog * 1000
    tried = len(tries)
    until(lambda: len(tries) > tried + 2)
    assert len(told) == 1, "it is told once"
    table.limit(10_000)
    commit.settle()
    assert told[1:] == [None]
    assert (commit.backlog, commit.backlog_bytes) == (0, 0)
    assert table.rows(tmp_path / "db") == list(range(500))
    commit.close()


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

import os
import stat
import subprocess
import sys
import time

import pytest

from kairos.core import SetupError
from kairos.workflows import RunRecord
from kairos.workflows.run.run_store import KEEP_DAYS, RunStore


@pytest.fixture
def store(tmp_path):
    return RunStore(tmp_path / "kairos")


def record(name, *, at=1, **fields):
    return RunRecord(id=name, flow="f", out="/o.jsonl", created_at=at, changed_at=at, **fields)


def test_a_run_is_kept_as_it_was_written(store):
    kept = record("a-1", engines=("http://e",), passes={"cse": False}, written={"/o": (1, 2)})
    directory = store.create(kept)

    assert directory.read() == kept
    assert store.find("a-1").read() == kept


def test_what_is_kept_is_for_its_owner_alone(store):
    directory = store.create(record("a-1"))
    with directory.held():
        paths = [store.root, directory.path.parent, directory.path, *directory.path.iterdir()]

        assert {oct(stat.S_IMODE(path.stat().st_mode)) for path in paths} == {"0o700", "0o600"}


def test_runs_are_listed_the_latest_first_and_what_is_damaged_is_left_out(store):
    for number in (2, 3, 1):
        store.create(record(f"a-{number}", at=number))
    (store.find("a-2").path / "run.json").write_text("{}")

    assert [each.id for _, each in store.all()] == ["a-3", "a-1"]


def test_a_run_is_found_by_how_its_name_begins(store):
    for name in ("first-1", "second-1", "second-12"):
        store.create(record(name))

    assert store.find("f").read().id == "first-1"
    assert store.find("second-1").read().id == "second-1"
    for name, says in (("sec", "may be any of second-1, second-12"), ("x", "no run is called 'x'")):
        with pytest.raises(SetupError, match=says):
            store.find(name)


@pytest.mark.parametrize("name", ["", "..", "../a-1", "a-1/", "/etc", "*", "a-1\n"])
def test_a_name_leads_nowhere_else(store, name):
    store.create(record("a-1"))

    with pytest.raises(SetupError, match="no run is called"):
        store.find(name)


HOLDER = """
import signal, sys, time
from pathlib import Path
from kairos.workflows.run.run_store import RunDirectory

signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
with RunDirectory(Path(sys.argv[1])).held():
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def holder(store):
    directory = store.create(record("a-1"))
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, directory.path], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "held\n"
    yield directory, process
    process.kill()
    process.wait()
    process.stdout.close()


def test_one_process_at_a_time_drives_a_run(holder):
    directory, process = holder

    assert directory.holder() == process.pid
    with pytest.raises(SetupError, match="runs in another process"), directory.held():
        pass
    process.kill()
    process.wait()
    assert directory.holder() is None
    with directory.held():
        assert directory.holder() == os.getpid()


def test_whoever_drives_a_run_is_asked_to_stop_and_waited_for(holder):
    directory, process = holder
    directory.stop_holder(20)

    assert process.wait(60) == 0
    assert directory.holder() is None
    directory.stop_holder(0)


def test_what_nobody_touched_for_long_goes_unless_it_is_under_way(store, holder):
    directory, _ = holder
    store.create(record("old"))
    store.create(record("young"))
    before = time.time() - (KEEP_DAYS + 1) * 86400
    for each in (directory, store.find("old")):
        for path in (*each.path.iterdir(), each.path):
            os.utime(path, (before, before))
    store.create(record("new"))

    assert {each.id for _, each in store.all()} == {"a-1", "young", "new"}


def test_ids_are_of_their_flow_and_differ(store):
    ids = {store.new_id("reports" * 20) for _ in range(100)}

    assert len(ids) == 100
    assert all(each.startswith("reports") and len(each) <= 64 for each in ids)


def test_a_place_that_cannot_hold_runs_is_refused(tmp_path):
    (tmp_path / "file").write_text("")

    with pytest.raises(SetupError, match="cannot hold runs"):
        RunStore(tmp_path / "file" / "kairos")

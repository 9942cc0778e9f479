"""Durable data is on disk before its write is acknowledged.

`os.fsync` is watched, not replaced: a file counts as safe if it was synced with the size that it
has now, under any name.
"""

import asyncio
import os
import sqlite3
import stat
from contextlib import closing

import msgspec
import pytest

from kairos.batches.driver import BatchDriver
from kairos.batches.outputs import write_outputs
from kairos.batches.store import KeptBatches
from kairos.batches.uploads import upload
from kairos.cli import keys
from kairos.host import atomic_write, sqlite_file
from kairos.observe import LearntStore
from kairos.observe.fact_log import InstanceLimits
from kairos.settings import BatchSettings, FlowSettings
from kairos.workflows import RunRecord
from kairos.workflows.run.tables import new_file
from kairos.workflows.serve.flow_store import FlowStore
from tests.support.simulate import build
from tests.support.workflows.runs import RunDirectory, RunJournal
from tests.unit.batches.test_driver import NoGateway

LINE = b'{"custom_id": "a", "method": "POST", "url": "/v1/embeddings", "body": {}}\n'


@pytest.fixture
def synced(monkeypatch):
    """Sizes of synced files and directories at that time, by inode."""
    found, sync = {}, os.fsync

    def watch(descriptor):
        sync(descriptor)
        told = os.fstat(descriptor)
        found[told.st_ino] = told.st_size

    monkeypatch.setattr(os, "fsync", watch)
    return found


def outputs(folder):
    given = folder / "given.jsonl"
    given.write_bytes(LINE * 3)
    rows = [(1, "completed", b"answer\n"), (2, "failed", b"error\n"), (3, "completed", b"more\n")]
    write_outputs(
        "batch_1",
        lambda after, _: [row for row in rows if row[0] > after],
        "completed",
        given,
        folder / "output",
        folder / "errors",
    )
    return [folder / "output", folder / "errors"]


class Upload:
    """A request with a form."""

    def __init__(self):
        self.headers = {"content-type": "multipart/form-data; boundary=b"}

    async def stream(self):
        yield b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--b\r\n'
        yield b'Content-Disposition: form-data; name="file"; filename="f"\r\n\r\n' + LINE
        yield b"\r\n--b--\r\n"


def uploaded(folder):
    path = folder / "file-1"
    told = asyncio.run(upload(Upload(), path, 1_000))
    assert told.size_bytes == path.stat().st_size > 0
    return [path]


def table(folder):
    with new_file(folder / "out.jsonl", "run") as file:
        file.write(b"row\n")
    return [folder / "out.jsonl", folder]  # its name, too


def written(folder):
    with atomic_write(folder / "file") as file:
        file.write(b"content")
    return [folder / "file"]


def record(folder):
    made = RunRecord(id="run-1", flow="f", inputs="i", out="o", created_at=0, changed_at=0)
    RunDirectory(folder).write(made)
    return [folder / "run.json"]


def learnt(folder):
    store = LearntStore(folder / "learnt.json")
    store._write(msgspec.structs.replace(store._collect(), profiles=[]))
    return [folder / "learnt.json"]


def instances(folder):
    limits = InstanceLimits(folder)
    limits.is_needed = True
    limits.record_limits(build.instance("a"))
    limits.write()
    return [each for each in folder.iterdir() if each.is_file()]


def key_file(folder):
    path = folder / "keys.toml"
    keys._write(path, [])
    return [path]


WRITERS = {
    "the files of a batch": outputs,
    "an uploaded file": uploaded,
    "the table that a run writes": table,
    "a file that replaces another": written,
    "the record of a run": record,
    "what was learnt": learnt,
    "the limits of instances": instances,
    "the keys": key_file,
}


@pytest.mark.parametrize("what", WRITERS)
def test_a_file_is_on_the_disk_whole_before_it_is_said_to_be(what, tmp_path, synced):
    paths = WRITERS[what](tmp_path)
    assert paths
    for path in paths:
        told = path.stat()
        assert told.st_ino in synced, path
        assert stat.S_ISDIR(told.st_mode) or synced[told.st_ino] == told.st_size, path


@pytest.fixture
def connections(monkeypatch):
    made, connect = [], sqlite3.connect

    def watch(*arguments, **options):
        made.append(connect(*arguments, **options))
        return made[-1]

    monkeypatch.setattr(sqlite_file.sqlite3, "connect", watch)
    return made


def batches(folder):
    kept = KeptBatches(BatchSettings(directory=str(folder)))
    BatchDriver(kept, NoGateway(), lambda: 0)
    return kept


DATABASES = {
    "a run's journal": lambda folder: RunJournal(folder / "journal.sqlite", lambda _: None),
    "batches, and who drives them": batches,
    "flows": lambda folder: FlowStore(FlowSettings(directory=str(folder))),
}


@pytest.mark.parametrize("what", DATABASES)
def test_a_transaction_of_a_database_is_on_the_disk_when_it_is_committed(
    what, tmp_path, connections
):
    with closing(DATABASES[what](tmp_path)):
        assert connections
        for each in connections:
            assert each.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL
            assert each.execute("PRAGMA journal_mode").fetchone() == ("wal",)
            assert each.execute("PRAGMA busy_timeout").fetchone()[0] > 0
    for file in tmp_path.rglob("*.sqlite*"):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file

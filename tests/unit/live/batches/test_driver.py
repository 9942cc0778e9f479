"""Who drives batches, where the disk does not do what it should, and where batches end together."""

import asyncio
import sqlite3
from contextlib import closing

import pytest

from kairos.batch_settings import BatchSettings
from kairos.live.batches.driver import BatchDriver
from kairos.live.batches.kept import KeptBatches
from kairos.live.batches.line_call import BatchCallers
from kairos.live.batches.records import BatchRecord, FileRecord
from kairos.live.batches.work import BatchWork
from kairos.live.request.caller import Caller
from kairos.model import SECOND

NOW = 10 * SECOND
FILE = FileRecord(
    id="file-1",
    tenant="acme",
    purpose="batch",
    filename="input.jsonl",
    size_bytes=3,
    created_s=0,
    expires_s=1_000,
)
BATCH = BatchRecord(
    id="batch_1",
    caller=Caller("acme"),
    service_class="batch",
    endpoint="/v1/embeddings",
    input_file_id="file-1",
    completion_window="24h",
    created_s=0,
    expires_s=86_400,
)


class NoGateway:
    def __init__(self):
        self.callers = BatchCallers()


@pytest.fixture
def kept(tmp_path):
    with closing(KeptBatches(BatchSettings(directory=str(tmp_path)))) as kept:
        kept.files.path_of(FILE.id).write_text("{}\n")
        kept.files.add(FILE)
        yield kept


async def ends_of(driver):
    async with asyncio.timeout(5):
        await driver.run()


async def test_a_driver_whose_results_cannot_be_written_ends_so_that_they_are_called_again(kept):
    driver = BatchDriver(kept, NoGateway(), lambda: NOW)
    driver._commit.add("INSERT INTO nowhere VALUES (1)")

    with pytest.raises(sqlite3.OperationalError, match="nowhere"):
        await ends_of(driver)


async def test_so_does_one_that_cannot_write_how_a_batch_is(kept, monkeypatch):
    def fail(*_arguments, **_fields):
        raise sqlite3.OperationalError("database is locked")

    kept.batches.add(BATCH, 0)
    monkeypatch.setattr(kept.batches, "change", fail)

    with pytest.raises(sqlite3.OperationalError, match="locked"):
        await ends_of(BatchDriver(kept, NoGateway(), lambda: NOW))


async def test_a_batch_that_ended_while_another_was_tended_does_not_end_once_more(kept):
    driver = BatchDriver(kept, NoGateway(), lambda: NOW)
    work = BatchWork(BATCH, kept.files.path_of(FILE.id), [], 0)
    work.ends_as = "cancelled"
    work.close()

    await driver._tend(work)

    assert not driver._beside
    await asyncio.to_thread(driver._commit.close)

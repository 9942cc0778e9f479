"""Who drives batches, where the disk does not do what it should, and where batches end together."""

import asyncio
import sqlite3
from contextlib import closing

import pytest

from kairos.batches.driver import TRIES, BatchDriver, BatchFinishing
from kairos.batches.records import BatchRecord, FileRecord
from kairos.batches.store import KeptBatches
from kairos.batches.work import BatchWork
from kairos.core import SECOND
from kairos.gateway.api.inner_call import InnerCallers
from kairos.request import Caller
from kairos.settings import BatchSettings

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
        self.callers = InnerCallers()


class Answering(NoGateway):
    """Answers with these, one call after another. It is five seconds later whenever one looks."""

    def __init__(self, *statuses):
        super().__init__()
        self.statuses = list(statuses)
        self.asked = self.looks = 0

    def is_waiting(self, _call):
        return False

    def start_call(self, call):
        self.asked += 1
        call.start(self.statuses.pop(0), [])
        call.write(b"{}", more=False)

    def now(self):
        self.looks += 1
        return NOW + self.looks * 5 * SECOND


@pytest.fixture
def kept(tmp_path):
    with closing(KeptBatches(BatchSettings(directory=str(tmp_path)))) as kept:
        kept.files.path_of(FILE.id).write_text("{}\n")
        kept.files.add(FILE)
        yield kept


async def ends_of(driver):
    async with asyncio.timeout(60):
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
    monkeypatch.setattr(kept.batches, "change_batch", fail)

    with pytest.raises(sqlite3.OperationalError, match="locked"):
        await ends_of(BatchDriver(kept, NoGateway(), lambda: NOW))


async def outcome_of(kept, *statuses):
    """Of a batch of one line, and how often that was called."""
    line = (
        b'{"custom_id": "a", "method": "POST", "url": "/v1/embeddings", '
        b'"body": {"model": "tiny", "input": "x"}}'
    )
    kept.files.path_of(FILE.id).write_bytes(line)
    kept.batches.add(BATCH, 0)
    gateway = Answering(*statuses)
    driver = BatchDriver(kept, gateway, gateway.now)
    running = asyncio.create_task(driver.run())
    async with asyncio.timeout(60):
        while kept.batches.find_batch("acme", BATCH.id)[0].state != "completed":
            await asyncio.sleep(0.01)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    return kept.batches.find_batch("acme", BATCH.id)[1], gateway.asked


async def test_a_line_that_was_refused_for_now_is_tried_as_often_as_any_other(kept):
    counts, asked = await outcome_of(kept, 503, 429, 503, 429, 503, 500, 502, 500, 200)
    assert (counts.completed, counts.failed, asked) == (1, 0, 9)


async def test_a_line_that_engines_fail_has_so_many_tries(kept):
    counts, asked = await outcome_of(kept, 500, 503, *[500] * (TRIES - 1))
    assert (counts.completed, counts.failed, asked) == (0, 1, TRIES + 1)


async def test_a_batch_that_ended_while_another_was_tended_does_not_end_once_more(kept):
    driver = BatchDriver(kept, NoGateway(), lambda: NOW)
    work = BatchWork(BATCH, kept.files.path_of(FILE.id), [], 0)
    work.ends_as = "cancelled"
    work.close()

    await driver._tend(work)

    assert not driver._beside
    await asyncio.to_thread(driver._commit.close)


async def test_a_batch_whose_input_is_gone_when_its_output_is_written_fails(kept):
    kept.batches.add(BATCH, 0)
    kept.batches.change_batch(BATCH.id, ("validating",), state="in_progress", total=1)
    kept.files.path_of(FILE.id).unlink()
    finishing = BatchFinishing(kept, lambda: NOW)
    record, _ = kept.batches.find_batch("acme", BATCH.id)

    assert await finishing.finish_batch(record)

    record, _ = kept.batches.find_batch("acme", BATCH.id)
    assert (record.state, record.errors[0].code) == ("failed", "input_unreadable")

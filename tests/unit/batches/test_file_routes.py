"""An upload whose request ends before its answer."""

import asyncio
import threading
from contextlib import closing
from types import SimpleNamespace

import pytest

from kairos.batches import batches_on
from kairos.batches.batches_on import BatchRoutes
from kairos.batches.store import KeptBatches
from kairos.batches.uploads import Uploaded
from kairos.core import Unavailable
from kairos.settings import BatchSettings

LINE = b"{}\n"


@pytest.fixture
def kept(tmp_path):
    with closing(KeptBatches(BatchSettings(directory=str(tmp_path)))) as kept:
        yield kept


@pytest.fixture
def sending(kept, monkeypatch):
    """Begins to send one file, always with the same key."""

    async def upload(_request, path, _limit_bytes):
        path.write_bytes(LINE)
        return Uploaded("batch", "a.jsonl", len(LINE), None)

    async def admitted_caller(_):
        return SimpleNamespace(tenant="acme")

    monkeypatch.setattr(batches_on, "upload", upload)
    access = SimpleNamespace(admitted_caller=admitted_caller)
    routes = BatchRoutes(kept, access, dict, lambda: None, lambda: 1)
    request = SimpleNamespace(headers={"Idempotency-Key": "k"})
    return lambda: asyncio.create_task(routes.create_file(request))


def files_of(kept):
    return kept.files.files_of("acme", 0, None, 10, purpose=None, latest_first=False)


async def test_a_file_that_is_kept_as_its_request_is_cut_off_is_whole_when_it_is_sent_again(
    kept, sending, monkeypatch
):
    add, adding, added = kept.files.add, threading.Event(), threading.Event()
    go_on = threading.Event()

    def slow(record):
        adding.set()
        assert go_on.wait(60)
        try:
            return add(record)
        finally:
            added.set()

    monkeypatch.setattr(kept.files, "add", slow)
    first = sending()
    assert await asyncio.to_thread(adding.wait, 60)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    go_on.set()
    assert await asyncio.to_thread(added.wait, 60)

    assert (await sending()).status_code == 200
    (file,) = files_of(kept)
    assert kept.files.path_of(file.id).read_bytes() == LINE


async def test_where_the_first_has_no_content_any_more_the_second_is_told_to_try_again(
    kept, sending
):
    await sending()
    (file,) = files_of(kept)
    kept.files.path_of(file.id).unlink()

    with pytest.raises(Unavailable, match=file.id):
        await sending()
    assert list(kept.files.root.iterdir()) == []

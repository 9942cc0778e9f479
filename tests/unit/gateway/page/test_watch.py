"""One picture for all who look, and none while nobody does."""

import asyncio
import logging
from contextlib import asynccontextmanager, suppress

import pytest

from kairos.gateway.page import pages as module
from kairos.gateway.page.pages import TooManyViewers, Watch
from tests.support.loop_clock import moved_clock


@pytest.fixture
async def clock():
    with moved_clock() as clock:
        yield clock


@pytest.fixture
async def watched(monkeypatch, clock):
    """A watch that runs, and how often it took a picture."""
    monkeypatch.setattr(module, "PERIOD_S", 0.005)
    taken = []

    def take():
        taken.append(len(taken))
        return b"%d" % taken[-1]

    watch = Watch(take)
    task = asyncio.create_task(watch.run())
    yield watch, taken, task
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


@asynccontextmanager
async def viewing(watch):
    pictures = watch.pictures()
    yield pictures
    await pictures.aclose()


async def test_while_nobody_looks_nothing_is_taken_and_a_page_that_closes_ends_it(watched, clock):
    watch, taken, _ = watched
    await clock.passes(1.0)
    assert taken == []
    async with asyncio.timeout(60), viewing(watch) as pictures:
        assert await anext(pictures) == b"0"
        assert await anext(pictures) == b"1"
    before = len(taken)
    await clock.passes(1.0)
    assert len(taken) == before


async def test_all_who_look_see_the_same_picture(watched):
    watch, taken, _ = watched
    async with asyncio.timeout(60), viewing(watch) as one, viewing(watch) as other:
        seen = await asyncio.gather(anext(one), anext(other))
        assert seen == [b"0", b"0"]
        async with viewing(watch) as late:  # shown what there is
            assert await anext(late) in {b"%d" % each for each in taken}


async def test_whoever_is_slow_misses_pictures_and_goes_on_with_the_latest(watched):
    watch, taken, _ = watched
    async with asyncio.timeout(60), viewing(watch) as slow:
        await anext(slow)
        while len(taken) < 5:
            await asyncio.sleep(0.005)
        assert int(await anext(slow)) >= 4


async def test_a_picture_that_fails_is_said_and_the_next_is_taken(monkeypatch, caplog):
    monkeypatch.setattr(module, "PERIOD_S", 0.005)
    takes = iter([ZeroDivisionError, b"whole"])

    def take():
        found = next(takes, b"later")
        if found is ZeroDivisionError:
            raise found
        return found

    watch = Watch(take)
    task = asyncio.create_task(watch.run())
    async with asyncio.timeout(60), viewing(watch) as pictures:
        assert await anext(pictures) == b"whole"
    task.cancel()
    assert [r.levelno for r in caplog.records] == [logging.ERROR]


async def test_when_the_service_ends_so_do_the_pages(watched):
    watch, _, task = watched
    async with asyncio.timeout(60), viewing(watch) as pictures:
        await anext(pictures)
        task.cancel()
        assert [each async for each in pictures if each is None] == []


async def test_there_is_a_limit_to_pages(watched, monkeypatch):
    monkeypatch.setattr(module, "MAX_VIEWERS", 1)
    watch, *_ = watched
    watch.check()
    async with asyncio.timeout(60), viewing(watch) as pictures:
        await anext(pictures)
        with pytest.raises(TooManyViewers):
            watch.check()
    watch.check()

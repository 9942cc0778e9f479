"""Threads that tenants share: how many one has, who waits, and what a cancellation gives back."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from kairos.host import TenantThreads

LIMIT_S = 60


class Work:
    """Pieces that each hold a thread until the test releases them."""

    def __init__(self):
        self.begun, self.released = [], threading.Semaphore(0)
        self._changed = threading.Condition()

    def piece(self, name):
        def held():
            with self._changed:
                self.begun.append(name)
                self._changed.notify_all()
            assert self.released.acquire(timeout=LIMIT_S)
            return name

        return held

    async def until_begun(self, number):
        def wait():
            with self._changed:
                assert self._changed.wait_for(lambda: len(self.begun) >= number, LIMIT_S)

        await asyncio.to_thread(wait)


@pytest.fixture
def executor():
    with ThreadPoolExecutor(4) as executor:
        yield executor


@pytest.fixture
def work(executor):
    work = Work()
    yield work
    work.released.release(100)  # whatever the test has left


async def test_a_tenant_has_so_many_threads_and_another_finds_one_free(executor, work):
    threads = TenantThreads(executor, 2)
    acme = [asyncio.create_task(threads.run("acme", work.piece(n))) for n in range(6)]
    await work.until_begun(2)

    assert await asyncio.wait_for(threads.run("bolt", lambda: "bolt"), LIMIT_S) == "bolt"
    assert work.begun == [0, 1]
    work.released.release(6)
    assert await asyncio.gather(*acme) == [0, 1, 2, 3, 4, 5]


async def test_what_waits_of_a_tenant_goes_in_turn(executor, work):
    threads = TenantThreads(executor, 1)
    tasks = [asyncio.create_task(threads.run("acme", work.piece(n))) for n in range(5)]
    work.released.release(5)
    await asyncio.gather(*tasks)

    assert work.begun == [0, 1, 2, 3, 4]


async def test_work_that_is_left_holds_its_turn_until_its_thread_is_free(executor, work):
    threads = TenantThreads(executor, 1)
    left = asyncio.create_task(threads.run("acme", work.piece("left")))
    await work.until_begun(1)
    left.cancel()
    with pytest.raises(asyncio.CancelledError):
        await left
    after = asyncio.create_task(threads.run("acme", work.piece("after")))
    assert [await threads.run("bolt", lambda: 1) for _ in range(20)] == [1] * 20

    assert work.begun == ["left"]
    work.released.release(2)
    assert await after == "after"


async def test_who_leaves_while_it_waits_takes_no_thread(executor, work):
    threads = TenantThreads(executor, 1)
    first = asyncio.create_task(threads.run("acme", work.piece("first")))
    await work.until_begun(1)
    waiting = asyncio.create_task(threads.run("acme", work.piece("waiting")))
    last = asyncio.create_task(threads.run("acme", work.piece("last")))
    await asyncio.sleep(0)
    waiting.cancel()
    work.released.release(3)

    assert [await first, await last] == ["first", "last"]
    assert work.begun == ["first", "last"]


async def test_work_that_fails_gives_its_turn_back(executor):
    threads = TenantThreads(executor, 1)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            await asyncio.wait_for(threads.run("acme", lambda: 1 // 0), LIMIT_S)


async def test_nothing_is_kept_of_tenants_that_want_nothing(executor):
    threads = TenantThreads(executor, 1)
    await asyncio.gather(*(threads.run(f"t{n}", lambda: 1) for n in range(100)))

    async with asyncio.timeout(LIMIT_S):
        while threads._turns:
            await asyncio.sleep(0.001)

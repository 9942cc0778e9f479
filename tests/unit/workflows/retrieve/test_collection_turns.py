"""Turns for work on collections: nobody waits for all that another tenant has asked for."""

import asyncio

import pytest

from kairos.workflows.retrieve.collections import CollectionTurns

LIMIT_S = 60


class Work:
    """Work that lasts until it is let go."""

    def __init__(self, at_once=2):
        self.turns, self.begun, self.gate = CollectionTurns(at_once), [], asyncio.Semaphore(0)
        self.tasks = []

    def ask(self, name, tenant, began_at=0, items=1):
        async def work():
            async with self.turns.turn(tenant, (began_at,), 0, items):
                self.begun.append(name)
                await self.gate.acquire()

        self.tasks.append(asyncio.create_task(work()))
        return self.tasks[-1]

    async def until(self, number):
        async with asyncio.timeout(LIMIT_S):
            while len(self.begun) < number:
                await asyncio.sleep(0)

    async def end(self, number=1000):
        for _ in range(number):
            self.gate.release()
        async with asyncio.timeout(LIMIT_S):
            await asyncio.gather(*self.tasks, return_exceptions=True)


async def test_a_tenant_that_comes_later_is_next_and_then_they_alternate():
    work = Work(at_once=1)
    for number in range(5):
        work.ask(f"a{number}", "a", number)
    await work.until(1)
    for number in range(2):
        work.ask(f"b{number}", "b", number)
    await asyncio.sleep(0)
    await work.end()
    assert work.begun == ["a0", "a1", "b0", "a2", "b1", "a3", "a4"]


async def test_work_on_many_items_counts_as_many_turns():
    work = Work(at_once=1)
    for number in range(3):
        work.ask(f"a{number}", "a", number, items=100)
    await work.until(1)
    for number in range(3):
        work.ask(f"b{number}", "b", number)
    await asyncio.sleep(0)
    await work.end()
    assert work.begun == ["a0", "a1", "b0", "b1", "b2", "a2"]


async def test_what_is_cancelled_leaves_its_turn_to_others():
    work = Work(at_once=1)
    running, waiting, last = (work.ask(name, "a", n) for n, name in enumerate("xyz"))
    await work.until(1)
    for each in (running, waiting):
        each.cancel()
    await work.until(2)
    assert work.begun == ["x", "z"]
    await work.end()
    assert last.exception() is None
    for each in (running, waiting):
        with pytest.raises(asyncio.CancelledError):
            await each
    assert work.turns._free == 1
    assert not work.turns._coming
    assert not len(work.turns._queue)

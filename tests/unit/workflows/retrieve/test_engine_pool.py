"""Work over several engines: who gets what, and what becomes of it where one fails."""

import asyncio
from itertools import count

import pytest

from kairos.core import SECOND, InvalidRequest, Unavailable, UpstreamFailed
from kairos.proxy import RefusedForNow
from kairos.workflows.retrieve import engine_pool
from kairos.workflows.retrieve.engine_pool import EnginePool, SharedEngines
from tests.support.loop_clock import moved_clock

LIMIT_S = 60


class Engines:
    """Each of which doubles numbers, as soon as it is let."""

    def __init__(self, *names: str, takes_s: float = 0.0) -> None:
        self.names, self.takes_s = names, takes_s
        self.batches: list[tuple[str, list[int]]] = []
        self.at_once = self.most_at_once = 0
        self.broken: dict[str, Exception] = {}
        self.poison: set[int] = set()
        self.why: Exception = InvalidRequest("too long")
        self.gate = asyncio.Event()
        self.gate.set()

    def pool(self, room: int = 4, **options) -> EnginePool[int, int]:
        return EnginePool(self.names, self.ask, room, **options)

    async def ask(self, engine: str, items: list[int]) -> list[int]:
        self.batches.append((engine, list(items)))
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await self.gate.wait()
            await asyncio.sleep(self.takes_s)
        finally:
            self.at_once -= 1
        if engine in self.broken:
            raise self.broken[engine]
        if self.poison.intersection(items):
            raise self.why
        return [2 * item for item in items]

    def given(self, engine: str) -> int:
        return sum(len(items) for name, items in self.batches if name == engine)


@pytest.fixture
async def closing():
    pools = []
    yield pools.append
    for pool in pools:
        await pool.close()


async def test_of_each_query_that_waits_the_deepest_operators_go_first(closing):
    engines = Engines("a")
    engines.gate.clear()
    closing(pool := engines.pool(room=2))
    async with asyncio.timeout(LIMIT_S):
        tasks = [
            asyncio.create_task(pool.results(query, depth, [item]))
            for query, depth, item in (
                ((0,), 0, 0), ((0,), 0, 1),  # which the engine has at once
                ((2,), 3, 2), ((1,), 1, 3), ((1,), 2, 4),
            )
        ]  # fmt: skip
        while len(engines.batches) < 2:
            await asyncio.sleep(0)
        engines.gate.set()
        await asyncio.gather(*tasks)

    assert [items for _, items in engines.batches[2:]] == [[4, 2], [3]]


async def test_a_tenant_has_no_more_of_an_engine_by_more_sizes_of_batches_or_models(closing):
    engines, shared = Engines("a"), SharedEngines()
    engines.gate.clear()
    pools = [engines.pool(room=size, shared=shared) for size in (1, 2, 3, 4, 8)]
    for each in pools:
        closing(each)
    async with asyncio.timeout(LIMIT_S):
        greedy = [
            asyncio.create_task(pool.results((n,), 0, [0] * 200, "greedy"))
            for n, pool in enumerate(pools)
        ]
        while len(engines.batches) < 2:
            await asyncio.sleep(0)
        honest = asyncio.create_task(pools[3].results((9,), 0, [1], "honest"))
        for _ in range(9):
            await asyncio.sleep(0)
        assert engines.most_at_once == 2
        engines.gate.set()
        await honest
        assert any(1 in items for _, items in engines.batches[2:4])
        await asyncio.gather(*greedy)
    assert engines.most_at_once == 2


async def test_a9_two_engines_have_the_same_work_within_a_tenth(closing):
    engines = Engines("a", "b", takes_s=0.001)
    closing(pool := engines.pool(room=16))
    async with asyncio.timeout(LIMIT_S):
        for n in range(0, 60, 6):
            await asyncio.gather(
                *(pool.results((n + i,), 0, range(1 + (7 * (n + i)) % 23)) for i in range(6))
            )
        for n in range(9):  # one at a time, too
            await pool.results((100 + n,), 0, range(3))

    a, b = engines.given("a"), engines.given("b")
    assert abs(a - b) <= 0.1 * max(a, b), (a, b)


async def test_one_engine_that_fails_costs_nothing_that_the_other_has_done(closing):
    engines = Engines("a", "b")
    engines.broken["a"] = UpstreamFailed("500")
    closing(pool := engines.pool())
    async with asyncio.timeout(LIMIT_S):
        results = await pool.results((1,), 0, range(40))

    assert results == [2 * item for item in range(40)]
    done = [item for name, items in engines.batches if name == "b" for item in items]
    assert sorted(done) == list(range(40)), "nothing was done twice"
    assert engines.given("a") <= 8, "it was left alone after it had failed"


async def test_work_that_has_wrong_answers_several_times_is_given_up(closing):
    engines = Engines("a", "b", "c", "d")
    engines.broken = {name: UpstreamFailed("no vectors") for name in "abcd"}
    closing(pool := engines.pool())
    async with asyncio.timeout(LIMIT_S):
        with pytest.raises(UpstreamFailed, match="no vectors"):
            await pool.results((1,), 0, range(4))

    assert len(engines.batches) <= 2 * 4 + 4


async def test_what_an_engine_refuses_fails_nothing_but_itself(closing):
    engines = Engines("a", "b")
    engines.poison, engines.gate = {7}, asyncio.Event()
    closing(pool := engines.pool(room=8))
    async with asyncio.timeout(LIMIT_S):
        busy = [asyncio.create_task(pool.results((0,), 0, range(10, 18))) for _ in range(4)]
        sound = [asyncio.create_task(pool.results((n,), 0, [n])) for n in range(1, 6)]
        poison = asyncio.create_task(pool.results((9,), 0, [7]))
        await asyncio.sleep(0)
        engines.gate.set()
        assert await asyncio.gather(*sound) == [[2], [4], [6], [8], [10]]
        with pytest.raises(InvalidRequest, match="too long"):
            await poison
        await asyncio.gather(*busy)

    alone = [name for name, items in engines.batches if items == [7]]
    assert sorted(alone) == ["a", "b"], "each was asked for it alone, once"


@pytest.fixture
async def clock(monkeypatch):
    """The loop's clock, which is the engines' as well."""
    with moved_clock() as moved:
        monkeypatch.setattr(engine_pool, "_now", lambda: int(moved.time() * SECOND))
        yield moved


@pytest.mark.parametrize("first", [True, False])
async def test_an_item_that_an_engine_refuses_for_now_holds_up_no_other(closing, clock, first):
    engines = Engines("a")
    engines.poison, engines.why = {7}, RefusedForNow("429")
    closing(pool := engines.pool(room=8))
    if not first:
        await pool.results((0,), 0, [100])
    poison = asyncio.create_task(pool.results((1,), 0, [7]))
    sound = [asyncio.create_task(pool.results((n,), 0, [n])) for n in range(2, 40) if n != 7]
    while not all(each.done() for each in sound):
        await clock.passes(1)
    assert not poison.done()
    assert "429" in pool.waits_for
    asked = [items for _, items in engines.batches].count([7])
    while not poison.done():
        await clock.passes(1)
    with pytest.raises(RefusedForNow):
        await poison
    assert [items for _, items in engines.batches].count([7]) - asked <= 7
    assert pool.is_idle


async def test_an_engine_that_refuses_all_for_now_has_what_it_refused_later(closing, clock):
    engines = Engines("a")
    engines.broken["a"] = RefusedForNow("503")
    closing(pool := engines.pool(room=4))
    tasks = [asyncio.create_task(pool.results((n,), 0, [n])) for n in range(20)]
    await clock.passes(60)
    assert not any(each.done() for each in tasks)
    assert "503" in pool.waits_for
    engines.broken.clear()
    while not all(each.done() for each in tasks):
        await clock.passes(1)
    assert [each.result() for each in tasks] == [[2 * n] for n in range(20)]
    assert pool.waits_for == ""


@pytest.mark.parametrize("step_us", [100_000, 300_000, 340_000, 600_000, 900_000, 999_999])
async def test_an_engine_whose_time_comes_while_it_is_looked_for_is_tried(
    closing, monkeypatch, step_us
):
    """Let time pass between two looks at the clock, as on a busy machine."""
    looks = count(1, step_us)
    monkeypatch.setattr(engine_pool, "_now", lambda: next(looks))
    engines = Engines("a")
    engines.broken["a"] = Unavailable("away")
    closing(pool := engines.pool())
    task = asyncio.create_task(pool.results((1,), 0, [1]))
    async with asyncio.timeout(LIMIT_S):
        while not engines.batches:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        engines.broken.clear()
        assert await task == [2]


async def test_what_nobody_waits_for_any_more_is_not_begun(closing):
    engines = Engines("a")
    engines.gate.clear()
    closing(pool := engines.pool(room=1))
    async with asyncio.timeout(LIMIT_S):
        first = asyncio.create_task(pool.results((1,), 0, [1, 2]))
        left = asyncio.create_task(pool.results((2,), 0, [3]))
        while len(engines.batches) < 2:
            await asyncio.sleep(0)
        left.cancel()
        await asyncio.gather(left, return_exceptions=True)
        engines.gate.set()
        await first
        assert await pool.results((3,), 0, [4]) == [8]

    assert [items for _, items in engines.batches] == [[1], [2], [4]]

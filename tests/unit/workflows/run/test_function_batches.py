"""Functions that take several calls at once."""

import asyncio
import threading
from random import Random

import pytest

from kairos.core import Unavailable
from kairos.workflows.declare.functions import FunctionFailed, RegisteredFunction
from kairos.workflows.run.function_batches import FunctionBatches
from tests.e2e.client import LIMIT_S

pytestmark = pytest.mark.timeout(LIMIT_S)


class Asked:
    """A function that remembers its batches, and waits for a gate."""

    def __init__(self, purity="pure", wrong=(), says=lambda q: q * 2):
        self.batches, self.gate, self.wrong, self.says = [], threading.Event(), set(wrong), says
        self.known = RegisteredFunction(self.call, purity, "", True)
        self.gate.set()

    def call(self, q):
        self.batches.append(list(q))
        assert self.gate.wait(LIMIT_S)
        if self.wrong & set(q):
            raise ValueError(f"{sorted(self.wrong & set(q))}")
        return [self.says(each) for each in q]


async def answers(batches, asked, values, batch=4, tenant=lambda _: ""):
    calls = [
        batches.value("f", asked.known, {"q": each}, batch, (0, 0, n), 0, tenant(n))
        for n, each in enumerate(values)
    ]
    return await asyncio.gather(*calls, return_exceptions=True)


async def turns():
    """Let calls that were begun come to wait."""
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.fixture
async def batches():
    made = FunctionBatches()
    yield made
    await made.close()


@pytest.mark.parametrize("seed", range(8))
async def test_each_call_has_the_value_of_its_own_arguments(batches, seed):
    draw = Random(seed)
    values = [draw.randrange(1_000) for _ in range(draw.randrange(1, 60))]
    wrong = {each for each in values if draw.random() < 0.1}
    asked, size = Asked(wrong=wrong), draw.randrange(1, 20)
    found = await answers(batches, asked, values, size)
    for value, got in zip(values, found, strict=True):  # as a call for each would have it
        if value in wrong:
            assert isinstance(got, FunctionFailed)
            assert str(got) == f"ValueError: [{value}]"
        else:
            assert got[0] == 2 * value
    assert max(map(len, asked.batches)) <= size


async def test_calls_that_wait_go_together(batches):
    asked = Asked()
    await answers(batches, asked, range(10))
    assert sorted(map(len, asked.batches)) == [2, 4, 4]


async def test_two_batches_are_under_way_and_the_others_wait(batches):
    asked = Asked()
    asked.gate.clear()
    waiting = asyncio.create_task(answers(batches, asked, range(12)))
    while len(asked.batches) < 2:
        await asyncio.sleep(0.01)
    late = asyncio.create_task(answers(batches, asked, [50]))
    await asyncio.sleep(0)
    assert len(asked.batches) == 2
    asked.gate.set()
    assert [value for value, _ in await waiting] == [2 * n for n in range(12)]
    assert (await late)[0][0] == 100


async def test_a_call_with_effects_is_made_once(batches):
    asked = Asked("effect", wrong={2})
    found = await answers(batches, asked, range(4))
    assert all(isinstance(each, FunctionFailed) for each in found)
    assert asked.batches == [[0, 1, 2, 3]]


@pytest.mark.parametrize(
    "gives",
    [lambda q: None, lambda q: [1], lambda q: [*q, 1], lambda q: dict.fromkeys(map(str, q)),
     lambda q: "abcd", lambda q: 4, lambda q: {1}, lambda q: []],
)  # fmt: skip
async def test_what_is_no_list_with_a_value_for_each_call_is_an_error(batches, gives):
    known = RegisteredFunction(gives, "effect", "", True)
    calls = [batches.value("f", known, {"q": n}, 4, (n,), 0) for n in range(4)]
    found = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(each, FunctionFailed) for each in found), found


async def test_a_coroutine_takes_several_calls_too(batches):
    async def twice(q):
        await asyncio.sleep(0)
        return [2 * each for each in q]

    known = RegisteredFunction(twice, "pure", "", True)
    calls = [batches.value("f", known, {"q": n}, 4, (n,), 0) for n in range(6)]
    assert [value for value, _ in await asyncio.gather(*calls)] == [0, 2, 4, 6, 8, 10]


async def test_an_error_of_kairos_stays_one(batches):
    def away(q):
        raise Unavailable("later")

    known = RegisteredFunction(away, "pure", "", True)
    with pytest.raises(Unavailable, match="later"):
        await batches.value("f", known, {"q": 1}, 4, (1,), 0)


async def test_calls_that_nobody_waits_for_are_left_out(batches):
    asked = Asked()
    asked.gate.clear()
    first = asyncio.create_task(answers(batches, asked, range(8)))
    while len(asked.batches) < 2:
        await asyncio.sleep(0.01)
    gone = asyncio.create_task(batches.value("f", asked.known, {"q": 99}, 4, (9,), 0))
    await turns()
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    asked.gate.set()
    await first
    assert all(99 not in each for each in asked.batches)


async def test_calls_with_other_arguments_do_not_go_together(batches):
    seen = []

    def count(**arguments):
        seen.append(sorted(arguments))
        return [0] * len(next(iter(arguments.values())))

    known = RegisteredFunction(count, "pure", "", True)
    await asyncio.gather(
        batches.value("f", known, {"q": 1}, 4, (1,), 0),
        batches.value("f", known, {"p": 1}, 4, (1,), 0),
    )
    assert sorted(seen) == [["p"], ["q"]]


async def test_tenants_take_turns(batches):
    asked = Asked()
    asked.gate.clear()
    many = asyncio.create_task(answers(batches, asked, range(40), tenant=lambda _: "a"))
    while len(asked.batches) < 2:
        await asyncio.sleep(0.01)
    one = asyncio.create_task(answers(batches, asked, [1_000], tenant=lambda _: "b"))
    await turns()
    asked.gate.set()
    await asyncio.gather(many, one)
    assert any(1_000 in each for each in asked.batches[:4])

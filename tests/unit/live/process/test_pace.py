"""How many steps of calls begin in a turn of the loop."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from kairos.live.process.pace import MOST, LoopPace


async def test_a_step_that_is_alone_begins_at_once():
    begun = []
    LoopPace().begin(lambda: begun.append(1))
    assert begun == [1]


async def test_others_are_served_between_many_steps():
    said = []
    pace = LoopPace()
    for number in range(10 * MOST):
        pace.begin(lambda number=number: said.append(number))
    asyncio.get_running_loop().call_soon(said.append, "a question")
    while len(said) <= 10 * MOST:
        await asyncio.sleep(0)

    assert [each for each in said if each != "a question"] == list(range(10 * MOST))
    assert said.index("a question") <= 2 * MOST


@given(st.lists(st.integers(0, 3 * MOST), max_size=12))
def test_in_each_turn_a_few_begin_in_order_and_none_is_lost(arrivals):
    async def run():
        pace, turns, number = LoopPace(), [], 0
        begun = []
        for count in arrivals:
            for _ in range(count):
                pace.begin(lambda number=number: begun.append(number))
                number += 1
            await asyncio.sleep(0)
            turns.append(len(begun))
        while len(begun) < number:
            before = len(begun)
            await asyncio.sleep(0)
            assert len(begun) > before
            turns.append(len(begun))
        assert begun == list(range(number))
        # What comes as a turn begins may begin in it, beside what waited for it.
        assert all(b - a <= 2 * MOST for a, b in zip([0, *turns], turns, strict=False))

    asyncio.run(run())


async def test_a_step_may_begin_another():
    begun = []
    pace = LoopPace()

    def step():
        begun.append(1)
        if len(begun) < 5 * MOST:
            pace.begin(step)

    step()
    while len(begun) < 5 * MOST:
        await asyncio.sleep(0)

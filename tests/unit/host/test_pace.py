"""How long steps of calls begin without a look at what has come."""

import asyncio
from unittest import mock

from hypothesis import given
from hypothesis import strategies as st

from kairos.host import LoopPace
from kairos.host import pace as module
from kairos.host.pace import STRETCH_S

MOST = 4  # steps of a stretch, in these tests


class Clock:
    def __init__(self):
        self.now_s = 100.0

    def perf_counter(self):
        return self.now_s


def in_time(run):
    """`run(pace, step)`, where a step that is begun takes a part of a stretch."""
    clock = Clock()

    def step(begin):
        def timed(*arguments):
            begin(*arguments)
            clock.now_s += 1.001 * STRETCH_S / MOST  # sums are rounded

        return timed

    with mock.patch.object(module, "time", clock):
        asyncio.run(run(LoopPace(), step))


async def test_a_step_that_is_alone_begins_at_once():
    begun = []
    LoopPace().begin_step("a", begun.append, 1)
    assert begun == [1]


def test_others_are_served_between_many_steps():
    said = []

    async def run(pace, step):
        for number in range(10 * MOST):
            pace.begin_step("a", step(said.append), number)
        asyncio.get_running_loop().call_soon(said.append, "a question")
        while len(said) <= 10 * MOST:
            await asyncio.sleep(0)

    in_time(run)
    assert [each for each in said if each != "a question"] == list(range(10 * MOST))
    assert said.index("a question") <= 2 * MOST


@given(st.lists(st.integers(0, 3 * MOST), max_size=12))
def test_in_each_turn_a_few_begin_in_order_and_none_is_lost(arrivals):
    async def run(pace, step):
        turns, begun, number = [], [], 0
        for count in arrivals:
            for _ in range(count):
                pace.begin_step("a", step(begun.append), number)
                number += 1
            await asyncio.sleep(0)
            turns.append(len(begun))
        while len(begun) < number:
            before = len(begun)
            await asyncio.sleep(0)
            assert len(begun) > before
            turns.append(len(begun))
        assert begun == list(range(number))
        # The rest of a stretch, a new one, and what waited for the next turn.
        assert all(b - a <= 3 * MOST for a, b in zip([0, *turns], turns, strict=False))

    in_time(run)


def test_a_step_may_begin_another():
    begun = []

    async def run(pace, step):
        def another():
            begun.append(1)
            if len(begun) < 5 * MOST:
                pace.begin_step("a", step(another))

        pace.begin_step("a", step(another))
        while len(begun) < 5 * MOST:
            await asyncio.sleep(0)

    in_time(run)


def test_a_stretch_that_is_over_ends_with_a_look_whatever_else_the_loop_did():
    """Steps in one callback, however late: the loop has not turned since the first."""
    begun, turns = [], []

    async def run(pace, step):
        def burst():
            for number in range(3 * MOST):
                pace.begin_step("a", step(begun.append), number)
            turns.append(len(begun))

        asyncio.get_running_loop().call_soon(burst)
        while len(begun) < 3 * MOST:
            await asyncio.sleep(0)

    in_time(run)
    assert turns == [MOST]


def test_thousands_of_one_caller_do_not_delay_anothers():
    begun = []

    async def run(pace, step):
        for _ in range(50 * MOST):
            pace.begin_step("crowd", step(begun.append), "crowd")
        pace.begin_step("other", step(begun.append), "other")
        while len(begun) <= 50 * MOST:
            await asyncio.sleep(0)

    in_time(run)
    assert begun.index("other") <= 2 * MOST
    assert begun.count("crowd") == 50 * MOST


def test_callers_have_the_same_time_however_long_their_steps():
    """A turn is a time: many short steps, or one long."""
    begun = []

    async def run(pace, step):
        clock = module.time

        def short():
            begun.append("short")
            clock.now_s += STRETCH_S / 100

        def long():
            begun.append("long")
            clock.now_s += STRETCH_S / 4

        pace.begin_step("first", step(begun.append), "first")
        for _ in range(6 * MOST):
            pace.begin_step("long", long)
        for _ in range(100):
            pace.begin_step("short", short)
        while len(begun) < 101 + 6 * MOST:
            await asyncio.sleep(0)

    in_time(run)
    last_short = max(n for n, each in enumerate(begun) if each == "short")
    assert begun[last_short:].count("long") >= 2 * MOST

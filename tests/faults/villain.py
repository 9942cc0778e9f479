"""Other callers' latency beside one whose calls break what serves them:
`python -m tests.faults.villain`, a minute.

Two stand-ins, each behind a proxy that, at a call which says a certain word, closes the connection
and goes on serving all others; or dies, with all that it has, and is started again two seconds
later. Eight callers make one call after the other; the villain makes one each half second, whatever
became of those before, always the same or each time another. On real vLLM: `villain_vllm.py`.
"""

import asyncio
import logging
import statistics
import time
from contextlib import AsyncExitStack, asynccontextmanager

import msgspec

from tests.e2e.served import serving
from tests.faults.faults import Cut, Delay
from tests.faults.poison import POISON, is_poison
from tests.faults.proxy import Proxy
from tests.support.simulate import standin as standins
from tests.support.simulate.standin import Timing

CALLERS = 8
EACH_S = 0.5  # between two poisonous calls
TOKENS, POISON_TOKENS = 10, 1000  # who dies does so amid a call
DIES_S, DOWN_S = 0.02, 2.0  # after the poison has come, and until it is started again


class Told(msgspec.Struct):
    """What became of the calls."""

    latencies_s: list[float] = []
    failed: list[int] = []  # by their status; 0: no answer
    villains: list[tuple[int, str]] = []  # status, code of the error
    doubted: int = 0  # the most instances that were away or left alone at once


class Mortal(Proxy):
    """Before an engine that can die of the poison."""

    def __init__(self, engine_url, down_s=DOWN_S):
        super().__init__(engine_url, on_hurt=self._struck)
        self._down_s = down_s
        self._deaths = set()
        self.died = 0

    async def __aexit__(self, *raised):
        for death in list(self._deaths):
            death.cancel()
        await super().__aexit__(*raised)

    def break_at_poison(self):
        self.hurt(Cut(), times=None, when=is_poison)

    def die_at_poison(self):
        self.hurt(Delay(0.0), times=None, when=is_poison)

    def _struck(self, _request, how):
        if how == "Delay":
            self._deaths.add(death := asyncio.create_task(self._die()))
            death.add_done_callback(self._deaths.discard)

    async def _die(self):
        """While it works on the call; and come back."""
        await asyncio.sleep(DIES_S)
        if self.listens:
            self.died += 1
            await self.refuse()
            await asyncio.sleep(self._down_s)
            await self.listen()


@asynccontextmanager
async def two_that_break():
    """A Kairos before two engines that break off at the poison, and their proxies."""
    async with _two(Mortal.break_at_poison) as served_and_proxies:
        yield served_and_proxies


@asynccontextmanager
async def two_that_die():
    """The same of two that die of it."""
    async with _two(Mortal.die_at_poison) as served_and_proxies:
        yield served_and_proxies


@asynccontextmanager
async def _two(suffer):
    timing = Timing(step_s=0.001, step_per_seq_s=0.0)
    settings = standins.StandInSettings(model="tiny", max_num_seqs=16, timing=timing)
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        engines = [await enter(standins.serve(settings)) for _ in range(2)]
        proxies = [await enter(Mortal(each.url)) for each in engines]
        for each in proxies:
            suffer(each)
        yield await enter(serving(*(each.url for each in proxies), max_num_seqs=16)), proxies


async def play(served, *, seconds, poison=None):
    """`poison`: what the villain's nth call says."""
    told, until = Told(), time.monotonic() + seconds
    async with asyncio.TaskGroup() as tasks:
        for number in range(CALLERS):
            tasks.create_task(_calls(served, told, until, f"caller {number}"))
        if poison is not None:
            tasks.create_task(_villain(served, told, until, poison))
        tasks.create_task(_watch(served, told, until))
    return told


async def _calls(served, told, until, text):
    while time.monotonic() < until:
        began = time.monotonic()
        try:
            status = (await _ask(served, text, agent="caller")).status
        except TimeoutError:
            status = 0
        told.latencies_s.append(time.monotonic() - began)
        if status != 200:
            told.failed.append(status)
            await asyncio.sleep(0.05)


async def _villain(served, told, until, poison):
    async with asyncio.TaskGroup() as calls:
        number = 0
        while time.monotonic() < until:
            calls.create_task(_poisons(served, told, poison(number)))
            number += 1
            await asyncio.sleep(EACH_S)


async def _poisons(served, told, text):
    try:
        answer = await _ask(served, text, agent="villain", tokens=POISON_TOKENS)
    except TimeoutError:
        told.villains.append((0, "no answer"))
    else:
        told.villains.append((answer.status, answer.error()["code"]))


async def _watch(served, told, until):
    while time.monotonic() < until:
        told.doubted = max(told.doubted, 2 - states(served).count("closed"))
        await asyncio.sleep(0.005)


def states(served):
    """Of the circuits of instances that are there."""
    circuits, balancer = served.balancer.faults.circuits, served.balancer
    return [circuits.state(each, balancer.at) for each in balancer.ledger.instances]


async def _ask(served, text, *, agent, tokens=TOKENS):
    headers = {"x-kairos-agent": agent, "x-kairos-app": "neighbours"}
    messages = [{"role": "user", "content": text}]
    fields = {"max_tokens": tokens, "min_tokens": tokens, "messages": messages}
    return await served.chat(headers=headers, **fields)


def always_the_same(_):
    return POISON


def each_another(number):
    return f"{POISON} {number}"


async def _main(seconds=8.0):
    heads = ("calls", "mean ms", "p99 ms", "failed", "in doubt", "died")
    print(f"{'engines, villain says':28}" + "".join(f"{each:>10}" for each in heads))
    for engines, two in (("break", two_that_break), ("die", two_that_die)):
        for poison in (None, always_the_same, None, each_another):
            async with two() as (served, proxies):
                await play(served, seconds=1)
                told = await play(served, seconds=seconds, poison=poison)
            name = f"{engines}, {'nothing' if poison is None else poison.__name__}"
            died = sum(each.died for each in proxies)
            print(f"{name:28}{_row(told)}{died:10}", *sorted(set(told.villains)), flush=True)


def _row(told):
    ms = sorted(1000 * each for each in told.latencies_s)
    p99 = ms[int(0.99 * len(ms))]
    figures = f"{len(ms):10}{statistics.fmean(ms):10.2f}{p99:10.2f}"
    return f"{figures}{len(told.failed):10}{told.doubted:10}"


if __name__ == "__main__":
    # Stand-ins complain of each proxy that leaves.
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)
    asyncio.run(_main())

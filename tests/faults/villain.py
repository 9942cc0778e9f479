"""Other callers' latency beside one whose calls break what serves them:
`python -m tests.faults.villain`, a minute.

Two stand-ins, each behind a proxy that closes the connection at a call which says a certain word,
and goes on serving all others. Eight callers make one call after the other; the villain makes one
each half second, always the same or each time another.
"""

import asyncio
import statistics
import time
from contextlib import AsyncExitStack, asynccontextmanager

import msgspec

from kairos.standin import server as standins
from kairos.standin.batch import Timing
from tests.e2e.served import serving
from tests.faults.faults import Cut
from tests.faults.proxy import Proxy, is_call

POISON = "abracadabra"
CALLERS = 8
EACH_S = 0.5  # between two poisonous calls
TOKENS = 10


class Told(msgspec.Struct):
    """What became of the calls."""

    latencies_s: list[float] = []
    failed: list[int] = []  # by their status
    villains: list[tuple[int, str]] = []  # status, code of the error
    doubted: int = 0  # the most instances that were left alone at once


@asynccontextmanager
async def two_that_break():
    """A Kairos before two engines that break off at the poison."""
    timing = Timing(step_s=0.001, step_per_seq_s=0.0)
    settings = standins.StandInSettings(model="tiny", max_num_seqs=16, timing=timing)
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        engines = [await enter(standins.serve(settings)) for _ in range(2)]
        proxies = [await enter(Proxy(each.url)) for each in engines]
        for proxy in proxies:
            proxy.hurt(Cut(), times=None, when=lambda r: is_call(r) and POISON.encode() in r.raw)
        yield await enter(serving(*(each.url for each in proxies), max_num_seqs=16))


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
        answer = await _ask(served, text, agent="caller")
        told.latencies_s.append(time.monotonic() - began)
        if answer.status != 200:
            told.failed.append(answer.status)


async def _villain(served, told, until, poison):
    number = 0
    while time.monotonic() < until:
        answer = await _ask(served, poison(number), agent="villain")
        told.villains.append((answer.status, answer.error()["code"]))
        number += 1
        await asyncio.sleep(EACH_S)


async def _watch(served, told, until):
    circuits, balancer = served.balancer.faults.circuits, served.balancer
    while time.monotonic() < until:
        states = [circuits.state(each, balancer.at) for each in balancer.ledger.instances]
        told.doubted = max(told.doubted, len(states) - states.count("closed"))
        await asyncio.sleep(0.005)


async def _ask(served, text, *, agent):
    headers = {"x-kairos-agent": agent, "x-kairos-app": "neighbours"}
    messages = [{"role": "user", "content": text}]
    fields = {"max_tokens": TOKENS, "min_tokens": TOKENS, "messages": messages}
    return await served.chat(headers=headers, **fields)


def always_the_same(_):
    return POISON


def each_another(number):
    return f"{POISON} {number}"


async def _main(seconds=8.0):
    heads = ("calls", "mean ms", "p99 ms", "failed", "in doubt")
    print(f"{'the villain says':20}" + "".join(f"{each:>10}" for each in heads))
    for name, poison in (
        ("nothing", None),
        ("always the same", always_the_same),
        ("nothing", None),
        ("each time another", each_another),
    ):
        async with two_that_break() as served:
            await play(served, seconds=1)
            told = await play(served, seconds=seconds, poison=poison)
        ms = sorted(1000 * each for each in told.latencies_s)
        p99 = ms[int(0.99 * len(ms))]
        figures = f"{len(ms):10}{statistics.fmean(ms):10.2f}{p99:10.2f}{len(told.failed):10}"
        print(f"{name:20}{figures}{told.doubted:10}", *sorted(set(told.villains)))


if __name__ == "__main__":
    asyncio.run(_main())

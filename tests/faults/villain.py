"""Other callers' latency beside one whose calls break what serves them:
`python -m tests.faults.villain`, a minute.

Two stand-ins, each behind a proxy that, at a call which says a certain word, closes the connection
and goes on serving all others; or dies, with all that it has, and is started again two seconds
later. Some callers make one call after the other; the villain makes one each half second, whatever
became of those before, always the same or each time another. On real vLLM: `villain_vllm.py`.
"""

import asyncio
import logging
import math
import statistics
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import AsyncExitStack, asynccontextmanager

import msgspec

from tests.acceptance.chats import Chats
from tests.e2e.served import serving
from tests.faults.faults import Cut, Delay
from tests.faults.poison import POISON, is_poison
from tests.faults.proxy import Proxy
from tests.soak.client import Outcome, call, session
from tests.support.simulate import standin as standins
from tests.support.simulate.standin import Timing

MODEL = "tiny"
PATIENCE_S = 60.0
EACH_S = 0.5  # between two poisonous calls
DIES_S, DOWN_S = 0.02, 2.0  # after the poison has come, and until it is started again
HEADS = ("calls", "mean ms", "slowest s", "failed", "died", "in doubt")


class Load(msgspec.Struct, frozen=True):
    """What callers ask, one call after the other, and the villain, who kills amid a call."""

    callers: int = 8
    pause_s: float = 0.0
    tokens: tuple[int, int] = (10, 10)
    streamed: float = 0.0
    poison_tokens: int = 1000
    watched_s: float = 0.0  # after the callers have ended, while the last poison is tried


class Told(msgspec.Struct):
    """What became of the calls of one play."""

    others: list[Outcome] = []
    villains: list[Outcome] = []
    killed: int = 0  # engines
    doubted: int = 0  # the most instances that were away or left alone at once

    @property
    def mean_s(self) -> float:
        """Of others' calls that were answered; nan: none was."""
        took = [each.seconds for each in self.others if each.end == "answered"]
        return statistics.fmean(took) if took else math.nan

    @property
    def failed(self) -> Counter[str]:
        return ends(each for each in self.others if each.end != "answered")


def ends(outcomes: Iterable[Outcome]) -> Counter[str]:
    return Counter(f"{each.end} {each.detail}".strip() for each in outcomes)


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
    settings = standins.StandInSettings(model=MODEL, max_num_seqs=16, timing=timing)
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        engines = [await enter(standins.serve(settings)) for _ in range(2)]
        proxies = [await enter(Mortal(each.url)) for each in engines]
        for each in proxies:
            suffer(each)
        yield await enter(serving(*(each.url for each in proxies), max_num_seqs=16)), proxies


async def play(served, mortals, name: str, *, seconds: float, poison=None, load=None) -> Told:
    """`poison`: what the villain's nth call says."""
    told, until, load = Told(), time.monotonic() + seconds, load or Load()
    before = sum(each.died for each in mortals)
    chats = _chats(name, {"caller": load.tokens}, 10, load.streamed)
    watching = asyncio.create_task(_watch(served, told, until + load.watched_s))
    async with session() as clients, asyncio.TaskGroup() as tasks:

        async def calls() -> None:
            while time.monotonic() < until:
                told.others.append(await call(clients, served.url, chats.single()))
                await asyncio.sleep(load.pause_s)

        async def poisons(ask) -> None:
            told.villains.append(await call(clients, served.url, ask))

        for _ in range(load.callers):
            tasks.create_task(calls())
        number = 0
        while poison is not None and time.monotonic() < until:
            tasks.create_task(poisons(_poisonous(f"{name}-{number}", poison(number), load)))
            number += 1
            await asyncio.sleep(EACH_S)
    watching.cancel()
    told.killed = sum(each.died for each in mortals) - before
    return told


def _chats(name, lengths, words, streamed):
    return Chats(
        name, model=MODEL, lengths=lengths, words=words, streamed=streamed, patience_s=PATIENCE_S
    )


def _poisonous(name, text, load):
    """A call that would take long, were it not to kill what serves it."""
    length = load.poison_tokens, load.poison_tokens
    ask = _chats(f"{name}-villain", {"villain": length}, 1, 0.0).single()
    body = msgspec.json.decode(ask.body)
    body["messages"] = [{"role": "user", "content": text}]
    return msgspec.structs.replace(ask, body=msgspec.json.encode(body))


async def _watch(served, told, until) -> None:
    while time.monotonic() < until:
        told.doubted = max(told.doubted, 2 - states(served).count("closed"))
        await asyncio.sleep(0.005)


def states(served):
    """Of the circuits of instances that are there."""
    circuits, balancer = served.balancer.faults.circuits, served.balancer
    return [circuits.state(each, balancer.at) for each in balancer.ledger.instances]


def always_the_same(_):
    return POISON


def each_another(number):
    return f"{POISON} {number}"


def show(what: str, told: Told, complaints: Iterable[str] = ()) -> None:
    slowest_s = max(each.seconds for each in told.others)
    figures = f"{len(told.others):10}{1000 * told.mean_s:10.2f}{slowest_s:10.2f}"
    print(f"{what:24}{figures}{told.failed.total():10}{told.killed:10}{told.doubted:10}")
    for who, counts in (("others", told.failed), ("villain", ends(told.villains))):
        if counts:
            print(f"    {who}: {dict(counts)}")
    for each in complaints:
        print(f"    wrong: {each}", flush=True)


def show_heads(first: str) -> None:
    print(f"{first:24}" + "".join(f"{each:>10}" for each in HEADS), flush=True)


async def _main(seconds=8.0):
    show_heads("engines, villain says")
    for engines, two in (("break", two_that_break), ("die", two_that_die)):
        for poison in (None, always_the_same, None, each_another):
            async with two() as (served, proxies):
                await play(served, proxies, "first", seconds=1)
                told = await play(served, proxies, "play", seconds=seconds, poison=poison)
            show(f"{engines}, {'nothing' if poison is None else poison.__name__}", told)


if __name__ == "__main__":
    # Stand-ins complain of each proxy that leaves.
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)
    asyncio.run(_main())

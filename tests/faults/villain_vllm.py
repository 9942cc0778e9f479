"""The villain before real vLLM: one caller whose calls kill the engine core, beside others.
`python -m tests.faults.villain_vllm`, five minutes.

Two vLLM, each behind a proxy that lets everything pass; when a call says a certain word, the
process of the engine core is killed while it works on it, and vLLM does what it does then. An
operator starts again what has ended. Some callers make one call after the other; the villain makes
one each half second, whatever became of those before, always the same or each time another.
"""

import argparse
import asyncio
import math
import os
import signal
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import msgspec

from tests.acceptance.chats import Chats
from tests.acceptance.instance import Instance
from tests.e2e.served import serving
from tests.faults.faults import Delay
from tests.faults.poison import is_poison
from tests.faults.proxy import Proxy
from tests.faults.villain import EACH_S, always_the_same, each_another, states
from tests.soak.client import Outcome, call, session
from tests.support.vllm import READY_S, descendants, named

MODEL, SLOTS = "tiny", 8
CALLERS, PAUSE_S = 4, 0.1  # one engine alone can serve them all
TOKENS = 10, 20
PATIENCE_S = 60.0
DIES_S = 0.05  # after the poison has come
BEFORE_S, BESIDE_S = 20.0, 60.0  # without the villain, and with it
DEARER = 1.5  # others' mean beside it, at most, to that without


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
        return _ends(each for each in self.others if each.end != "answered")

    @property
    def villains_were_told(self) -> Counter[str]:
        return _ends(self.villains)


def wrong(before: Told, beside: Told) -> Iterator[str]:
    """What is not as it has to be."""
    if beside.failed:
        yield f"others' calls failed: {dict(beside.failed)}"
    if not beside.mean_s <= DEARER * before.mean_s:
        yield f"others' mean is {beside.mean_s:.2f} s, {before.mean_s:.2f} s without the villain"
    if beside.doubted > 1:
        yield f"{beside.doubted} instances were in doubt at once"
    if not beside.killed:
        yield "no engine was killed: this shows nothing"
    unclear = [
        each
        for each in beside.villains
        if each.end != "gave up"
        and not (each.end == "error" and each.detail[:1] == "4")
        and each.detail != "502 call_breaks_engines"
    ]
    if unclear:
        yield f"the villain was told {dict(_ends(unclear))}"


class Mortal:
    """A vLLM that dies of the poison, behind its proxy, and whoever starts it again."""

    def __init__(self, instance: Instance) -> None:
        self._instance = instance
        self.proxy = Proxy(instance.url, on_hurt=self._struck)
        self.proxy.hurt(Delay(0.0), times=None, when=is_poison)
        self.killed = 0

    async def operate(self) -> None:
        """Whenever it has ended, start it again; nobody listens until it is ready."""
        while True:
            if not self._instance.process.runs:
                await self.proxy.refuse()
                await asyncio.to_thread(self._instance.restart)
                await self._instance.until_ready()
                await self.proxy.listen()
            await asyncio.sleep(0.1)

    def _struck(self, _request, how: str) -> None:
        if how == "Delay":
            asyncio.get_running_loop().call_later(DIES_S, self._kill)

    def _kill(self) -> None:
        process = self._instance.process
        if not process.runs:
            return
        core = named("VLLM::EngineCore", descendants(process.pid))
        if core is not None:  # or it is dead already, and vLLM about to end
            with suppress(ProcessLookupError):
                os.kill(core, signal.SIGKILL)
                self.killed += 1


@asynccontextmanager
async def two_that_die(directory: Path):
    """A Kairos before two such vLLM, and these."""
    async with AsyncExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="kairos-"))
        instances = [
            Instance(directory, number, model=MODEL, max_num_seqs=SLOTS, scratch=scratch)
            for number in (1, 2)
        ]
        for each in instances:
            stack.enter_context(each.process)  # starts it
        for each in instances:
            await each.until_ready()
        mortals = [Mortal(each) for each in instances]
        for each in mortals:
            await stack.enter_async_context(each.proxy)
        urls = [each.proxy.url for each in mortals]
        served = await stack.enter_async_context(serving(*urls, max_num_seqs=SLOTS))
        operators = [asyncio.create_task(each.operate()) for each in mortals]
        try:
            yield served, mortals
        finally:
            for each in operators:
                each.cancel()
            await asyncio.gather(*operators, return_exceptions=True)


async def play(served, mortals, name: str, *, seconds: float, poison=None) -> Told:
    """`poison`: what the villain's nth call says."""
    told, until = Told(), time.monotonic() + seconds
    before = sum(each.killed for each in mortals)
    chats = Chats(
        name, model=MODEL, lengths={"caller": TOKENS}, words=10, streamed=0.5, patience_s=PATIENCE_S
    )
    watching = asyncio.create_task(_watch(served, told))
    async with session() as clients, asyncio.TaskGroup() as tasks:
        for _ in range(CALLERS):
            tasks.create_task(_calls(clients, served, told, until, chats))
        number = 0
        while poison is not None and time.monotonic() < until:
            tasks.create_task(_poisons(clients, served, told, _poisonous(name, number, poison)))
            number += 1
            await asyncio.sleep(EACH_S)
    watching.cancel()
    told.killed = sum(each.killed for each in mortals) - before
    return told


async def _calls(clients, served, told, until, chats) -> None:
    while time.monotonic() < until:
        told.others.append(await call(clients, served.url, chats.single()))
        await asyncio.sleep(PAUSE_S)


async def _poisons(clients, served, told, ask) -> None:
    told.villains.append(await call(clients, served.url, ask))


def _poisonous(name, number, poison):
    """A call that would take long, were it not to kill what serves it."""
    chats = Chats(
        f"{name}-villain-{number}",
        model=MODEL,
        lengths={"villain": (500, 500)},
        words=1,
        streamed=0.0,
        patience_s=PATIENCE_S,
    )
    ask = chats.single()
    body = msgspec.json.decode(ask.body)
    body["messages"] = [{"role": "user", "content": poison(number)}]
    return msgspec.structs.replace(ask, body=msgspec.json.encode(body))


async def _watch(served, told) -> None:
    while True:
        told.doubted = max(told.doubted, 2 - states(served).count("closed"))
        await asyncio.sleep(0.01)


def _ends(outcomes) -> Counter[str]:
    return Counter(f"{each.end} {each.detail}".strip() for each in outcomes)


async def until_well(served) -> None:
    """Both are there, and trusted or to be tried."""
    async with asyncio.timeout(READY_S):
        while "open" in (seen := states(served)) or len(seen) < 2:
            await asyncio.sleep(0.2)


async def _main(before_s: float, beside_s: float) -> None:
    heads = ("calls", "mean ms", "slowest s", "failed", "killed", "in doubt")
    print(f"{'the villain says':20}" + "".join(f"{each:>10}" for each in heads), flush=True)
    plays = [(None, before_s), (always_the_same, beside_s)]
    plays += [(None, before_s), (each_another, beside_s)]
    with tempfile.TemporaryDirectory(prefix="kairos-villain-") as directory:
        async with two_that_die(Path(directory)) as (served, mortals):
            await play(served, mortals, "first", seconds=5)  # first answers take a while
            for number, (poison, seconds) in enumerate(plays):
                name = f"play-{number}"
                told = await play(served, mortals, name, seconds=seconds, poison=poison)
                if poison is None:
                    before = told
                    _show("nothing", told)
                else:
                    _show(poison.__name__, told, wrong(before, told))
                    await until_well(served)


def _show(what: str, told: Told, complaints: Iterable[str] = ()) -> None:
    slowest_s = max(each.seconds for each in told.others)
    figures = f"{len(told.others):10}{1000 * told.mean_s:10.0f}{slowest_s:10.2f}"
    print(f"{what:20}{figures}{told.failed.total():10}{told.killed:10}{told.doubted:10}")
    for who, ends in (("others", told.failed), ("villain", told.villains_were_told)):
        if ends:
            print(f"    {who}: {dict(ends)}")
    for each in complaints:
        print(f"    wrong: {each}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.villain_vllm")
    parser.add_argument("--before-s", type=float, default=BEFORE_S)
    parser.add_argument("--beside-s", type=float, default=BESIDE_S)
    options = parser.parse_args()
    asyncio.run(_main(options.before_s, options.beside_s))


if __name__ == "__main__":
    main()

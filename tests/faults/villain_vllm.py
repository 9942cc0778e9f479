"""The villain before real vLLM: one caller whose calls kill the engine core, beside others.
`python -m tests.faults.villain_vllm`, five minutes.

Two vLLM, each behind a proxy that lets everything pass; when a call says a certain word, the
process of the engine core is killed while it works on it, and vLLM does what it does then. An
operator starts again what has ended. Some callers make one call after the other; the villain makes
one each half second, whatever became of those before, always the same or each time another.
"""

import argparse
import asyncio
import os
import signal
import tempfile
from collections.abc import Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path

from tests.acceptance.instance import Instance
from tests.e2e.served import serving
from tests.faults import villain
from tests.faults.faults import Delay
from tests.faults.poison import is_poison
from tests.faults.proxy import Proxy
from tests.faults.villain import (
    MODEL,
    Load,
    Told,
    always_the_same,
    each_another,
    ends,
    show,
    show_heads,
    states,
)
from tests.support.vllm import READY_S, descendants, named

SLOTS = 8
# One engine alone can serve them all.
LOAD = Load(
    callers=4, pause_s=0.1, tokens=(10, 20), streamed=0.5, poison_tokens=500, watched_s=READY_S
)
DIES_S = 0.05  # after the poison has come
BEFORE_S, BESIDE_S = 20.0, 60.0  # without the villain, and with it
DEARER = 1.5  # others' mean beside it, at most, to that without
play = partial(villain.play, load=LOAD)


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
        yield f"the villain was told {dict(ends(unclear))}"


class Mortal:
    """A vLLM that dies of the poison, behind its proxy, and whoever starts it again."""

    def __init__(self, instance: Instance) -> None:
        self._instance = instance
        self.proxy = Proxy(instance.url, on_hurt=self._struck)
        self.proxy.hurt(Delay(0.0), times=None, when=is_poison)
        self.died = 0

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
                self.died += 1


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


async def until_well(served) -> None:
    """Both are there, and trusted or to be tried."""
    async with asyncio.timeout(READY_S):
        while "open" in (seen := states(served)) or len(seen) < 2:
            await asyncio.sleep(0.2)


async def _main(before_s: float, beside_s: float) -> None:
    show_heads("the villain says")
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
                    show("nothing", told)
                else:
                    show(poison.__name__, told, wrong(before, told))
                    await until_well(served)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.villain_vllm")
    parser.add_argument("--before-s", type=float, default=BEFORE_S)
    parser.add_argument("--beside-s", type=float, default=BESIDE_S)
    options = parser.parse_args()
    asyncio.run(_main(options.before_s, options.beside_s))


if __name__ == "__main__":
    main()

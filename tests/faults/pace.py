"""Are calls moved without need? On real vLLM under more load than it bears:
`python -m tests.faults.pace --seconds 1200`, and a minute to start.

Two vLLM on the CPU, a core each, with little KV memory. Callers make one call after the other: most
prompts are short, some nearly as long as the model takes (8,192 tokens), two thirds of the answers
are streamed, and some clients read slowly. By turns, `round-robin` gives the engines more than
their memory holds, so that calls are preempted. Nothing is done to the engines: each call that is
moved because nothing comes of it is a false alarm.
"""

import argparse
import asyncio
import random
import tempfile
import time
from collections import Counter
from pathlib import Path

import aiohttp
import msgspec

from kairos.core import Bounced, InstanceStatus
from tests.e2e.served import serving
from tests.support import vllm

LONGEST = 7700  # tokens of a prompt; with the answer, the engine takes 8,192
LONG, SHORT = 0.08, 1000  # share of prompts beyond half of the longest; the others are up to that
OPTIONS = ("--max-model-len", "8192", "--num-gpu-blocks-override", "352", "--max-num-seqs", "32")
CALLERS, SLOW = 32, 3  # of the callers so many read slowly
SHOW_S = 30.0


class Told(msgspec.Struct):
    """What became of the calls."""

    statuses: Counter[int] = msgspec.field(default_factory=Counter)
    waits_s: list[float] = []  # for the first byte of a streamed answer, the queue included


class Caller:
    def __init__(self, served, session, told, number, seed):
        self._url, self._session, self._told = served.url, session, told
        self._is_slow = number < SLOW
        self._dice = random.Random(f"{seed} {number}")

    async def run(self, until):
        while time.monotonic() < until:
            await self._call()

    def _body(self):
        dice = self._dice
        is_long = dice.random() < LONG
        size = dice.randrange(LONGEST // 2, LONGEST) if is_long else dice.randrange(20, SHORT)
        tokens = 300 if self._is_slow else dice.randrange(10, 200)
        return {
            "model": "tiny",
            "prompt": dice.choices(range(100, 250), k=size),  # ids of tokens
            "max_tokens": tokens,
            "ignore_eos": True,
            "stream": self._is_slow or dice.random() < 2 / 3,
        }

    async def _call(self):
        body, began = self._body(), time.monotonic()
        async with self._session.post(f"{self._url}/v1/completions", json=body) as response:
            async for _ in response.content.iter_any():
                if body["stream"] and began:
                    self._told.waits_s.append(time.monotonic() - began)
                    began = 0.0
                if self._is_slow:
                    await asyncio.sleep(0.2)
            self._told.statuses[response.status] += 1


def line(served, told):
    statuses = served.facts.all(InstanceStatus)
    preemptions = {each.instance_id: each.preemptions or 0 for each in statuses}
    moved = Counter(each.reason for each in served.facts.all(Bounced))
    waiting = max((each.waiting or 0 for each in statuses[-20:]), default=0)
    waits = sorted(told.waits_s) or [0.0]
    middle, late = waits[len(waits) // 2], waits[int(0.99 * len(waits))]
    return (
        f"{sum(told.statuses.values()):6} calls {dict(told.statuses)}, "
        f"{sum(preemptions.values())} preemptions, {waiting} wait inside; first byte after "
        f"{middle:.1f} s, p99 {late:.1f} s, at most {waits[-1]:.1f} s; moved {moved.total()}, "
        f"false alarms {moved['stalled']}"
    )


async def play(urls, *, seconds, seed, placement):
    told = Told()
    async with (
        serving(*urls, placement=placement) as served,
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as session,
    ):
        began = time.monotonic()
        callers = [
            asyncio.create_task(Caller(served, session, told, n, seed).run(began + seconds))
            for n in range(CALLERS)
        ]
        while (await asyncio.wait(callers, timeout=SHOW_S))[1]:
            print(f"{time.monotonic() - began:5.0f} s {line(served, told)}", flush=True)
        await asyncio.gather(*callers)
        print(f"in all  {line(served, told)}")
        return served.facts.all(Bounced)


async def _main():
    parser = argparse.ArgumentParser(prog="python -m tests.faults.pace")
    parser.add_argument("--seconds", type=float, default=1200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--placement", default="round-robin")
    asked = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="kairos-pace-"))
    with vllm.running(directory, *OPTIONS) as urls:
        await play(urls, seconds=asked.seconds, seed=asked.seed, placement=asked.placement)


if __name__ == "__main__":
    asyncio.run(_main())

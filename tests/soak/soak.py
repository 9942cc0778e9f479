"""A soak: `kairos serve` before engines that are tormented, under calls without an end."""

import asyncio
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp

from kairos.observe import read_facts
from tests.faults.wire import Request
from tests.soak import verdict
from tests.soak.asks import Ask, Asks
from tests.soak.chaos import torment
from tests.soak.client import Outcome, call, session
from tests.soak.engine import Engine, EngineKind
from tests.soak.goodput import Goodput, goodput
from tests.soak.operator import Operator
from tests.soak.served import Served
from tests.soak.turns import Turns
from tests.soak.verdict import Ending, Sample

SHOW_S = 10.0
MEASURE_S = 6.0  # after as long, in which engines become warm
MAX_WAIT_S = 4
# Bounds that a burst reaches now and then.
LIMITS = {"KAIROS_MAX_WAITING": "100", "KAIROS_MAX_WAIT_S": str(MAX_WAIT_S)}


class Soak:
    """One run. What it has seen so far can be looked at at any time."""

    def __init__(
        self,
        directory: Path,
        *,
        seconds: float,
        seed: int,
        kind: EngineKind,
        engines: int,
        show: Callable[[str], None],
    ) -> None:
        self._seconds, self._seed, self._show = seconds, seed, show
        self._kind = kind
        self._asks = Asks(seed, kind, engines)
        self._engines = [
            Engine(kind, directory, number, seed=seed + number, on_hurt=self._hurt)
            for number in range(1, engines + 1)
        ]
        named = [
            f'[[engine]]\nurl = "{each.proxy.url}"\nmax_num_seqs = {kind.slots}'
            for each in self._engines
        ]
        settings = directory / "kairos.toml"
        self._kairos = Served(directory, ["--config", settings], LIMITS)
        self._turns = Turns(engines, lambda: self._elapsed_s)
        self._operator = Operator(settings, named, self._kairos.process, self._turns)
        self._began = time.monotonic()
        self._calling = 0
        self._sent_bytes = 0
        self.made = 0
        self.outcomes: list[Outcome] = []
        self.probes: list[Outcome] = []
        self.measured: list[Outcome] = []  # before anything was hurt
        self.calls_per_s = kind.calls_per_s  # of which an engine is capable, on this machine
        self.hurts: dict[str, list[str]] = defaultdict(list)  # what was done to calls, by id
        self.blows = Counter[str]()
        self.samples: list[Sample] = []

    async def run(self) -> list[str]:
        """Run to the end. Returns what does not hold."""
        async with AsyncExitStack() as stack:
            for engine in self._engines:
                stack.push_async_callback(engine.stop)
                await engine.start()
            await stack.enter_async_context(self._kairos)
            await self._measure()
            await self._soak()
            for engine in self._engines:
                await engine.restore()
            try:
                await self._operator.restore()
                await self._kairos.until_all_joined()
                self.probes = await self._probe()
                urls = {each.process.name: each.url for each in self._engines}
                return self._judge(await self._kairos.ending(urls))
            except aiohttp.ClientError:
                if self._kairos.process.runs:
                    raise
                return [verdict.of_crash(self._kairos.process.said)]

    async def _measure(self) -> None:
        """Of what the engines are capable, when as many calls come as they take at once."""
        asks = Asks(-1 - self._seed, self._kind, len(self._engines))
        began, ends = time.monotonic(), []

        async def calls(clients: aiohttp.ClientSession) -> None:
            while time.monotonic() < began + 2 * MEASURE_S:
                self.measured.append(await call(clients, self._kairos.url, asks.plain()))
                ends.append(time.monotonic() - began)

        async with session() as clients:
            slots = self._kind.slots * len(self._engines)
            await asyncio.gather(*(calls(clients) for _ in range(slots)))
        counted = sum(MEASURE_S <= each < 2 * MEASURE_S for each in ends)
        self.calls_per_s = counted / MEASURE_S / len(self._engines)

    async def _soak(self) -> None:
        self._began = time.monotonic()
        async with asyncio.TaskGroup() as group:
            sampling = group.create_task(self._sample())
            beside = [group.create_task(self._progress())]
            operates = self._operator.work(random.Random(f"{self._seed} operator"))
            beside.append(group.create_task(operates))
            blows = random.Random(f"{self._seed} blows")
            torments = torment(self._engines, self._turns, blows, self.blows)
            beside.append(group.create_task(torments))
            async with session() as clients, asyncio.TaskGroup() as calls:
                await self._call(clients, calls)
                sampling.cancel()  # what is sent afterwards is nothing
            for task in beside:
                task.cancel()

    async def _call(self, clients: aiohttp.ClientSession, calls: asyncio.TaskGroup) -> None:
        for ask in self._asks:
            await asyncio.sleep(max(0.0, ask.at_s - self._elapsed_s))
            if self._elapsed_s >= self._seconds or not self._kairos.process.runs:
                return
            self.made += 1
            self._sent_bytes += len(ask.body)
            calls.create_task(self._outcome(clients, ask))

    async def _outcome(self, clients: aiohttp.ClientSession, ask: Ask) -> None:
        self._calling += 1
        self.outcomes.append(await call(clients, self._kairos.url, ask))
        self._calling -= 1

    async def _probe(self) -> list[Outcome]:
        """As many calls as the engines take at once without one that waits; all is well by now."""
        count = self._kind.slots * len(self._engines) // 2
        async with session() as clients:
            return await asyncio.gather(
                *(call(clients, self._kairos.url, self._asks.plain()) for _ in range(count))
            )

    def _judge(self, ending: Ending) -> list[str]:
        seen = [*self.measured, *self.outcomes, *self.probes]
        return [
            *verdict.of_calls(self.made, self.outcomes, self.hurts),
            *verdict.of_recovery([*self.measured, *self.probes]),
            *verdict.of_log(read_facts(self._kairos.facts), seen, self.hurts),
            *verdict.of_ending(ending),
            *verdict.of_settings(self.told, self._operator.unheard, ending.said),
            *verdict.of_memory(self.samples),
            *verdict.of_goodput(self.goodput),
        ]

    def _hurt(self, request: Request, how: str) -> None:
        self.hurts[request.headers.get("user-agent", "")].append(how)

    async def _sample(self) -> None:
        while self._kairos.process.runs:
            resident_bytes = self._kairos.resident_bytes()
            self.samples.append(
                Sample(self._elapsed_s, resident_bytes, self.made, self._sent_bytes)
            )
            await asyncio.sleep(verdict.SAMPLE_S)

    async def _progress(self) -> None:
        while True:
            await asyncio.sleep(SHOW_S)
            ends = Counter(each.end for each in self.outcomes)
            self._show(
                f"{self._elapsed_s:5.0f} s  {self.made} calls, {self._calling} under way; "
                f"{_counts(ends)}; {sum(self.blows.values())} blows; "
                f"{self.samples[-1].resident_bytes / 1e6:.0f} MB"
            )

    @property
    def _elapsed_s(self) -> float:
        return time.monotonic() - self._began

    @property
    def told(self) -> Counter[str]:
        """How often the settings were changed, by how."""
        return self._operator.told

    @property
    def goodput(self) -> Goodput | None:
        return goodput(
            self.outcomes, self._turns.changes, calls_per_s=self.calls_per_s, max_wait_s=MAX_WAIT_S
        )

    def summary(self) -> str:
        ends = Counter(each.end for each in self.outcomes)
        errors = Counter(each.detail for each in self.outcomes if each.end == "error")
        done = Counter(how for hows in self.hurts.values() for how in hows)
        lines = [
            f"{self.made} calls in {self._elapsed_s:.0f} s; seed {self._seed}",
            f"outcomes    {_counts(ends)}",
            f"errors      {_counts(errors)}",
            f"blows       {_counts(self.blows)}",
            f"calls hurt  {_counts(done)}",
            f"settings    {_counts(self.told)}",
            f"latency     {_latency([e.seconds for e in self.outcomes if e.end == 'answered'])}",
        ]
        if (seen := self.goodput) is not None:
            lines.append(
                f"goodput     {seen.did} calls served in time, of {seen.could} that the engines "
                f"which were well could have served: {seen.share:.1%}; each is capable of "
                f"{self.calls_per_s:.1f} calls/s"
            )
        if self.samples:
            lines.append(f"memory      {self._memory()}")
        return "\n".join(lines)

    def _memory(self) -> str:
        first, last = (self.samples[each].resident_bytes / 1e6 for each in (0, -1))
        said = f"{first:.0f} MB at first, {last:.0f} MB at last"
        seen = verdict.growth(self.samples)
        if seen is None:
            return f"{said}; too short a run to say how it grows"
        return (
            f"{said}, {seen.resident_mb:+.0f} MB/hour in the second half; clients sent "
            f"{seen.sent_mb:.0f} MB/hour in {seen.calls:.0f} calls"
        )


def _counts(counter: Counter[Any]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counter.most_common()) or "none"


def _latency(seconds: list[float]) -> str:
    if not seconds:
        return "nothing was answered"
    seconds.sort()
    p50, p99 = (seconds[int(share * (len(seconds) - 1))] for share in (0.5, 0.99))
    return f"of answered calls p50 {p50:.2f} s, p99 {p99:.2f} s"

"""Twice what the engines can do, for minutes; then a light load, as before it.

`python -m tests.acceptance.overload --seconds 300`; 20 seconds show that it works.

Two stand-ins take their time, not the processor's, so that of two cores most are idle: what is
measured is Kairos. What they can do is measured first, by clients that wait for each other; then
calls come as a Poisson stream, whatever becomes of those before. Of two agents one has answers
three times as long, so that there is somebody to overtake.
"""

import argparse
import asyncio
import os
import random
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from kairos.observe import read_facts
from tests.acceptance import overload_verdict
from tests.acceptance.chats import Chats
from tests.acceptance.overload_verdict import MAX_WAIT_S, MAX_WAITING, Seen, percentile, resident_mb
from tests.soak import verdict
from tests.soak.asks import Ask
from tests.soak.client import Outcome, call, session
from tests.soak.served import Served
from tests.soak.verdict import Sample
from tests.support.ports import free_ports
from tests.support.processes import Process

ENGINES, SLOTS, STEP_MS = 2, 8, 25.0
LENGTHS = {"brief": (8, 12), "verbose": (24, 36)}  # tokens of answers: half a second on average
LIGHT_LENGTHS = {"light": (8, 8)}
WORDS = 2000  # of a prompt: 10 kB, as agents' prompts are; what is kept of them would show
LIGHT, OVERLOAD = 0.25, 2.0  # of the capacity
CAPACITY_S, WARM_UP_S, LIGHT_S = 15.0, 5.0, 30.0
PATIENCE_S = MAX_WAIT_S + 30.0
LIMITS = {
    "KAIROS_MAX_WAITING": str(MAX_WAITING),
    "KAIROS_MAX_WAIT_S": str(MAX_WAIT_S),
    # Or workflows would be kept for longer than the run takes. It also makes learning begin, with
    # all that it needs, before the light load is over whose memory and latency are compared.
    "KAIROS_WORKFLOW_IDLE_S": "30",
}
SAMPLE_S, LAG_S = 1.0, 0.02

Lengths = Mapping[str, tuple[int, int]]


class Overload:
    """One run."""

    def __init__(self, directory: Path, *, seconds: float, show: Callable[[str], None]) -> None:
        self._directory, self._seconds, self._show = directory, seconds, show
        self._engines = dict(self._engine(number) for number in range(1, ENGINES + 1))
        self._began = time.monotonic()
        self._made = self._sent_bytes = 0
        self._outcomes: list[Outcome] = []
        self._samples: list[Sample] = []
        self._lags_s: list[float] = []  # of this process, under overload
        self._cpu_shares = (0.0, 0.0)  # of a core: Kairos's, and this process's
        self.seen: Seen | None = None

    def _engine(self, number: int) -> tuple[str, Process]:
        [port] = free_ports(1)
        options = ["--port", port, "--max-num-seqs", SLOTS, "--step-ms", STEP_MS]
        options += ["--step-per-seq-ms", 0, "--prefill-tokens-per-s", 1_000_000]
        name = f"engine-{number}"
        process = Process(self._directory, name, *options, module="kairos.simulate.standin.server")
        return f"http://127.0.0.1:{port}", process

    async def run(self) -> list[str]:
        """Run to the end. Returns what does not hold."""
        async with AsyncExitStack() as stack:
            for process in self._engines.values():
                await stack.enter_context(process).until_it_says("ready")
            engines = [f"--engine={url},max_num_seqs={SLOTS}" for url in self._engines]
            kairos = await stack.enter_async_context(Served(self._directory, engines, LIMITS))
            try:
                async with session() as clients, self._sampling(kairos):
                    seen = await self._load(kairos, clients)
                urls = {process.name: url for url, process in self._engines.items()}
                ending = await kairos.ending(urls)
            except aiohttp.ClientError:
                if kairos.process.runs:
                    raise
                return [verdict.of_crash(kairos.process.said)]
        records = list(read_facts(kairos.facts))
        waits_s = overload_verdict.waits_s(records)
        names = {each.ask.id for each in seen.outcomes}
        waits_s = {name: wait_s for name, wait_s in waits_s.items() if name in names}
        self.seen = msgspec.structs.replace(seen, waits_s=waits_s)
        return [
            *verdict.of_calls(self._made, self._outcomes, {}),
            *overload_verdict.judge(self.seen),
            *verdict.of_log(records, self._outcomes, {}),
            *verdict.of_ending(ending),
        ]

    async def _load(self, kairos: Served, clients: aiohttp.ClientSession) -> Seen:
        capacity_per_s = await self._capacity(clients, kairos.url)
        self._show(f"the engines answer {capacity_per_s:.1f} calls a second")

        async def offer(name: str, lengths: Lengths, share: float, seconds: float) -> list[Outcome]:
            self._show(f"{self._elapsed_s:.0f} s  {name}: {share:.0%} for {seconds:.0f} s")
            return await self._offer(
                clients, kairos.url, chats(name, lengths), share * capacity_per_s, seconds
            )

        light_before = await offer("before", LIGHT_LENGTHS, LIGHT, LIGHT_S)
        before_mb, began_s = resident_mb(self._samples), self._elapsed_s
        async with self._noting_cpu(kairos):
            outcomes = await offer("overload", LENGTHS, OVERLOAD, self._seconds)
        drained_s = self._elapsed_s - began_s - self._seconds
        light_after = await offer("after", LIGHT_LENGTHS, LIGHT, LIGHT_S)
        return Seen(
            capacity_per_s=capacity_per_s,
            seconds=self._seconds,
            outcomes=outcomes,
            waits_s={},
            light_before=light_before,
            light_after=light_after,
            drained_s=drained_s,
            memory_before_mb=before_mb,
            memory_after_mb=resident_mb(self._samples),
            samples=[
                msgspec.structs.replace(each, at_s=each.at_s - began_s)
                for each in self._samples
                if began_s <= each.at_s < began_s + self._seconds
            ],
        )

    async def _capacity(self, clients: aiohttp.ClientSession, url: str) -> float:
        """Calls per second that are answered where always some wait."""
        asked, until_s = chats("capacity", LENGTHS), self._elapsed_s + WARM_UP_S + CAPACITY_S
        counted = 0

        async def work() -> None:
            nonlocal counted
            while self._elapsed_s < until_s:
                await self._outcome(clients, url, asked.single())
                counted += until_s - CAPACITY_S <= self._elapsed_s < until_s

        await asyncio.gather(*(work() for _ in range(3 * ENGINES * SLOTS)))
        return counted / CAPACITY_S

    async def _offer(
        self, clients: aiohttp.ClientSession, url: str, asked: Chats, per_s: float, seconds: float
    ) -> list[Outcome]:
        """Calls at random instants, the same ones for the same load; until all have ended."""
        dice, began_s, at_s = random.Random(1), self._elapsed_s, 0.0
        tasks = []
        async with asyncio.TaskGroup() as calls:
            while (at_s := at_s + dice.expovariate(per_s)) < seconds:
                await asyncio.sleep(max(0.0, began_s + at_s - self._elapsed_s))
                tasks.append(calls.create_task(self._outcome(clients, url, asked.single())))
        return [each.result() for each in tasks]

    async def _outcome(self, clients: aiohttp.ClientSession, url: str, chat: Ask) -> Outcome:
        self._made += 1
        self._sent_bytes += len(chat.body)
        outcome = await call(clients, url, chat)
        self._outcomes.append(outcome)
        return outcome

    @asynccontextmanager
    async def _sampling(self, kairos: Served) -> AsyncIterator[None]:
        async def sample() -> None:
            while kairos.process.runs:
                resident_bytes = kairos.resident_bytes()
                self._samples.append(
                    Sample(self._elapsed_s, resident_bytes, self._made, self._sent_bytes)
                )
                await asyncio.sleep(SAMPLE_S)

        async with _beside(sample()):
            yield

    @asynccontextmanager
    async def _noting_cpu(self, kairos: Served) -> AsyncIterator[None]:
        async def note_lags() -> None:
            while True:
                due = time.monotonic() + LAG_S
                await asyncio.sleep(LAG_S)
                self._lags_s.append(time.monotonic() - due)

        began_s, before = self._elapsed_s, (kairos.cpu_s(), time.process_time())
        async with _beside(note_lags()):
            yield
        after, took_s = (kairos.cpu_s(), time.process_time()), self._elapsed_s - began_s
        self._cpu_shares = (after[0] - before[0]) / took_s, (after[1] - before[1]) / took_s

    @property
    def _elapsed_s(self) -> float:
        return time.monotonic() - self._began

    def summary(self) -> str:
        if self.seen is None:
            return "it did not come to its end"
        ours, clients = self._cpu_shares
        lag_ms = percentile(self._lags_s, 0.99) * 1000
        return (
            f"{overload_verdict.table(self.seen)}\n\n"
            f"under overload Kairos took {ours:.0%} of a core, the clients {clients:.0%}, of "
            f"{len(os.sched_getaffinity(0))}; p99 of what the clients themselves were late: "
            f"{lag_ms:.1f} ms"
        )


def chats(name: str, lengths: Lengths) -> Chats:
    return Chats(
        name, model="standin", lengths=lengths, words=WORDS, streamed=0.6, patience_s=PATIENCE_S
    )


@asynccontextmanager
async def _beside(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Until the block is left."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
    if not task.cancelled():
        task.result()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.acceptance.overload")
    parser.add_argument("--seconds", type=float, default=300)
    directory = Path(tempfile.mkdtemp(prefix="kairos-overload-"))
    run = Overload(directory, seconds=parser.parse_args().seconds, show=print)
    wrong = asyncio.run(run.run())
    verdict.conclude(run.summary(), wrong, directory)


if __name__ == "__main__":
    main()

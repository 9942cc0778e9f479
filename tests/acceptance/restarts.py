"""Two real vLLM instances at saturating load, of which one is killed and restarted in each cycle.

`python -m tests.acceptance.restarts --cycles 4 --cycle-s 180`; a minute shows that it works.

Each instance is a group of processes on a core of its own; Kairos and the clients take of the cores
what they need. The clients are more than what both instances run at once: each makes one call after
another, three of four streamed, and none again.

A cycle: both work; one is killed, in turn all of its processes or its engine core alone; a while
later it is started again, and the cycle goes on until that must have shown.
"""

import argparse
import asyncio
import os
import resource
import tempfile
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp

from kairos.core import Bounced, Record
from kairos.observe import read_facts
from tests.acceptance import restarts_verdict
from tests.acceptance.chats import Chats, Goodput
from tests.acceptance.instance import How, Instance
from tests.acceptance.restarts_verdict import RETURN_S, Cycle
from tests.soak import verdict
from tests.soak.client import Outcome, call, session
from tests.soak.served import Served
from tests.soak.verdict import Ending

MODEL = "mid"  # with a smaller one the time goes into HTTP, not into the engine
SLOTS = 8  # of one instance
CLIENTS = 24
CYCLES = 4
LENGTHS = {"writer": (48, 96), "critic": (24, 48), "editor": (32, 64)}  # tokens of answers
PATIENCE_S = 60.0  # a call waits some seconds, and takes some
# As clients are no more patient. Up to half of it, policies let others overtake.
LIMITS = {"KAIROS_MAX_WAIT_S": "40"}
PAUSE_S = 0.2  # of a client whose call was not answered
WARM_UP_S = 30.0
KILLED, RESTARTED = 0.3, 0.4  # parts of the cycle
TURNS: list[tuple[int, How]] = [  # which instance is killed
    (0, "all of it"),
    (1, "its engine core"),
    (1, "all of it"),
    (0, "its engine core"),
]


class Restarts:
    """One run. What it has seen so far can be looked at at any time."""

    def __init__(
        self, directory: Path, *, cycles: int, cycle_s: float, show: Callable[[str], None]
    ) -> None:
        self._directory, self._number, self._cycle_s = directory, cycles, cycle_s
        self._show = show
        self._chats = Chats(
            "restarts", model=MODEL, lengths=LENGTHS, words=40, streamed=0.75, patience_s=PATIENCE_S
        )
        self._over = False
        self._cpu_s: list[tuple[float, float, float]] = []  # at, of Kairos and of the clients
        self._pins: list[str] = []  # what is wrong with them
        self.goodput = Goodput()
        self.cycles: list[Cycle] = []
        self.outcomes: list[Outcome] = []
        self.records: list[Record] = []

    async def run(self) -> list[str]:
        """Run to the end. Returns what does not hold."""
        async with AsyncExitStack() as stack:
            scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="kairos-"))
            instances = [
                Instance(self._directory, number, model=MODEL, max_num_seqs=SLOTS, scratch=scratch)
                for number in (1, 2)
            ]
            for each in instances:
                stack.enter_context(each.process)  # starts it
            for each in instances:
                await each.until_ready()
            self._pins += restarts_verdict.of_pins([each.cores() for each in instances])
            engines = [f"--engine={each.url},max_num_seqs={SLOTS}" for each in instances]
            kairos = await stack.enter_async_context(Served(self._directory, engines, LIMITS))
            try:
                await self._load(kairos, instances)
                ending = await kairos.ending({each.process.name: each.url for each in instances})
            except aiohttp.ClientError:
                if kairos.process.runs:
                    raise
                return [verdict.of_crash(kairos.process.said)]
            self.records = list(read_facts(kairos.facts))
            return self._judge(ending)

    async def _load(self, kairos: Served, instances: list[Instance]) -> None:
        async with session() as clients, asyncio.TaskGroup() as group:
            for _ in range(CLIENTS):
                group.create_task(self._client(clients, kairos.url))
            await asyncio.sleep(min(WARM_UP_S, self._cycle_s / 2))
            self._note_cpu(kairos)
            for number in range(self._number):
                victim, how = TURNS[number % len(TURNS)]
                cycle = await self._cycle(instances[victim], how)
                self._pins += restarts_verdict.of_pins([each.cores() for each in instances])
                self.cycles.append(cycle)
                self._show(f"cycle {number + 1}: {restarts_verdict.figures(cycle, self.goodput)}")
            self._note_cpu(kairos)
            self._over = True

    async def _client(self, clients: aiohttp.ClientSession, url: str) -> None:
        """One workflow after another. One of which a call fails is given up."""
        while not self._over:
            for chat in self._chats.workflow():
                outcome = await call(clients, url, chat, self.goodput.reads)
                self.outcomes.append(outcome)
                if outcome.end != "answered":
                    await asyncio.sleep(PAUSE_S)
                if outcome.end != "answered" or self._over:
                    break

    async def _cycle(self, victim: Instance, how: How) -> Cycle:
        began = time.time()
        await _until(began + KILLED * self._cycle_s)
        # Before: a call may end by it at once.
        killed = time.time()
        victim.kill(how)
        await _until(began + RESTARTED * self._cycle_s)
        restarted = time.time()
        await asyncio.to_thread(victim.restart)
        await victim.until_ready()
        ready = time.time()
        await _until(max(began + self._cycle_s, ready + 1.5 * RETURN_S))
        return Cycle(
            victim=victim.name,
            how=how,
            began=began,
            killed=killed,
            restarted=restarted,
            ready=ready,
            ended=time.time(),
        )

    def _note_cpu(self, kairos: Served) -> None:
        ours = resource.getrusage(resource.RUSAGE_SELF)
        self._cpu_s.append((time.time(), kairos.cpu_s(), ours.ru_utime + ours.ru_stime))

    def _judge(self, ending: Ending) -> list[str]:
        hurts = {
            name: [cycle.how]
            for cycle in self.cycles
            for name in restarts_verdict.killed_with(cycle, self.records)
        }
        return [
            *self._pins,
            *verdict.of_calls(self._chats.made, self.outcomes, hurts),
            *restarts_verdict.of_outcomes(self.outcomes, hurts),
            *verdict.of_log(self.records, self.outcomes, hurts),
            *verdict.of_ending(ending),
            *(
                wrong
                for number, cycle in enumerate(self.cycles, 1)
                for wrong in restarts_verdict.of_figures(
                    number, restarts_verdict.figures(cycle, self.goodput)
                )
            ),
        ]

    def summary(self) -> str:
        passed_on = [each.at for each in self.records if isinstance(each.event, Bounced)]
        slowest = max((each.seconds for each in self.outcomes), default=0.0)
        lines = [restarts_verdict.table(self.cycles, self.goodput, self.outcomes, passed_on)]
        lines.append(
            f"{self._chats.made} calls: {restarts_verdict.ends(self.outcomes)}; the slowest took "
            f"{slowest:.1f} s of {PATIENCE_S:.0f} s"
        )
        if len(self._cpu_s) == 2:
            (began, *before), (ended, *after) = self._cpu_s
            shares = [(b - a) / (ended - began) for a, b in zip(before, after, strict=True)]
            lines.append(
                f"Kairos took {shares[0]:.0%} of a core, the clients {shares[1]:.0%}; each "
                f"instance had one, of {len(os.sched_getaffinity(0))}"
            )
        return "\n".join(lines)


async def _until(instant: float) -> None:
    await asyncio.sleep(max(0.0, instant - time.time()))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.acceptance.restarts")
    parser.add_argument("--cycles", type=int, default=CYCLES)
    parser.add_argument("--cycle-s", type=float, default=180)
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="kairos-restarts-"))
    run = Restarts(directory, cycles=options.cycles, cycle_s=options.cycle_s, show=print)
    wrong = asyncio.run(run.run())
    verdict.conclude(run.summary(), wrong, directory)


if __name__ == "__main__":
    main()

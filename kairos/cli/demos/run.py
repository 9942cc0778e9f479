"""Runs the demo: Kairos in front of engines, agents behind it, tasks arriving."""

import asyncio
import os
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import msgspec

from kairos.agents import Application, read_result, run, submit
from kairos.cli.demos.engines import Kind, start_engines
from kairos.cli.demos.plan import DemoSubmission
from kairos.cluster import KafkaBus, KafkaCluster, MemoryBus, Tail, cluster_of, ensure_topics
from kairos.core import SECOND, Bus, Message, RunMetrics, SetupError, Topic, WorkflowEnded
from kairos.proxy import HttpLLM
from kairos.service import Service, running
from kairos.settings import EngineSettings, Settings

ENGINES = 2
SLOTS = 4  # calls that an engine runs at once; of these three, only llama.cpp tells it
JOIN_S = 10.0
TURN_US = 2_000  # by which a task is given to one of two orders before the other
# Two real servers of one thread and four slots each; the stand-in is as quick as they are.
ENGINE_OPTIONS: dict[Kind, tuple[str, ...]] = {
    "llama": ("--threads", "1", "--slots", str(SLOTS), "--context", "8192"),
    "sim": ("--max-num-seqs", str(SLOTS), "--step-ms", "15", "--step-per-seq-ms", "8"),
    "vllm": ("--model", "tiny", "--max-num-seqs", str(SLOTS)),
}


# Of an order where two are run at the same time: one server for each of two cores.
ENGINES_OF_AN_ORDER: dict[Kind, int] = {"llama": 1, "sim": ENGINES, "vllm": 1}


class Outcome(msgspec.Struct, kw_only=True):
    submission: DemoSubmission
    workflow_id: str
    submitted_at: int
    result: dict[str, Any] | None = None  # None: did not end in time
    took_s: float | None = None  # from when it was submitted


class Run:
    def __init__(
        self, service: Service, metrics: RunMetrics, run_id: str, cluster: KafkaCluster | None
    ) -> None:
        """Create the run. `run_id` separates its workflows from other runs' on the bus.

        The bus is that of `cluster`, or one in memory.
        """
        self.service = service
        self.metrics = metrics
        self._id = run_id
        self._cluster = cluster
        self.outcomes: dict[str, Outcome] = {}
        self.started_at = service.brain.now()

    @property
    def elapsed_s(self) -> float:
        return (self.service.brain.now() - self.started_at) / SECOND

    @property
    def finished(self) -> int:
        return sum(outcome.result is not None for outcome in self.outcomes.values())

    def start(self) -> None:
        self.started_at = self.service.brain.now()

    async def to_the_end(
        self, submissions: Sequence[DemoSubmission], limit_s: float, turn: tuple[int, int] = (0, 1)
    ) -> None:
        """Submit the tasks as they are due and wait for their results, but not past the limit.

        `turn` is this run's place among runs with the same tasks, and their number; for each task
        another run is first, by some milliseconds.
        """
        done = asyncio.Event()

        async def take(message: Message) -> None:
            self._take_result(message)
            if self.finished == len(submissions):
                done.set()

        apps = list({each.app.name: each.app for each in submissions}.values())
        model = self.service.monitor.models()[0]
        async with (
            HttpLLM(f"{self.service.url}/v1", model=model) as llm,
            _bus(self._cluster, apps) as (bus, take_results),
            asyncio.TaskGroup() as tasks,
        ):
            background = [
                tasks.create_task(run(apps, bus, llm)),
                tasks.create_task(take_results(take)),
                tasks.create_task(self._submit(submissions, bus, turn)),
            ]
            try:
                async with asyncio.timeout(limit_s):
                    await done.wait()
            except TimeoutError:
                pass  # the report says which tasks did not end
            finally:
                for task in background:
                    task.cancel()

    async def _submit(
        self, submissions: Sequence[DemoSubmission], bus: Bus, turn: tuple[int, int]
    ) -> None:
        now = self.service.brain.now
        place, runs = turn
        for number, submission in enumerate(submissions):
            after_us = TURN_US * ((number + place) % runs)
            await asyncio.sleep((self.started_at + submission.at_us + after_us - now()) / SECOND)
            workflow_id = f"demo-{self._id}-{len(self.outcomes) + 1}"
            self.outcomes[workflow_id] = Outcome(
                submission=submission, workflow_id=workflow_id, submitted_at=now()
            )
            await submit(bus, submission.app, submission.value, now_us=now(), msg_id=workflow_id)

    def _take_result(self, message: Message) -> None:
        outcome = self.outcomes.get(message.key)
        if outcome is None:
            return  # another run's
        result = read_result(message)
        if outcome.result is None:  # delivery is at least once
            outcome.result = result.value
            outcome.took_s = (self.service.brain.now() - outcome.submitted_at) / SECOND
            self.service.brain.feed(WorkflowEnded("default", result.workflow_id))


TakeResults = Callable[[Callable[[Message], Awaitable[None]]], Coroutine[None, None, None]]


@asynccontextmanager
async def _bus(
    cluster: KafkaCluster | None, apps: Iterable[Application]
) -> AsyncIterator[tuple[Bus, TakeResults]]:
    """Yield the agents' bus, and a function that hands over new results until cancelled."""
    if cluster is None:
        memory = MemoryBus()
        yield memory, partial(memory.consume, Topic.RESULTS, "demo")
        return
    await ensure_topics(cluster, [app.inbox(name) for app in apps for name in app.agents])
    await ensure_topics(cluster, [Topic.RESULTS, Topic.DEAD_LETTERS])
    async with KafkaBus(cluster) as kafka, Tail(cluster, Topic.RESULTS) as results:

        async def take_results(take: Callable[[Message], Awaitable[None]]) -> None:
            while True:
                for message in await results.batch():
                    await take(message)

        yield kafka, take_results


@asynccontextmanager
async def started(
    settings: Settings,
    kind: Kind | None,
    seed: int,
    on_progress: Callable[[str], None],
    engines: int = ENGINES,
) -> AsyncIterator[Run]:
    """Start Kairos with engines: started here if `kind` is given, else from the settings.

    `seed` determines the replies of stand-ins: the same seed gives the same replies to the same
    prompts. On a bus the run is a pool of its own, separate from all others. Raises SetupError: An
    engine did not start, or does not answer.
    """
    if kind is not None:
        options = ENGINE_OPTIONS[kind] + (("--seed", str(seed)) if kind == "sim" else ())
        async with start_engines(
            kind, engines, options=options, on_progress=on_progress, on_failure=on_progress
        ) as urls:
            if kind == "vllm":
                on_progress("vLLM has a model of random weights here: its answers are noise")
            served = tuple(EngineSettings(url=url, max_num_seqs=SLOTS) for url in urls)
            given = msgspec.structs.replace(settings, engine=served)
            async with started(given, None, seed, on_progress) as run:
                yield run
        return
    metrics, run_id = RunMetrics(), secrets.token_hex(4)
    settings = msgspec.structs.replace(settings, pool=f"demo-{run_id}")
    async with running(settings, (metrics,)) as service:
        try:
            async with asyncio.timeout(JOIN_S):
                await service.monitor.all_joined.wait()
        except TimeoutError:
            problems = "; ".join(f"{k}: {v}" for k, v in service.monitor.problems.items())
            raise SetupError(f"not all engines can be used: {problems}") from None
        on_progress(f"Kairos serves on {service.url}/v1")
        yield Run(service, metrics, run_id, cluster_of(settings, os.environ))

"""Scale: 64 instances, 1,000 agents, 100,000 workflows, and how long a decision takes then.

A hundred applications of ten agents each, with lengths of their own, made up: chains that end early
at random. Expected: a decision (one fact, with all that it leads to) in well under a millisecond in
the median, and no more at the end of the run than at its beginning. A quarter of an hour of one
core.

Found: no more at the end, but not below a millisecond where the pool is full: 0.1 to 0.35 ms where
there is room, 2 ms where thousands wait. There each fact looks at the nine requests that are next,
0.2 ms each: mostly they have room, and wait for the instance that has their context. Measured
beside other work; by this one core decides for some 250 calls a second when overloaded.
"""

import time
from collections.abc import Iterator, Sequence
from functools import partial
from random import Random

import msgspec
import numpy as np

from experiments.claim import Study, table
from experiments.report import commit
from experiments.workload import COMPUTE_BINDS
from kairos.core import PLACEMENTS, POLICIES, Arrived, Command, Event, Finished
from kairos.engines import load_profile
from kairos.simulate import World, draw_arrivals
from kairos.simulate.plan import instance_id
from kairos.simulate.workload.application import (
    TASK,
    Agent,
    GenerativeApplication,
    Next,
    TaskKind,
    generate,
)
from kairos.simulate.workload.scenario import mixed

INSTANCES, APPS, AGENTS, WORKFLOWS, QUICK_PART = 64, 100, 10, 100_000, 50
RATE_PER_S = 400.0  # near what the pool can take


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One run. Times of decisions, in us: of all facts of a kind, in quarters of the run."""

    commit: str
    seed: int
    workflows: int
    calls: int
    agents: int
    instances: int
    queued_share: float
    most_waiting: int
    e2e_mean_s: float
    decisions: dict[str, list[tuple[float, float, float]]]  # by fact: median, mean, P99
    cpu_s: float


class Watch:
    """Times what the balancer does with each fact."""

    def __init__(self, world: World) -> None:
        self.us: dict[str, list[float]] = {"Arrived": [], "Finished": []}
        self.most_waiting = 0
        self._balancer, self._handle = world.balancer, world.balancer.handle
        world.balancer.handle = self.handle  # type: ignore[method-assign]

    def handle(self, event: Event, at: int) -> list[Command]:
        began = time.perf_counter()
        commands = self._handle(event, at)
        if isinstance(event, Arrived | Finished):
            self.us[type(event).__name__].append(1e6 * (time.perf_counter() - began))
        self.most_waiting = max(self.most_waiting, self._balancer.waiting)
        return commands


def measure(quick: bool) -> Iterator[Row]:
    count = WORKFLOWS // (QUICK_PART if quick else 1)
    at_us = draw_arrivals("azure-conv", count, RATE_PER_S, 1)
    sources = [(partial(generate, app(number), seed=1), 1.0) for number in range(APPS)]
    planned = mixed(sources, at_us, 1)
    engines = {instance_id(number): load_profile(COMPUTE_BINDS) for number in range(INSTANCES)}
    began = time.process_time()
    world = World(planned, engines, POLICIES["kairos"], PLACEMENTS["kairos"])
    watch = Watch(world)
    world.run()
    record = world.metrics.record()
    yield Row(
        commit=commit(),
        seed=1,
        workflows=count,
        calls=record["calls"],
        agents=len({(row.request.app, row.request.agent) for row in world.metrics.rows}),
        instances=INSTANCES,
        queued_share=round(record["queued_share"], 4),
        most_waiting=watch.most_waiting,
        e2e_mean_s=round(record["e2e_s"]["mean"], 3),
        decisions={name: _quarters(us) for name, us in watch.us.items()},
        cpu_s=round(time.process_time() - began, 1),
    )


def app(number: int) -> GenerativeApplication:
    """Ten agents in a chain; after each it may end. A shared prompt, and lengths of its own."""
    random = Random(f"app {number}")  # noqa: S311  (a workload, no secret)
    names = [f"agent-{n}" for n in range(AGENTS)]
    agents: dict[str, Agent] = {}
    for n, name in enumerate(names):
        median = max(3, round(random.lognormvariate(4.6, 0.9)))
        agents[name] = Agent(
            shared_prefix_tokens=random.randint(20, 400),
            completion_tokens={
                "p0": 2,
                "p50": max(3, round(median)),
                "p100": round(5 * median) + 5,
            },
            next=(Next(agent=names[n + 1], probability=0.75),) if n + 1 < AGENTS else (),
        )
    task = TaskKind(name=TASK, tokens={"p0": 10, "p50": 60, "p100": 600})
    return GenerativeApplication(app=f"app-{number}", entry=names[0], tasks=(task,), agents=agents)


def _quarters(us: Sequence[float]) -> list[tuple[float, float, float]]:
    return [
        (
            round(float(np.median(part)), 1),
            round(float(np.mean(part)), 1),
            round(float(np.percentile(part, 99)), 1),
        )
        for part in np.array_split(np.array(us), 4)
    ]


def section(rows: Sequence[Row]) -> str:
    [row] = rows
    said = (
        f"{row.workflows:,} workflows, {row.calls:,} calls of {row.agents:,} agents, "
        f"{row.instances} instances; {row.queued_share:.0%} of the time in the queue, in which "
        f"{row.most_waiting:,} calls waited at most; {row.cpu_s:,.0f} s of one core for all, "
        "engines included."
    )
    lines = [
        [name, *(f"{median:g}, {mean:g}, {p99:g}" for median, mean, p99 in quarters)]
        for name, quarters in row.decisions.items()
    ]
    header = ["us per decision: median, mean, P99", *(f"quarter {n}" for n in range(1, 5))]
    return f"{said}\n\n{table(header, lines)}"


STUDY = Study(title="Scale: 64 instances, 1,000 agents", row=Row, measure=measure, section=section)

"""`python -m bench.learning`: what it costs to learn, to rank and to queue.

On one core, in CPU time, medians of several rounds, with agents and calls that a seed makes up:
only their number and their scatter matter here. The references are the paper's (7.7: embedding
takes 0.1 to 4.3 s for 10 to 5,000 agents). Adds its figures to bench/results.json; takes about a
minute.
"""

import gc
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from random import Random

from rich.console import Console

from bench import report, rows
from bench.report import Figure
from kairos.core import (
    POLICIES,
    SECOND,
    AgentProfile,
    Arrived,
    Dispatch,
    Finished,
    Learner,
    Orchestrator,
    ProfilesLearnt,
    Record,
    Request,
    WorkEstimates,
    WorkflowEnded,
)
from kairos.core.orchestrator.profiles import CallSample, Profiles
from kairos.core.position import Position, features
from kairos.core.scheduler.queue import WaitQueue
from kairos.core.scheduler.ranking import Ranking

ROUNDS = 5
ONE_CORE = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

AGENTS = (10, 100, 1_000, 5_000)
EVENTS = 20_000  # learnt, each round
OPEN = 100  # workflows
QUEUED = 100_000
OPERATIONS = 2_000  # of each kind on the queue, each round

EMBED = "ranking {:,} agents, all anew"
PLACE = "ranking one changed agent among 5,000"
PUBLISH = "ranks of 5,000 agents, put in order, and their Kendall tau"
LEARN = "learning one call, with its checks and tests of change"
FACT = "the orchestrator, one fact, workflows rebuilt and learnt"
PROFILE = "one agent's profile from 1,024 calls"
MODEL = "one app's model from 16,384 calls"
ESTIMATE = "one estimate of what is left"
PUSH = "queue of 100,000: push"
POP = "queue of 100,000: pop"
REKEY = "queue of 100,000: new key"
REMOVE = "queue of 100,000: remove"
RENEW = "queue of 100,000: keys renewed with one fact after new ranks"

# name of the figure, unit, target, the paper's
FIGURES = (
    (EMBED.format(10), "ms", None, 100),
    (EMBED.format(100), "ms", None, None),
    (EMBED.format(1_000), "ms", None, None),
    (EMBED.format(5_000), "ms", 1_500, 4_300),
    (PLACE, "us", 5_000, None),
    (PUBLISH, "us", None, None),
    (LEARN, "us", 100, None),
    (FACT, "us", 100, None),
    (PROFILE, "us", None, None),
    (MODEL, "us", None, None),
    (ESTIMATE, "us", None, None),
    (PUSH, "us", 20, None),
    (POP, "us", 20, None),
    (REKEY, "us", 20, None),
    (REMOVE, "us", 20, None),
    (RENEW, "us", None, None),
)


def cpu_us(work: Callable[[], object], times: int = 1) -> float:
    """CPU time of each, in µs."""
    gc.collect()
    started = time.process_time_ns()
    work()
    return (time.process_time_ns() - started) / 1e3 / times


def each(work: Callable[..., object], arguments: Iterable[object]) -> Callable[[], None]:
    def run() -> None:
        for argument in arguments:
            work(argument)

    return run


class Agents:
    """Agents of 50 apps, each of which does more the higher its number."""

    def __init__(self, number: int, seed: int) -> None:
        self._random = Random(seed)
        self._means_us = [self._random.lognormvariate(14, 1) for _ in range(number)]

    def calls(self, number: int) -> list[CallSample]:
        return [self.call(self._random.randrange(len(self._means_us))) for _ in range(number)]

    def call(self, agent: int) -> CallSample:
        random = self._random
        took_us = int(self._means_us[agent] * random.lognormvariate(0, 0.5)) + 1
        return CallSample(
            key=("tenant", f"app{agent % 50}", f"agent{agent}"),
            position=Position(
                stage=random.randrange(8),
                visit=random.randint(1, 2),
                prompt_tokens=random.randint(50, 5_000),
                grown_tokens=random.randrange(2_000),
                served_us=random.randrange(30 * SECOND),
                last_completion_tokens=random.randrange(500),
            ),
            call_us=took_us,
            completion_tokens=random.randint(1, 500),
            remaining_us=took_us * random.randint(1, 5),
            remaining_stages=random.randint(1, 5),
        )

    def profiles(self) -> list[AgentProfile]:
        """Of each agent, from 20 calls."""
        profiles = Profiles(max_agents=len(self._means_us))
        for agent in range(len(self._means_us)):
            for _ in range(20):
                profiles.add(self.call(agent))
        learning = profiles.take_changed()
        assert learning is not None
        return [p for p in learning.learn()[0] if p.agent.startswith("agent")]


def ranking(number: int, profiles: list[AgentProfile]) -> dict[str, float]:
    made = Ranking()
    made.update(profiles[:number])
    return {EMBED.format(number): cpu_us(made.embed) / 1e3}


def changed_agent(seed: int, profiles: list[AgentProfile]) -> dict[str, float]:
    """Some agents change, one after the other."""
    made = Ranking()
    made.update(profiles)
    made.embed()
    changed = Agents(20, seed).profiles()
    return {
        PLACE: cpu_us(each(lambda profile: made.update([profile]), changed), len(changed)),
        PUBLISH: cpu_us(lambda: (made.ranks(), made.kendall_tau())),
    }


def learning_event(seed: int) -> dict[str, float]:
    """Calls of 40 agents that come in from workflows that ended."""
    agents = Agents(40, seed)
    profiles = Profiles()
    return {LEARN: cpu_us(each(profiles.add, agents.calls(EVENTS)), EVENTS)}


def publishing(seed: int) -> dict[str, float]:
    one = Agents(1, seed)
    profiles = Profiles()
    for call in one.calls(16_384):
        profiles.add(call)
    learning = profiles.take_changed()
    assert learning is not None
    windows, models = learning.windows, learning.models
    _, learnt = learning.learn()
    asked = features(one.call(0).position)
    return {
        PROFILE: cpu_us(each(lambda data: data.profile(), windows), len(windows)),
        MODEL: cpu_us(each(lambda data: data.model(), models), len(models)),
        ESTIMATE: cpu_us(
            each(lambda model: model.remaining_us("agent0", asked), learnt[:1] * 10_000), 10_000
        ),
    }


def orchestrating(seed: int) -> dict[str, float]:
    """Facts of workflows of 8 calls, 100 of them open at a time, and what they teach."""
    records = facts(Agents(40, seed).calls(6 * 8 * OPEN))
    learner = Learner(Orchestrator())

    def work() -> None:
        for record in records:
            learner.observe(record)
        learner.orchestrator.learn(learner.study(learner.orchestrator.take_ended()))

    return {FACT: cpu_us(work, len(records))}


def facts(calls: list[CallSample]) -> list[Record]:
    """Each workflow calls one agent after the other; `OPEN` workflows take turns."""
    records = []
    for n, call in enumerate(calls):
        at, workflow = n * SECOND, f"w{n // (8 * OPEN)}-{n % OPEN}"
        tenant, app, agent = call.key
        request = Request(
            id=f"r{n}",
            tenant=tenant,
            workflow_id=workflow,
            app=app,
            agent=agent,
            workflow_started_at=at,
            arrived_at=at,
            prompt_tokens=call.position.prompt_tokens,
            completion_tokens=256,
        )
        dispatch = Dispatch(request.id, "engine")
        done = Finished(request.id, completion_tokens=call.completion_tokens)
        records.append(Record(at, Arrived(request), (dispatch,)))
        records.append(Record(at + SECOND // 2, done))
        if n % (8 * OPEN) >= 7 * OPEN:
            records.append(Record(at + SECOND // 2, WorkflowEnded(tenant, workflow)))
    return records


class Queue:
    """As the default policy orders it, with every agent known."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        agents = Agents(100, seed)
        profiles = Profiles()
        for call in agents.calls(5_000):
            profiles.add(call)
        learning = profiles.take_changed()
        assert learning is not None
        found, models = learning.learn()
        made = Ranking()
        made.update(found)
        self.learnt = ProfilesLearnt(tuple(found), tuple(models), tuple(made.ranks()))
        self.estimates = WorkEstimates()
        self.estimates.learn(self.learnt)
        self.queue = WaitQueue(POLICIES["kairos"](self.estimates), self.estimates, count())
        self._at = count()
        for request in self.arrivals(QUEUED):
            self.push(request)

    def arrivals(self, number: int) -> list[Request]:
        """Requests that the knowledge was told of, one of each workflow."""
        made = []
        for at in range(number):
            agent = self._random.randrange(100)
            name = f"r{next(self._at)}"
            request = Request(
                id=name,
                tenant="tenant",
                workflow_id=name,
                app=f"app{agent % 50}",
                agent=f"agent{agent}",
                workflow_started_at=at,
                arrived_at=at,
                prompt_tokens=self._random.randint(50, 5_000),
                completion_tokens=256,
            )
            self.estimates.add_call(request, at)
            made.append(request)
        return made

    def push(self, request: Request) -> None:
        self.queue.push(request, request.arrived_at)

    def siblings(self, requests: list[Request]) -> list[Request]:
        """Requests that wait, and of whose workflows a second call has just arrived."""
        for request in requests:
            self.estimates.add_call(
                Request(
                    id=f"{request.id}-sibling",
                    tenant=request.tenant,
                    workflow_id=request.workflow_id,
                    app=request.app,
                    agent=f"agent{self._random.randrange(100)}",
                    workflow_started_at=request.workflow_started_at,
                    arrived_at=request.arrived_at,
                    prompt_tokens=5_000,
                    completion_tokens=256,
                ),
                request.arrived_at,
            )
        return requests


class AnyRoom:
    def fits(self, request: Request) -> bool:  # noqa: ARG002
        return True

    def refused(self, requests: Sequence[Request]) -> int:  # noqa: ARG002
        return 0

    def expected_back(self) -> Iterator[str]:
        return iter(())

    def reserve(self, request: Request) -> None: ...

    def exclude_for(self, request: Request) -> bool:  # noqa: ARG002
        return True


def pop_first(queue: WaitQueue, room: AnyRoom) -> None:
    turn = queue.first(room, 0)
    assert turn is not None
    queue.pop_dispatched(turn.request.id, turn.reason)


def queueing(seed: int) -> dict[str, float]:
    made, room, n = Queue(seed), AnyRoom(), OPERATIONS
    queue = made.queue
    pushed = made.arrivals(n)
    values = {PUSH: cpu_us(each(made.push, pushed), n)}
    values[REKEY] = cpu_us(each(queue.rekey, made.siblings(pushed[: n // 2])), n // 2)
    values[POP] = cpu_us(each(lambda _: pop_first(queue, room), range(n)), n)
    left = [request.id for request in queue.requests()[:n]]
    values[REMOVE] = cpu_us(each(queue.remove, left), n)
    made.estimates.learn(made.learnt)
    queue.start_renewing()
    values[RENEW] = cpu_us(each(lambda _: queue.by_key.move(256), range(100)), 100)
    return values


def measure(console: Console) -> dict[str, list[float]]:
    values: dict[str, list[float]] = {}
    most = Agents(max(AGENTS), seed=0).profiles()
    changed_agent(0, most[:10])  # what is imported with the first is not what it costs
    for number in range(ROUNDS):
        console.print(f"round {number + 1} of {ROUNDS}")
        found = [ranking(agents, most) for agents in AGENTS]
        found += [changed_agent(number, most), learning_event(number), publishing(number)]
        found += [orchestrating(number), queueing(number)]
        for name, value in (item for measured in found for item in measured.items()):
            values.setdefault(name, []).append(value)
    return values


def figures(values: dict[str, list[float]]) -> list[Figure]:
    spreads = {name: report.spread(found) for name, found in values.items()}
    return [
        Figure(
            name=name,
            value=spreads[name].median,
            unit=unit,
            target=target,
            reference=paper,
            detail={"kairos": spreads[name]},
        )
        for name, unit, target, paper in FIGURES
    ]


def main() -> None:
    if not ONE_CORE.items() <= os.environ.items():  # numpy's libraries read them as they load
        os.execve(sys.executable, [sys.executable, "-m", "bench.learning"], os.environ | ONE_CORE)
    console = Console()
    found = figures(measure(console))
    rows.keep(found, "learning")
    report.show(found, console, {"kairos": "Kairos"})


if __name__ == "__main__":
    main()

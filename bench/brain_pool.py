"""A whole brain at work: facts in, commands out, with all that observes them in the live service.

Workflows of five calls, made by agents that say who they are; each call begins with its agent's
system prompt and goes on from the call before. As many workflows are open all the time as calls run
and wait; where one ends the next begins. Virtual time; every fact that the live service tells is
told, and what was learnt is published once a second, as there.
"""

import gc
import heapq
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from random import Random

import msgspec

from kairos.core import (
    PLACEMENTS,
    POLICIES,
    PREFIX_MARKS,
    SECOND,
    Arrived,
    Balancer,
    Dispatch,
    Event,
    Finished,
    FirstToken,
    Instance,
    InstanceJoined,
    InstanceStatus,
    Learner,
    Orchestrator,
    ProfilesLearnt,
    Progressed,
    Refuse,
    Request,
    Runtime,
    WorkflowEnded,
)
from kairos.observe import FactLog, LearntStore, Telemetry

CALLS = 5  # of a workflow
AGENTS, APPS = 20, 4
TOKEN_US, PROMPT_TOKEN_US = 25_000, 100
ARRIVAL_US = 150  # between the first calls, so that not all prompts are computed at once
PROGRESS_LIMIT = 10_000  # calls of which progress is told, as in the live service
POLICY = "kairos"
LEARNING = "learning"  # beside facts: what the learner does once a second


class Size(msgspec.Struct, frozen=True):
    instances: int
    running: int  # calls on each
    waiting: int = 0


class _Workflow(msgspec.Struct):
    id: str
    app: str
    began_at: int
    calls: int = 0
    tokens: int = 0  # of its context so far
    last: str | None = None


class _Call(msgspec.Struct):
    request: Request
    workflow: _Workflow
    tokens: int  # of its answer, in the end
    first_at: int | None = None


class Brain:
    """`costs_us`: by kind of fact, the CPU time of each told since they were last forgotten."""

    def __init__(self, size: Size, placement: str, directory: Path, seed: int = 0) -> None:
        self.costs_us: dict[str, list[float]] = defaultdict(list)
        self.ended = 0  # calls
        self._at = 3_600 * SECOND
        self._random, self._names = Random(seed), 0
        self._calls: dict[str, _Call] = {}
        self._running: dict[str, _Call] = {}
        self._due: list[tuple[int, str]] = []
        self._second = self._at + SECOND
        self.orchestrator = Orchestrator()
        self.learner = Learner(self.orchestrator)
        self.balancer = Balancer(
            POLICIES[POLICY], PLACEMENTS[placement], max_waiting=2 * size.waiting + 100_000
        )
        self._log = FactLog(directory)
        observers = (
            Telemetry(lambda: self.balancer, self.orchestrator, self.now),
            self._log,
            LearntStore(directory / "learnt.json"),
            self.learner.observe,
        )
        self._runtime = Runtime(self.balancer, self, self, observers)
        # Room for as many calls as are to run, of which each waits for no memory.
        spare = 0 if size.waiting else max(8, size.running)
        for number in range(size.instances):
            self.tell(InstanceJoined(_instance(f"instance{number}", size.running + spare)))
        self._fill(size)

    def close(self) -> None:
        self._log.close()

    def now(self) -> int:
        """The clock of the runtime."""
        return self._at

    def dispatch(self, command: Dispatch) -> None:
        """The engine of the runtime."""
        call = self._running[command.request_id] = self._calls[command.request_id]
        first_at = self._at + PROMPT_TOKEN_US * (call.request.prompt_tokens - command.cached_tokens)
        heapq.heappush(self._due, (first_at, command.request_id))

    def refuse(self, command: Refuse) -> None:
        raise AssertionError(f"nothing is refused here: {command}")

    def expect(self, request: Request) -> None:
        """A call that is told of from outside."""
        self._calls[request.id] = _Call(request, _Workflow(request.workflow_id, "app0", 0), 1)

    def forget(self, request_id: str) -> None:
        """Such a call has ended. What it cost is forgotten too."""
        del self._calls[request_id], self._running[request_id]
        self.costs_us.clear()

    def run(self, calls: int) -> None:
        """Until so many more calls have ended."""
        gc.collect()
        enough = self.ended + calls
        while self.ended < enough:
            self._step()

    def forget_costs(self) -> None:
        self.costs_us.clear()
        self.ended = 0

    def _fill(self, size: Size) -> None:
        for _ in range(size.instances * size.running + size.waiting):
            self._at += ARRIVAL_US
            while self._due and self._due[0][0] <= self._at:
                self._step()
            self._begin()

    def _step(self) -> None:
        due_at, request_id = heapq.heappop(self._due)
        while self._second <= due_at:
            self._at, self._second = max(self._at, self._second), self._second + SECOND
            self._each_second()
        self._at = max(self._at, due_at)
        call = self._running[request_id]
        if call.first_at is None:
            call.first_at = self._at
            heapq.heappush(self._due, (self._at + call.tokens * TOKEN_US, request_id))
            self.tell(FirstToken(request_id))
        else:
            self._end(call)

    def _end(self, call: _Call) -> None:
        request, workflow = call.request, call.workflow
        del self._running[request.id], self._calls[request.id]
        self.tell(Finished(request.id, request.prompt_tokens, call.tokens, 0))
        self.ended += 1
        workflow.tokens = request.prompt_tokens + call.tokens
        workflow.last = request.id
        if workflow.calls < CALLS:
            self._ask(workflow)
        else:
            self.tell(WorkflowEnded("default", workflow.id))
            self._begin()

    def _begin(self) -> None:
        self._names += 1
        app = f"app{self._random.randrange(APPS)}"
        self._ask(_Workflow(f"w{self._names}", app, self._at))

    def _ask(self, workflow: _Workflow) -> None:
        draw, number = self._random.lognormvariate, workflow.calls
        agent = hash((int(workflow.app[3:]), number)) % AGENTS
        system = 200 + 37 * agent
        prompt = max(system, workflow.tokens) + int(draw(5.0, 0.8)) + 1
        workflow.calls += 1
        request = Request(
            id=f"{workflow.id}-{number}",
            workflow_id=workflow.id,
            app=workflow.app,
            agent=f"agent{agent}",
            upstream=None,
            parent_ids=() if workflow.last is None else (workflow.last,),
            workflow_started_at=workflow.began_at,
            arrived_at=self._at,
            prompt_tokens=prompt,
            completion_tokens=256,
            completion_limit=4_096,
            prefix=tuple(_marks(agent, system, int(workflow.id[1:]), prompt)),
            prefix_units=prompt,
        )
        tokens = 1 + int(draw(4.6 + agent / AGENTS, 0.6))
        self._calls[request.id] = _Call(request, workflow, tokens)
        self.tell(Arrived(request))

    def _each_second(self) -> None:
        told = {
            request_id: min(call.tokens, 1 + (self._at - call.first_at) // TOKEN_US)
            for request_id, call in self._running.items()
            if call.first_at is not None
        }
        if told:
            self.tell(Progressed(dict(islice(told.items(), PROGRESS_LIMIT))))
        ledger = self.balancer.ledger
        for name, each in ledger.instances.items():
            used = ledger.held_tokens(name, self._at) / (each.kv_tokens or 1)
            self.tell(InstanceStatus(name, kv_used=min(0.9, used), running=ledger.running(name)))
        learnt: list[ProfilesLearnt] = []
        self._measured(LEARNING, lambda: learnt.extend(self._learn()))
        for event in learnt:
            self.tell(event)
        self._log.flush()

    def _learn(self) -> list[ProfilesLearnt]:
        self.orchestrator.expire(self._at)
        learnt = self.learner.step()
        return [] if learnt is None else [learnt]

    def tell(self, event: Event) -> None:
        self._measured(type(event).__name__, lambda: self._runtime.feed(event))

    def _measured(self, kind: str, work: Callable[[], None]) -> None:
        began = time.process_time_ns()
        work()
        self.costs_us[kind].append((time.process_time_ns() - began) / 1e3)


def open_workflows(brain: Brain, count: int) -> None:
    """So many more workflows of which all calls have ended, and whose end was not told."""
    tell, first = brain.tell, len(brain.orchestrator)
    at = brain.now()
    for number in range(first, first + count):
        for call in range(CALLS):
            request = Request(
                id=f"open{number}-{call}",
                workflow_id=f"open{number}",
                app="app0",
                agent=f"agent{call}",
                workflow_started_at=at,
                arrived_at=at,
                prompt_tokens=100,
                completion_tokens=256,
            )
            brain.expect(request)
            tell(Arrived(request))
            tell(FirstToken(request.id))
            tell(Finished(request.id, 100, 100, 0))
            brain.forget(request.id)


def _instance(name: str, seqs: int) -> Instance:
    return Instance(
        id=name,
        models=("model",),
        max_num_seqs=seqs,
        kv_tokens=3_000 * seqs,
        max_num_batched_tokens=8_192,
    )


def _marks(agent: int, system: int, workflow: int, prompt: int) -> Iterator[int]:
    for mark in PREFIX_MARKS:
        if mark > prompt:
            return
        yield hash((agent if mark <= system else 0, 0 if mark <= system else workflow, mark))

"""A pool in its steady state, as the ledger sees it: calls end, others begin, answers grow.

What calls are like is drawn from a seed: of several agents, each with lengths of its own, of which
the distributions are known; prompts begin with the agent's system prompt, go on as their workflow
did, and have marks. Every fact that the live service tells is told: first tokens, ends, and once a
second the progress of all calls and the status of all instances.
"""

import heapq
from collections.abc import Iterator
from itertools import count
from random import Random
from typing import Literal

import msgspec

from kairos.core import (
    PREFIX_MARKS,
    QUANTILES,
    SECOND,
    AgentProfile,
    Distribution,
    Finished,
    Instance,
    InstanceStatus,
    Ledger,
    ProfilesLearnt,
    Request,
    WorkEstimates,
)

AGENTS = 12
WORKFLOWS = 3_000  # open at the same time
APP = "app"
START = 3_600 * SECOND
TOKEN_US = 50_000
PROMPT_TOKEN_US = 100

Rooms = Literal["all", "half", "none"]  # which instances have room
ROOMY, FULL = 1.6, 0.85  # KV memory, in what the calls there hold
KV = {"all": (ROOMY, ROOMY), "half": (ROOMY, FULL), "none": (FULL, FULL)}


class Size(msgspec.Struct, frozen=True):
    instances: int
    running: int  # calls on each


class Agent(msgspec.Struct, frozen=True):
    name: str
    system_tokens: int  # that all its prompts begin with
    prompt_tokens: float  # more, in the mean
    answer_tokens: float  # in the mean


class Call(msgspec.Struct, frozen=True):
    request: Request
    tokens: int  # of its answer


class _Running(msgspec.Struct, frozen=True):
    first_at: int  # its first token
    tokens: int  # of its answer, in the end


class Calls:
    """What agents ask for."""

    def __init__(self, seed: int, *, prefixes: bool) -> None:
        self._random, self._numbers, self._prefixes = Random(seed), count(), prefixes
        self.agents = [self._agent(number) for number in range(AGENTS)]

    def _agent(self, number: int) -> Agent:
        draw = self._random.lognormvariate
        return Agent(f"agent{number}", int(draw(5.8, 0.6)), draw(6.3, 0.5), draw(5.2, 0.6))

    def learnt(self) -> ProfilesLearnt:
        return ProfilesLearnt(tuple(self._profile(agent) for agent in self.agents))

    def _profile(self, agent: Agent) -> AgentProfile:
        lengths = self._distribution([self._answer(agent) for _ in range(64 * QUANTILES)])
        quantiles = [each * TOKEN_US for each in lengths.quantiles]
        latency_us = Distribution(lengths.mean * TOKEN_US, tuple(quantiles))
        return AgentProfile(
            tenant="default",
            app=APP,
            agent=agent.name,
            samples=1_024,
            converged=True,
            call_us=latency_us,
            completion_tokens=lengths,
            remaining_us=latency_us,
            remaining_stages=2.0,
        )

    def _distribution(self, values: list[float]) -> Distribution:
        values.sort()
        size = len(values) // QUANTILES
        parts = [values[i : i + size] for i in range(0, len(values), size)]
        return Distribution(sum(values) / len(values), tuple(sum(p) / size for p in parts))

    def _answer(self, agent: Agent) -> float:
        return 1 + self._random.lognormvariate(-0.3, 0.8) * agent.answer_tokens

    def next(self, at: int) -> Call:
        agent = self._random.choice(self.agents)
        own = int(agent.prompt_tokens * self._random.lognormvariate(-0.1, 0.5))
        prompt = agent.system_tokens + own
        workflow = self._random.randrange(WORKFLOWS) + at // (60 * SECOND)
        request = Request(
            id=f"r{next(self._numbers)}",
            workflow_id=f"w{workflow}",
            app=APP,
            agent=agent.name,
            workflow_started_at=at,
            arrived_at=at,
            prompt_tokens=prompt,
            completion_tokens=256,
            completion_limit=4_096,
            prefix=tuple(_marks(agent, workflow, prompt)) if self._prefixes else (),
            prefix_units=prompt,
        )
        return Call(request, int(self._answer(agent)))


def _marks(agent: Agent, workflow: int, prompt: int) -> Iterator[int]:
    for mark in PREFIX_MARKS:
        if mark > prompt:
            return
        own = workflow if mark > agent.system_tokens else None
        yield hash((agent.system_tokens, own, mark))


def instance(name: str, size: Size, kv_tokens: int | None = None) -> Instance:
    return Instance(
        id=name,
        models=(),
        max_num_seqs=size.running + 56,
        kv_tokens=kv_tokens,
        max_num_batched_tokens=8_192,
    )


class Pool:
    """Instances with so many calls each, of which one ends at a time."""

    def __init__(self, size: Size, rooms: Rooms, seed: int, *, prefixes: bool) -> None:
        self.at = START
        self.calls = Calls(seed, prefixes=prefixes)
        self.lengths = WorkEstimates()
        self.lengths.learn(self.calls.learnt())
        self.ledger = Ledger(self.lengths)
        self._random = Random(seed)
        self._due: list[tuple[int, str, bool]] = []  # when, which request, whether it ends then
        self._running: dict[str, _Running] = {}
        self._second = START
        self._fill(size, rooms)

    def _fill(self, size: Size, rooms: Rooms) -> None:
        """Calls that are at different points; then the memory that this is to need."""
        names = [f"instance{number}" for number in range(size.instances)]
        for name in names:
            self.ledger.add_instance(instance(name, size))
        for name in names * size.running:
            self.begin(self.calls.next(self.at), name, done=self._random.random())
        where = self.next_end()
        for number, name in enumerate(names):
            kv = self.ledger.held_tokens(name, self.at) * KV[rooms][number % 2]
            self.ledger.add_instance(instance(name, size, int(kv)))
        self.begin(self.calls.next(self.at), where)

    def begin(self, call: Call, instance_id: str, *, done: float = 0.0) -> None:
        """`done`: the part of the call that is over by now."""
        request = call.request
        prefill_us, decode_us = PROMPT_TOKEN_US * request.prompt_tokens, call.tokens * TOKEN_US
        begun_at = self.at - int(done * (prefill_us + decode_us))
        self.ledger.book(request, instance_id, begun_at)
        first_at = begun_at + prefill_us
        self._running[request.id] = _Running(first_at, call.tokens)
        heapq.heappush(self._due, (first_at, request.id, False))
        heapq.heappush(self._due, (first_at + decode_us + 1, request.id, True))

    def next_end(self) -> str:
        """Go on until the next call has ended; returns where. The ledger knows it all."""
        while True:
            at, request_id, ends = heapq.heappop(self._due)
            while self._second <= at:
                self.at, self._second = self._second, self._second + SECOND
                self._each_second()
            self.at = max(self.at, at)
            if ends:
                return self._end(request_id)
            self.ledger.record_first_token(request_id, at)

    def _end(self, request_id: str) -> str:
        booking = self.ledger.booking(request_id)
        assert booking is not None
        tokens, cached = self._running.pop(request_id).tokens, booking.cached_tokens
        finished = Finished(request_id, completion_tokens=tokens, cached_tokens=cached)
        self.ledger.release_booking(request_id, self.at, finished)
        return booking.instance_id

    def _each_second(self) -> None:
        told = {
            request_id: (self.at - call.first_at) // TOKEN_US
            for request_id, call in self._running.items()
            if call.first_at <= self.at
        }
        self.ledger.record_progress(told, self.at)
        for name, instance in self.ledger.instances.items():
            used = self.ledger.held_tokens(name, self.at) / (instance.kv_tokens or 1)
            self.ledger.record_status(InstanceStatus(name, kv_used=min(1.0, used)), self.at)

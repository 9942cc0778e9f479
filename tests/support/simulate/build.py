"""Builders for tests of the core, and a small simulated body to drive it with."""

from functools import partial
from random import Random

import numpy as np

from kairos.core import (
    SECOND,
    Arrived,
    Balancer,
    Cancelled,
    Entitlements,
    Event,
    Failed,
    Finished,
    Instance,
    InstanceJoined,
    InstanceLeft,
    InstanceStatus,
    Learner,
    Orchestrator,
    PatienceGuard,
    Progressed,
    Record,
    Request,
    Runtime,
    Tick,
    placement_named,
    policy_named,
)
from kairos.simulate.clock import VirtualClock

MS = SECOND // 1000
_ENTITLED = {"weights", "classes", "quotas"}


def request(name, *, at=0, prompt=10, completion=10, model="m", **fields):
    fields.setdefault("workflow_id", f"w-{name}")
    fields.setdefault("workflow_started_at", at)
    return Request(
        id=name,
        model=model,
        arrived_at=at,
        prompt_tokens=prompt,
        completion_tokens=completion,
        **fields,
    )


def instance(name, *, models=("m",), seqs=4, kv=None, block_size=1, **fields):
    """Its blocks are of one token, so that calls hold what they have."""
    limits = {"max_num_seqs": seqs, "kv_tokens": kv, "block_size": block_size}
    return Instance(id=name, models=tuple(models), **limits, **fields)


def floats(*values):
    return np.array(values, dtype=np.float64)


class Lengths:
    """What was learnt of calls' lengths, as told here: by agent, in tokens and in µs."""

    def __init__(self, tokens=None, latency_us=None):
        self.tokens, self.latencies_us = tokens or {}, latency_us or {}

    def kind(self, request):
        return request.agent

    def completion_tokens(self, request):
        return self.tokens.get(request.agent)

    def latency_us(self, request):
        return self.latencies_us.get(request.agent)

    def call_us(self, request):
        return request.completion_tokens * 20_000


def balancer(*instances, policy="fcfs", placement="round-robin", **limits):
    """`weights`, `classes`, `quotas`: of its entitlements."""
    entitled = {name: limits.pop(name) for name in _ENTITLED & limits.keys()}
    limits |= {"entitlements": Entitlements(**entitled)} if entitled else {}
    made = Balancer(policy_named(policy), placement_named(placement), **limits)
    for each in instances:
        assert made.handle(InstanceJoined(each), 0) == []
    return made


def overdue_after(us):
    """Make guards by which a call is overdue when its workflow has waited for so long."""
    return partial(PatienceGuard, patience=0, grace_us=us)


def placed(commands):
    """What was dispatched where: (request id, instance id), and nothing else was decided."""
    return [(command.request_id, command.instance_id) for command in commands]


class FixedTimeEngine:
    """Every call takes as long as its seed says; some fail, some are cancelled on the way.

    It models nothing of a real engine but that answers come later and in another order.
    """

    def __init__(self, clock, seed):
        self.clock, self.random = clock, Random(seed)
        self.dispatched = []
        self.refused = []
        self.running = []
        self.feed = None

    def dispatch(self, command):
        request_id = command.request_id
        self.dispatched.append((request_id, command.instance_id))
        self.running.append(request_id)
        end = self.random.choices([Finished, Failed, Cancelled], weights=[8, 1, 1])[0]
        fact = end(request_id, "engine") if end is Failed else end(request_id)
        took = self.random.randint(1, 2 * SECOND)
        self.clock.call_at(self.clock.now() + took, lambda: self.end(fact))

    def end(self, fact):
        self.running.remove(fact.request_id)
        self.feed(fact)

    def tell(self):
        """What is told once a second: how far calls are, and how instances do."""
        self.feed(Progressed({each: self.random.randint(1, 99) for each in self.running}))
        for name in "abc":
            used, preemptions = self.random.random() ** 0.3, self.random.randint(0, 2)
            self.feed(
                InstanceStatus(name, kv_used=used, waiting_for_room=1, preemptions=preemptions)
            )

    def refuse(self, command):
        self.refused.append(command.request_id)


def simulate(seed, *, requests=200, policy="fcfs", placement="least-kv"):
    """Random arrivals on three unequal instances, one of which leaves and comes back; what is
    learnt of them is published every second."""
    random, clock, log = Random(seed), VirtualClock(), []
    engine, learner = FixedTimeEngine(clock, seed), Learner(Orchestrator(idle_us=3 * SECOND))
    observers = (log.append, learner.observe)
    runtime = Runtime(balancer(policy=policy, placement=placement), engine, clock, observers)
    engine.feed = runtime.feed
    fleet = [instance("a", seqs=2, kv=300), instance("b", kv=900), instance("c", seqs=1)]
    facts: list[tuple[int, Event]] = [(0, InstanceJoined(each)) for each in fleet]
    facts += [(5 * SECOND, InstanceLeft("b")), (9 * SECOND, InstanceJoined(fleet[1]))]
    for n in range(requests):
        at = random.randint(1, 20 * SECOND)
        lengths = {"prompt": random.randint(1, 100), "completion": random.randint(1, 200)}
        whose = {"workflow_id": f"w{n % 50}", "app": f"app{n % 2}", "agent": f"agent{n % 6}"}
        alike, marks = 100 * random.randint(0, 5), lengths["prompt"] // 16
        prefix = {"prefix": tuple(range(alike, alike + marks)), "prefix_units": 64 * marks + 20}
        facts.append((at, Arrived(request(f"r{n}", at=at, **lengths, **whose, **prefix))))
    for at, fact in facts:
        clock.call_at(at, lambda fact=fact: runtime.feed(fact))

    def learn():
        learner.orchestrator.expire(clock.now())
        learnt = learner.step()
        if learnt is not None:
            runtime.feed(learnt)
        engine.tell()
        runtime.feed(Tick())

    for second in range(1, 60):
        clock.call_at(second * SECOND, learn)
    clock.run()
    return log, engine


def replay(log: list[Record], fresh: Balancer) -> list[Record]:
    """What a fresh balancer decides on the same facts at the same instants."""
    return [Record(r.at, r.event, tuple(fresh.handle(r.event, r.at))) for r in log]

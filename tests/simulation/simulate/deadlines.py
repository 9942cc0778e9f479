"""Calls with deadlines, under more load than there is room for, and what refusing those that cannot
be met does: `python -m tests.simulation.simulate.deadlines`, a minute."""

from functools import partial
from random import Random
from unittest import mock

from kairos.core import (
    PLACEMENTS,
    POLICIES,
    SECOND,
    Arrived,
    Balancer,
    Cancelled,
    Finished,
    FirstToken,
    Instance,
    InstanceJoined,
    Learner,
    Orchestrator,
    Progressed,
    Runtime,
    StepCost,
    Tick,
    WorkflowEnded,
)
from kairos.core.admission import Admission
from kairos.simulate.clock import VirtualClock
from kairos.simulate.engines import SimulatedEngines
from kairos.simulate.users import engine_call
from tests.support.simulate import build, worlds

CALLS, SEEDS = 800, range(4)
SEQS, STEP_MS = 4, 20
AGENTS = {"brief": (5, 30), "plain": (30, 100), "long": (100, 200)}  # tokens of an answer
PATIENCE_S = (1, 20)  # until a call's deadline


class Abortable(SimulatedEngines):
    def abort(self, call_id):
        for running in self._running.values():
            if call_id in running.calls:
                running.engine.abort(call_id, self._clock.now())
                del running.calls[call_id]
                self._set_wake_up(running)


class Callers:
    """Each makes one call, and leaves at its deadline; what becomes of them all."""

    def __init__(self, seed, *, load, policy):
        self.clock, self.fleet = VirtualClock(), None
        self.fleet = Abortable(self.clock, self.seen)
        self.balancer = Balancer(POLICIES[policy], PLACEMENTS["kairos"])
        self.learner = Learner(Orchestrator())
        self.runtime = Runtime(self.balancer, self, self.clock, (self.learner.observe,))
        self.calls, self.open, self.in_time, self.refused = {}, set(), set(), set()
        profile = worlds.profile(
            seqs=SEQS, step=StepCost(fixed_us=STEP_MS * worlds.MS, prefill_token_us=100)
        )
        for name in "ab":
            self.fleet.start(name, profile)
            self.runtime.feed(
                InstanceJoined(
                    Instance(id=name, models=("m",), max_num_seqs=SEQS, kv_tokens=profile.kv_tokens)
                )
            )
        dice, at = Random(seed), 0.0
        mean_tokens = sum(sum(each) / 2 for each in AGENTS.values()) / len(AGENTS)
        per_us = 2 * SEQS / (mean_tokens * STEP_MS * worlds.MS)
        for n in range(CALLS):
            agent = dice.choice(list(AGENTS))
            tokens, prompt = dice.randint(*AGENTS[agent]), dice.randint(20, 400)
            patience_us = int(dice.uniform(*PATIENCE_S) * SECOND)
            made = worlds.submission(f"c{n}", worlds.call(tokens, prompt=prompt, agent=agent))
            self.calls[f"c{n}"] = made.workflow
            ask = partial(self.ask, f"c{n}", agent, prompt, patience_us)
            self.clock.call_at(int(at), ask)
            at += dice.expovariate(per_us * load)
        self.left = CALLS
        self.clock.call_at(SECOND, self.each_second)
        self.clock.run()

    def ask(self, name, agent, prompt, patience_us):
        at = self.clock.now()
        self.open.add(name)
        self.clock.call_at(at + patience_us, partial(self.expire, name))
        self.runtime.feed(
            Arrived(
                build.request(
                    name,
                    at=at,
                    agent=agent,
                    app="app",
                    prompt=prompt,
                    completion=256,
                    deadline_at=at + patience_us,
                )
            )
        )

    def dispatch(self, command):
        call = engine_call(self.calls[command.request_id], 0, command.request_id)
        self.fleet.add(command.instance_id, call)

    def refuse(self, command):
        self.refused.add(command.request_id)
        self.end(command.request_id)

    def seen(self, progress):
        name = progress.call_id
        if progress.what == "first_token":
            self.runtime.feed(FirstToken(name))
            return
        call = self.calls[name].calls[0]
        self.in_time.add(name)
        self.runtime.feed(Finished(name, call.prompt_tokens, call.completion_tokens, 0))
        self.end(name)

    def expire(self, name):
        if name in self.open:
            self.fleet.abort(name)
            self.runtime.feed(Cancelled(name))
            self.end(name)

    def end(self, name):
        self.open.discard(name)
        self.left -= 1
        self.clock.call_at(
            self.clock.now(), lambda: self.runtime.feed(WorkflowEnded("default", f"w-{name}"))
        )
        if not self.left:
            self.clock.stop()

    def each_second(self):
        if progress := self.fleet.progress():
            self.runtime.feed(Progressed(progress))
        for status in self.fleet.statuses():
            self.runtime.feed(status)
        if (learnt := self.learner.step()) is not None:
            self.runtime.feed(learnt)
        self.runtime.feed(Tick())
        self.clock.call_at(self.clock.now() + SECOND, self.each_second)


def ran(seed, *, load, policy):
    """Of all calls: those done in time where those that cannot be are refused, and where none is;
    those that were refused; and of those that would have been, where none was, those in time."""
    made = Callers(seed, load=load, policy=policy)
    judge, condemned = Admission._needs_too_long, set()

    def note(admission, request, at):
        if judge(admission, request, at) is not None:
            condemned.add(request.id)

    with mock.patch.object(Admission, "_needs_too_long", note):
        all_let_in = Callers(seed, load=load, policy=policy)
    return (
        len(made.in_time),
        len(all_let_in.in_time),
        len(made.refused),
        (len(condemned & all_let_in.in_time), len(condemned)),
    )


def show():
    for policy in ("kairos", "fcfs", "wasserstein-mds"):
        for load in (0.7, 1.2, 2, 4):
            runs = [ran(seed, load=load, policy=policy) for seed in SEEDS]
            kept, without, refused = (sum(run[n] for run in runs) for n in range(3))
            wrong, condemned = (sum(run[3][n] for run in runs) for n in range(2))
            share = f"{wrong / condemned:.2%} wrongly" if condemned else "none wrongly"
            of = CALLS * len(SEEDS)
            print(
                f"{policy}, load {load}: in time {kept / of:.1%} instead of {without / of:.1%}; "
                f"{refused / of:.1%} refused, {share} ({wrong} of {condemned})",
                flush=True,
            )


if __name__ == "__main__":
    show()

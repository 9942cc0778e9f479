"""Whatever crashes, falls silent, hands over, is said twice or arrives late: every call of a pool
ends once, every call over the bus is answered, none that runs is started again, nothing stays
booked or open for ever, and the log tells what happened."""

from datetime import timedelta

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from kairos.core import Cancelled, InstanceJoined, InstanceLeft, Orchestrator, Topic, WorkflowEnded
from tests.support.cluster.pool_world import REPLY_TO, World, life
from tests.support.examples import examples

pytestmark = pytest.mark.both

OTHER_TOPIC = f"{REPLY_TO}-moved"
TOPICS = [Topic.REQUESTS, Topic.EVENTS, Topic.DISPATCHES, REPLY_TO, OTHER_TOPIC]
PROCESSES = 3
LOST_S = 4  # of silence, after which a process may be taken for dead
index = st.integers(0, 100)


def pick(items, number):
    return items[number % len(items)]


class PoolMachine(RuleBasedStateMachine):
    @initialize(policy=st.sampled_from(["fcfs", "kairos"]), flows=st.booleans())
    def start(self, policy, flows):
        self.world = World(policy=policy)
        self.world.__enter__()
        self.names = 0
        self.asked, self.left = {}, {}  # by name of a call over the bus: topics
        self.silent_since = {}
        self.is_strict = True  # nobody was taken for dead, or decided, wrongly
        self.world.process()
        self.world.process()
        self.world.assign(self.world.processes[0])
        if flows:
            self.world.flow()

    def teardown(self):
        if hasattr(self, "world"):
            try:
                self.calm_down()
                self.check_end()
            finally:
                self.world.__exit__()

    # Calls

    def name(self, kind):
        self.names += 1
        return f"{kind}{self.names}"

    @rule(number=index, workflow=st.sampled_from("uvwx"), times=st.integers(1, 3))
    def call(self, number, workflow, times):
        for _ in range(times):
            process = pick(self.world.live, number) if self.world.live else self.world.process()
            self.world.call(process, self.name("c"), workflow_id=workflow)
        self.world.settle()

    @rule(times=st.integers(1, 3), workflow=st.sampled_from(["u", "v", "x", None]))
    def ask(self, times, workflow):
        for _ in range(times):
            name = self.name("b")
            self.asked[name] = {REPLY_TO}
            self.world.ask(name, **({"kairos-msg-id": workflow} if workflow else {}))
        self.world.settle()

    @precondition(lambda self: self.asked)
    @rule(number=index, topic=st.sampled_from([REPLY_TO, REPLY_TO, OTHER_TOPIC]))
    def ask_again(self, number, topic):
        name = pick(sorted(self.asked), number)
        if name not in self.left:
            self.asked[name].add(topic)
            self.world.ask(name, topic)
            self.world.settle()

    @precondition(lambda self: self.asked)
    @rule(number=index)
    def leave_bus_call(self, number):
        name = pick(sorted(self.asked), number)
        if len(self.asked[name]) == 1:
            self.left[name] = True
            self.world.tell(REPLY_TO, Cancelled(name))
            self.world.settle()

    @precondition(lambda self: self.clients())
    @rule(number=index)
    def client_leaves(self, number):
        pick(self.clients(), number).leave()
        self.world.settle()

    def clients(self):
        return [c for p in self.world.live for c in p.clients if not c.has_ended]

    @precondition(lambda self: self.world.running)
    @rule(number=index, how=st.sampled_from(["finished"] * 4 + ["refused", "gone"]))
    def engine_answers(self, number, how):
        running = pick(self.world.running, number)
        if not running.is_answered:
            running.end(how)
        self.world.settle()

    @rule(workflow=st.sampled_from("uvw"))
    def workflow_ends(self, workflow):
        self.world.tell("orchestrator", WorkflowEnded("default", workflow))
        self.world.settle()

    @rule()
    def workflow_is_cancelled(self):
        """Its room is given away at once, a moment before its calls have left."""
        self.is_strict = False
        self.world.tell("orchestrator", WorkflowEnded("default", "x", cancelled=True))
        self.world.settle()

    @rule(name=st.sampled_from(["e0", "e1"]), joins=st.booleans())
    def instance(self, name, joins):
        joined = InstanceJoined(self.world.fleet[name])
        for process in self.world.live:
            process.member.feed(joined if joins else InstanceLeft(name))
        self.world.settle()

    # The bus, and time

    @rule(
        number=index,
        topic=st.sampled_from(TOPICS),
        count=st.integers(1, 4),
        turns=st.integers(0, 9),
    )
    def some_arrives(self, number, topic, count, turns):
        if self.world.live:
            process = pick(self.world.live, number)
            if not process.is_cut_off:
                process.outbox.deliver(topic, count)
                self.world.settle(turns)

    @rule(
        number=index,
        topic=st.sampled_from(TOPICS),
        count=st.integers(1, 4),
        turns=st.integers(0, 9),
    )
    def some_is_acknowledged(self, number, topic, count, turns):
        if self.world.live:
            process = pick(self.world.live, number)
            if not process.is_cut_off:
                process.outbox.acknowledge(topic, count)
                self.world.settle(turns)

    @rule()
    def all_flows(self):
        self.world.flow()

    @rule(seconds=st.sampled_from([0.5, 1, 2, 6, 8, 40]))
    def time_passes(self, seconds):
        began = self.world.loop.seconds
        self.world.sleep(seconds)
        for process in self.world.live:
            if process.is_cut_off:
                since = self.silent_since.setdefault(process, began)
                if self.world.loop.seconds - since > LOST_S - 1:
                    self.is_strict = False

    @precondition(lambda self: self.world.live)
    @rule(number=index)
    def cut_off(self, number):
        pick(self.world.live, number).is_cut_off = True

    @rule()
    def all_are_heard_again(self):
        for process in self.world.live:
            process.is_cut_off = False
            process.hear_again()
        self.silent_since.clear()

    # Who decides

    def others(self):
        return [p for p in self.world.live if p.is_member and p is not self.world.holder]

    @precondition(lambda self: self.others())
    @rule(number=index, flows=st.booleans())
    def hand_over(self, number, flows):
        if flows:
            self.world.flow()
        if self.others():
            self.note_late(self.world.holder)
            self.world.assign(pick(self.others(), number))

    def note_late(self, before):
        """What it has sent may arrive after another has taken over."""
        if before is not None and (before.outbox.unsent[Topic.EVENTS] or before.is_cut_off):
            self.is_strict = False

    @precondition(lambda self: self.others() and self.world.holder is not None)
    @rule(number=index, is_deaf=st.booleans())
    def another_takes_over_unnoticed(self, number, is_deaf):
        self.is_strict = False
        if is_deaf:
            self.world.holder.is_deaf = True
        self.world.assign(pick(self.others(), number), orderly=False)

    @precondition(lambda self: self.world.zombies)
    @rule(number=index)
    def zombie_notices(self, number):
        self.world.tell_revoked(pick(self.world.zombies, number))

    @precondition(lambda self: self.world.live)
    @rule(
        number=index,
        is_holder=st.booleans(),
        arrives=st.tuples(*[st.integers(0, 5)] * len(TOPICS)),
        takes_over=st.booleans(),
    )
    def crash(self, number, is_holder, arrives, takes_over):
        process = pick(self.world.live, number)
        if is_holder and self.world.holder is not None:
            process = self.world.holder
        if not process.is_cut_off:
            for topic, count in zip(TOPICS, arrives, strict=True):
                process.outbox.deliver(topic, count)
        self.world.kill(process)
        if takes_over:
            self.somebody_decides()

    @precondition(lambda self: len(self.world.live) < PROCESSES)
    @rule()
    def process_starts(self):
        self.world.process()

    @precondition(lambda self: [p for p in self.world.live if p.is_member])
    @rule(number=index)
    def process_decides_no_more(self, number):
        """It is told to stop, but its calls may end."""
        process = pick([p for p in self.world.live if p.is_member], number)
        self.note_late(process)
        if process not in self.world.zombies:
            self.world.leave(process)

    @rule()
    def somebody_decides(self):
        if self.world.holder is None:
            others = self.others()
            self.world.assign(others[0] if others else self.world.process())

    # What must hold

    @invariant()
    def nothing_crashed(self):
        if hasattr(self, "world"):
            assert self.world.problems == []
            for process in self.world.live:
                assert not process.performing.done()
                assert process.group is None or not process.deciding.done()

    @invariant()
    def no_instance_is_overfull(self):
        if not hasattr(self, "world"):
            return
        for process in self.world.live:
            ledger = process.member.balancer.ledger
            for instance in self.world.fleet.values():
                assert ledger.running(instance.id) <= instance.max_num_seqs
        if self.is_strict:
            assert self.world.started_twice == []
            for instance in self.world.fleet.values():
                here = [r for r in self.world.running if r.instance_id == instance.id]
                assert len(here) <= instance.max_num_seqs

    @invariant()
    def the_commit_passes_no_call_that_has_not_ended(self):
        if not hasattr(self, "world"):
            return
        offset = self.world.committed[0]
        _, states, _ = life(self.world.records())
        for name, (cause, _) in states.items():
            assert int(cause) >= offset, f"{name} is open"
        pending = {
            m.headers["kairos-request-id"]
            for m in self.world.logs[Topic.REQUESTS][max(0, offset) :]
            if "kairos-request-id" in m.headers
        }
        for message in self.world.logs[Topic.REQUESTS][: max(0, offset)]:
            name = message.headers.get("kairos-request-id")
            if name is not None and name not in pending and name not in self.left:
                assert self.world.replies(name) or self.world.replies(name, OTHER_TOPIC), name

    def calm_down(self):
        world = self.world
        self.all_are_heard_again()
        for process in list(world.zombies):
            world.tell_revoked(process)
        world.flow()
        self.somebody_decides()
        for name in world.fleet:
            self.instance(name, True)
        for _ in range(20 + 2 * self.names):
            for running in list(world.running):
                if not running.is_answered:
                    running.end()
            world.sleep(1)
            self.somebody_decides()
            if self.is_calm():
                break
        world.sleep(3)

    def is_calm(self):
        """With what is still to be noticed about those that are gone."""
        active = self.world.holder and self.world.holder.active
        opened = active is None or active.open_calls.all()
        return not (opened or self.world.running or self.clients() or self.unanswered())

    def unanswered(self):
        return [
            name
            for name in self.asked
            if name not in self.left
            and not (self.world.replies(name) or self.world.replies(name, OTHER_TOPIC))
        ]

    def check_end(self):
        world, active = self.world, self.world.holder.active
        self.nothing_crashed()
        self.no_instance_is_overfull()
        assert self.clients() == []
        assert self.unanswered() == []
        assert active.open_calls.all() == []
        assert len(active.balancer.ledger) == active.balancer.waiting == 0
        assert list(active._publisher.offsets._undone) == []
        assert world.committed[0] > len(world.logs[Topic.REQUESTS]) - 3 * len(world.live)
        for process in world.live:
            assert process.performer._awaited._asked_at == {}
            assert process.engine.calls._expected == {}
            assert process.calls._calls == {}
            assert process.calls._held_bytes == 0
        lives, states, _ = life(world.records())
        assert states == {}
        orchestrator = Orchestrator()
        for record, _, _ in world.records():
            orchestrator.observe(record)
        assert not any(workflow.in_flight for workflow in orchestrator._open.all())
        if self.is_strict:
            for client in [c for p in world.live for c in p.clients]:
                if client.status == 200:
                    begin, *returns, end = " ".join(lives[client.request.id]).split(" Dispatch ")
                    assert begin == "Arrived"
                    assert set(returns) <= {"Bounced"}
                    assert end == "Finished"


def test_every_call_of_a_pool_ends_once_whatever_happens():
    run_state_machine_as_test(
        PoolMachine,
        settings=settings(
            examples(60, steps=40),
            deadline=timedelta(seconds=60),
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_a_call_that_was_asked_for_again_ends_with_what_was_told_of_it_before():
    """A process decided, was overtaken, and decides again. That the call ended it told as long as
    its word did not count, and meanwhile the caller had asked once more: found by the machine."""
    machine = PoolMachine()
    machine.start(policy="fcfs", flows=True)
    machine.ask(times=1, workflow=None)
    machine.another_takes_over_unnoticed(number=0, is_deaf=False)
    machine.process_starts()
    machine.ask_again(number=0, topic=REPLY_TO)
    machine.leave_bus_call(number=0)
    for _ in range(2):
        machine.another_takes_over_unnoticed(number=1, is_deaf=True)
    machine.all_flows()
    machine.crash(number=17, is_holder=False, arrives=(0, 0, 2, 2, 1), takes_over=False)
    machine.time_passes(seconds=40)
    machine.teardown()


def test_a_call_whose_instance_fails_while_its_workflow_is_cancelled_ends():
    """The cancellation was of the turn before: found by the machine."""
    machine = PoolMachine()
    machine.start(policy="fcfs", flows=False)
    machine.call(number=0, times=1, workflow="x")
    machine.all_flows()
    machine.engine_answers(how="gone", number=0)
    machine.workflow_is_cancelled()
    machine.teardown()

"""The starvation guard's bound against a simple count.

With every policy, arrival and estimate a call is overdue when its workflow has waited for as long
as it may, and not before; a workflow that was silent for `IDLE_S` begins again. An overdue call is
sent within the work of the calls that were overdue before it, over the guard's share. Overdue calls
take no more than that share of what is sent.
"""

from itertools import count
from random import Random

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kairos.core import IDLE_S, POLICIES, SECOND, PatienceGuard
from kairos.core.scheduler.guard import GRACE_US, NO_GUARD, PATIENCE, SHARE
from tests.property.core.test_queue import ByTable, Room, made
from tests.support.examples import examples
from tests.support.simulate import build

pytestmark = pytest.mark.both

LATER = 1 / 8  # of its wait: a call whose estimate has grown is looked at so much later


class Call:
    def __init__(self, request, at, work_us):
        self.request, self.at, self.work_us = request, at, work_us
        self.may_us = 0.0  # the most that its workflow could wait, by the estimates so far
        self.ahead_us = None  # of calls that were overdue before it, when it became so
        self.sent_us = 0  # since then


def overdue(queue):
    """List the overdue calls of a queue in their order."""
    late = [each for each in queue.standings() if each.overdue_at is not None]
    return sorted(late, key=lambda each: (each.overdue_at, each.seq))


class GuardMachine(RuleBasedStateMachine):
    """A policy that does its worst, workflows of all widths, and answers of all lengths."""

    @initialize(newest_first=st.booleans())
    def start(self, newest_first):
        self.table, self.newest_first = {}, newest_first
        self.at, self.numbers = 0, count()
        self.estimates, self.queue, self.push = made(lambda _: ByTable(self.table))
        self.waiting, self.running, self.waited = {}, {}, {}
        self.seen = {}  # when each workflow's last call came or ended
        self.first_us = self.sent_us = self.largest_us = 0

    @rule(
        workflow=st.integers(0, 4),
        tokens=st.sampled_from([1, 20, 400, 8_000]),
        key=st.integers(0, 3),
        width=st.sampled_from([1, 1, 1, 10]),
    )
    def come(self, workflow, tokens, key, width):
        self.forget_silent(f"w{workflow}")
        for _ in range(width):
            number = next(self.numbers)
            name = f"r{number}"
            request = build.request(name, at=self.at, completion=tokens, workflow_id=f"w{workflow}")
            self.table[name] = -number if self.newest_first else key
            self.push(request, self.at)
            call = self.waiting[name] = Call(request, self.at, self.estimates.call_us(request))
            self.largest_us = max(self.largest_us, call.work_us)

    @rule(seconds=st.sampled_from([0.01, 1, 5, 30, 200, 600]))
    def time_passes(self, seconds):
        took_us = int(seconds * SECOND)
        for workflow in {each.request.workflow_id for each in self.waiting.values()}:
            self.waited[workflow] = self.waited.get(workflow, 0) + took_us
        self.at += took_us

    @precondition(lambda self: self.waiting)
    @rule(times=st.sampled_from([1, 5]), need=st.sampled_from([0, 10**9, 10**9, 10**9]))
    def go(self, times, need):
        for _ in range(times):
            self.note_overdue()
            turn = self.queue.first(Room(need), self.at)
            if turn is None:
                return
            name = turn.request.id
            self.queue.pop_dispatched(name, turn.reason)
            self.estimates.note_dispatch(name, self.at)
            call = self.running[name] = self.waiting.pop(name)
            for each in self.waiting.values():
                each.sent_us += 0 if each.ahead_us is None else call.work_us
            self.sent_us += call.work_us
            self.first_us += call.work_us if turn.reason == "overdue" else 0
            if not self.waiting:
                self.first_us = self.sent_us = 0

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def one_ends(self, data):
        """End a call after any time, shorter or longer than expected."""
        name = data.draw(st.sampled_from(sorted(self.running)))
        self.end(name, 1)
        del self.running[name]

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def one_gives_up(self, data):
        name = data.draw(st.sampled_from(sorted(self.waiting)))
        self.queue.remove(name)
        self.end(name)
        del self.waiting[name]
        if not self.waiting:
            self.first_us = self.sent_us = 0

    def end(self, name, completion=None):
        self.estimates.remove_call(name, self.at, completion)
        self.seen[(self.waiting | self.running)[name].request.workflow_id] = self.at

    def forget_silent(self, workflow):
        """Begin to count again for a workflow that had no call for as long as makes it a new one.

        A call in flight is not silence: what has been found to run is not silent from then on.
        """
        open_ones = {each.request.workflow_id for each in (self.waiting | self.running).values()}
        for name in [name for name, at in self.seen.items() if at <= self.at - IDLE_S * SECOND]:
            if name in open_ones:
                self.seen[name] = self.at
            elif name == workflow:
                self.waited.pop(name, None)
        self.seen[workflow] = self.at

    def note_overdue(self):
        """Check that what is overdue for the first time has waited for as long as it may."""
        for call in self.waiting.values():
            whole_us = self.estimates.whole_us(call.request)
            call.now_us = PATIENCE * whole_us + GRACE_US
            call.may_us = max(call.may_us, call.now_us)
        self.queue.note_time(self.at)
        ahead_us = 0
        for each in overdue(self.queue):
            call = self.waiting[each.request.id]
            if call.ahead_us is None:
                call.ahead_us = ahead_us
                assert self.waited[call.request.workflow_id] >= call.now_us - 1
            ahead_us += call.work_us

    @invariant()
    def who_has_waited_for_as_long_as_it_may_is_overdue(self):
        self.note_overdue()
        for call in self.waiting.values():
            waited_us = self.waited.get(call.request.workflow_id, 0)
            slack_us = LATER * (self.at - call.at) + 2
            assert call.ahead_us is not None or waited_us <= call.may_us + slack_us

    @invariant()
    def who_is_overdue_goes_within_the_bound(self):
        for call in self.waiting.values():
            if call.ahead_us is not None:
                assert call.sent_us <= call.ahead_us / SHARE + (1 / SHARE + 1) * self.largest_us

    @invariant()
    def the_overdue_take_no_more_than_their_share(self):
        assert self.first_us <= SHARE * self.sent_us + self.largest_us

    @invariant()
    def the_order_that_is_shown_has_all_of_them_once(self):
        keyed = sorted(self.queue.standings(), key=lambda each: (each.key, each.seq))
        turns = self.queue.guard.in_turn(overdue(self.queue), keyed)
        shown = [each.request.id for each, _ in turns]
        assert sorted(shown) == sorted(self.waiting)


TestGuard = GuardMachine.TestCase
TestGuard.settings = examples(100, steps=80)


def flooded(guard, seed, hours=0.2):
    """Let a long call wait among short ones of another tenant, at twice the pace of one engine.

    Each short call is a workflow of its own. Answers take 0.1 to 10 times what is expected, some a
    hundred times. Returns the work that was sent before the long one since it was overdue, and the
    bound; None: it still waits.
    """
    random = Random(seed)
    estimates, queue, push = made(POLICIES["kairos"], guard)
    long = build.request("long", completion=8_000, workflow_id="long", tenant="one")
    push(long, 0)
    long_us = estimates.call_us(long)
    short_us, at, came_at, n = 0, 0, -10.0 * SECOND, 0  # ten seconds of them are here already
    bound_us, sent_us = None, 0
    while at < hours * 3600 * SECOND:
        while came_at <= at:
            name = f"s{n}"
            request = build.request(
                name, at=max(0, int(came_at)), completion=20, workflow_id=name, tenant="many"
            )
            push(request, request.arrived_at)
            short_us = estimates.call_us(request)
            came_at += random.expovariate(2.0) * short_us
            n += 1
        turn = queue.first(Room(), at)
        late = overdue(queue)
        names = [each.request.id for each in late]
        if bound_us is None and "long" in names:
            ahead_us = sum(each.work_us for each in late[: names.index("long")])
            bound_us, sent_us = ahead_us / SHARE + (1 / SHARE + 1) * long_us, 0
        queue.pop_dispatched(turn.request.id, turn.reason)
        if turn.request.id == "long":
            return sent_us, bound_us
        sent_us += short_us
        estimates.note_dispatch(turn.request.id, at)
        factor = min(100.0, random.lognormvariate(-0.5, 1.0))
        at += int(short_us * min(max(factor, 0.1), 100.0 if random.random() < 0.01 else 10.0))
        estimates.remove_call(turn.request.id, at, 20)
    return None


@pytest.mark.parametrize("seed", range(4))
def test_a_flood_of_short_calls_does_not_starve_a_long_one(seed):
    sent_us, bound_us = flooded(PatienceGuard, seed)

    assert sent_us <= bound_us


def test_without_the_guard_the_flood_starves_it():
    assert flooded(NO_GUARD, 1) is None


def test_once_all_have_left_the_guard_owes_nothing():
    _, queue, push = made(lambda _: ByTable({}), build.overdue_after(0))
    for name in ("large", "small", "last"):
        push(build.request(name, completion=8_000 if name == "large" else 1))
        if name == "large":
            queue.pop_dispatched(queue.first(Room(), 1).request.id, "overdue")

    assert queue.first(Room(), 2).reason == "overdue"


def test_new_calls_of_a_workflow_that_is_overdue_go_behind_what_is_overdue_already():
    _, queue, push = made(lambda _: ByTable({}), build.overdue_after(50))
    push(build.request("waits long", workflow_id="wide"), 0)
    push(build.request("other"), 10)
    queue.note_time(60)
    for number in range(3):
        push(build.request(f"more {number}", workflow_id="wide"), 100)

    queue.note_time(100)
    assert [each.request.id for each in overdue(queue)][:2] == ["waits long", "other"]

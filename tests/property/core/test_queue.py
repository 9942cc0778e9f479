"""The wait queue against the obvious one: a sorted list."""

import math
from itertools import count
from random import Random

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kairos.core import POLICIES, PatienceGuard, WorkEstimates
from kairos.core.scheduler.guard import NO_GUARD
from kairos.core.scheduler.heap import LazyHeap
from kairos.core.scheduler.policies import Fcfs
from kairos.core.scheduler.queue import BACKFILL, PASSED_OVER, WaitQueue
from tests.support.examples import examples
from tests.support.simulate import build

pytestmark = pytest.mark.both

FOREVER = 10**15


class Room:
    """Room for prompts up to a need; `kept` says for whom the rest was kept, `reserved` who were
    told to fit later. `came_back`: for whom memory is kept."""

    def __init__(self, need=FOREVER, came_back=()):
        self.need, self.kept, self.asked, self.reserved = need, None, [], []
        self.came_back = came_back

    def fits(self, request):
        self.asked.append(request.id)
        return self.need is not None and request.prompt_tokens <= self.need

    def refused(self, requests):
        return 0

    def expected_back(self):
        return iter(self.came_back)

    def reserve(self, request):
        self.reserved.append(request.id)

    def exclude_for(self, request):
        self.kept, self.need = request, None
        return False


def pop_first(queue, room, at):
    turn = queue.first(room, at)
    if turn is not None:
        queue.pop_dispatched(turn.request.id, turn.reason)
    return turn


class ByTable:
    """A policy of the test's own: the key of each request stands in a table, and may change."""

    def __init__(self, table):
        self.table = table

    def key(self, request, state):
        return (self.table.get(request.id, 0),)

    def state(self, request):
        return self.table.get(request.id, 0)

    def patience_us(self, request):
        return None


class Counting(ByTable):
    """Notes who was asked for a key; the state stands in a table of its own."""

    def __init__(self, table, states):
        super().__init__(table)
        self.asked, self.states = [], states

    def key(self, request, state):
        self.asked.append(request.id)
        return super().key(request, state)

    def state(self, request):
        return self.states.get(request.id, 0)


def made(policy, guard=PatienceGuard, backfill=BACKFILL, passed_over=PASSED_OVER):
    estimates = WorkEstimates()
    queue = WaitQueue(policy(estimates), estimates, count(), FOREVER, guard, backfill, passed_over)

    def push(request, at=0):
        estimates.add_call(request, at)
        queue.push(request, at)

    return estimates, queue, push


class QueueMachine(RuleBasedStateMachine):
    """Nobody is ever overdue: the order is the policy's alone."""

    @initialize(
        backfill=st.sampled_from([0, 1, 3, BACKFILL]), passed_over=st.sampled_from([0, math.inf])
    )
    def start(self, backfill, passed_over):
        self.table, self.expected, self.seq = {}, [], {}
        self.backfill, self.passed_over = backfill, passed_over
        policy = ByTable(self.table)
        self.estimates, self.queue, self.tell = made(
            lambda _: policy, guard=NO_GUARD, backfill=backfill, passed_over=passed_over
        )
        self.pushed = count()

    def add(self, request):
        self.estimates.remove_call(request.id, 0)
        self.tell(request)
        self.seq[request.id] = next(self.pushed)
        self.expected.append(request)

    def in_order(self):
        return sorted(self.expected, key=lambda r: (self.table[r.id], self.seq[r.id]))

    @rule(key=st.integers(0, 5), need=st.integers(1, 50))
    def push(self, key, need):
        request = build.request(f"r{len(self.seq)}", prompt=need, completion=1)
        self.table[request.id] = key
        self.add(request)

    @precondition(lambda self: self.expected)
    @rule(data=st.data())
    def remove(self, data):
        request = data.draw(st.sampled_from(self.expected))
        self.queue.remove(request.id)
        self.expected.remove(request)

    @precondition(lambda self: self.expected)
    @rule(data=st.data(), need=st.integers(1, 50))
    def push_again_what_was_removed(self, data, need):
        """Under the same id comes another request, as when a call is tried again."""
        request = data.draw(st.sampled_from(self.expected))
        self.queue.remove(request.id)
        self.expected.remove(request)
        self.add(build.request(request.id, prompt=need, completion=1))

    @precondition(lambda self: self.expected)
    @rule(data=st.data(), key=st.integers(0, 5))
    def change_one_key(self, data, key):
        request = data.draw(st.sampled_from(self.expected))
        self.table[request.id] = key
        self.queue.rekey(request)

    @precondition(lambda self: self.expected)
    @rule(data=st.data())
    def change_all_keys(self, data):
        keys = st.lists(st.integers(0, 5), min_size=len(self.expected), max_size=len(self.expected))
        for request, key in zip(self.expected, data.draw(keys), strict=True):
            self.table[request.id] = key
        self.estimates.epoch += 1
        self.queue.start_renewing()
        self.queue.by_key.move(256)  # more at once than wait here

    @rule(room=st.integers(0, 60), data=st.data())
    def pop_first_that_fits(self, room, data):
        """Of those that have come back for their memory; of the first, and of so many behind it as
        may go before it."""
        came_back = data.draw(st.lists(st.sampled_from([*self.seq, "gone"]), max_size=4))
        here = [r for each in came_back for r in self.expected if r.id == each]
        kept = next((r for r in here[: 1 + self.backfill] if r.prompt_tokens <= room), None)
        if kept is not None:
            turn = pop_first(self.queue, Room(room, came_back), 0)
            assert (turn.request, turn.reason) == (kept, "kept")
            self.expected.remove(kept)
            return
        looked_at = self.in_order()[: 1 + self.backfill]
        first = next((r for r in looked_at if r.prompt_tokens <= room), None)
        free = Room(room, came_back)
        turn = pop_first(self.queue, free, 0)
        assert (turn and turn.request) == first
        head = looked_at[0].id if looked_at else None
        goes = head is None or (first is not None and first.id == head)
        assert free.reserved == ([] if goes or self.passed_over else [head])
        if first is not None:
            assert turn.reason == ("first" if first.id == head else "backfill")
            self.expected.remove(first)

    @invariant()
    def both_agree(self):
        assert len(self.queue) == len(self.expected)
        assert self.queue.requests() == self.expected
        if self.expected:
            assert self.queue.head_key(0)[0] == (self.table[self.in_order()[0].id],)
            assert self.queue.oldest() == self.expected[0]


TestQueue = QueueMachine.TestCase
TestQueue.settings = examples(80, steps=60)


def test_after_what_its_workflow_may_wait_a_call_goes_first():
    _, queue, push = made(lambda _: ByTable({"old": 1}), guard=build.overdue_after(50))
    push(build.request("old", completion=10_000), at=0)
    push(build.request("new"), at=49)

    assert pop_first(queue, Room(), 49).request.id == "new"
    push(build.request("newer"), at=50)
    assert queue.head_key(49) == ((0.0,), 2)
    assert queue.head_key(50) == ((-math.inf,), 0)
    assert pop_first(queue, Room(), 50).request.id == "old"


@pytest.mark.parametrize(("patience_us", "goes_first_at"), [(30, 30), (80, 50)])
def test_the_patience_of_the_policy_counts_where_it_is_shorter(patience_us, goes_first_at):
    class Impatient(ByTable):
        def patience_us(self, request):
            return patience_us

    _, queue, push = made(lambda _: Impatient({"old": 1}), guard=build.overdue_after(50))
    push(build.request("old", completion=10_000), at=0)
    push(build.request("new"), at=1)
    push(build.request("newer"), at=1)

    assert pop_first(queue, Room(), goes_first_at - 1).request.id == "new"
    assert pop_first(queue, Room(), goes_first_at).request.id == "old"


def test_room_is_kept_for_an_overdue_request_that_does_not_fit():
    _, queue, push = made(lambda _: ByTable({"large": 1}), guard=build.overdue_after(50))
    push(build.request("large", prompt=50), at=0)
    push(build.request("small", prompt=1), at=1)

    early = Room(20)
    assert pop_first(queue, early, 1).reason == "first"
    push(build.request("small again", prompt=1), at=50)
    late = Room(20)
    assert pop_first(queue, late, 50) is None
    assert late.kept.id == "large"
    assert pop_first(queue, Room(60), 51).request.id == "large"
    assert pop_first(queue, Room(20), 52).request.id == "small again"


def test_no_more_than_so_many_behind_the_first_are_looked_at_and_none_loses_its_place():
    _, queue, push = made(Fcfs, guard=NO_GUARD, backfill=3)
    for n in range(9):
        push(build.request(f"r{n}", at=n, prompt=1 if n in (2, 5, 6) else 50), n)
    free = Room(20)

    assert pop_first(queue, free, 9).request.id == "r2"
    assert pop_first(queue, free, 9) is None  # the fourth and fifth behind the first are too far
    assert free.asked == ["r0", "r1", "r2", "r0", "r1", "r3", "r4"]
    assert [pop_first(queue, Room(), 9).request.id for _ in range(8)] == [
        f"r{n}" for n in (0, 1, 3, 4, 5, 6, 7, 8)
    ]


def test_room_that_is_reserved_is_reserved_for_the_first_alone_and_before_others_are_asked():
    _, queue, push = made(Fcfs, passed_over=0)
    for n in range(3):
        push(build.request(f"r{n}", at=n, prompt=50), n)
    told = []

    class Noting(Room):
        def fits(self, request):
            told.append(("fits", request.id))
            return False

        def reserve(self, request):
            told.append(("reserve", request.id))

    assert queue.first(Noting(), 3) is None
    assert told == [("fits", "r0"), ("reserve", "r0"), ("fits", "r1"), ("fits", "r2")]


@pytest.mark.parametrize("began_at", [0, 7])
def test_the_first_is_passed_over_for_some_times_what_its_call_is_expected_to_take(began_at):
    estimates, queue, push = made(Fcfs)
    push(build.request("large", prompt=50))
    push(build.request("small", prompt=5), 0)
    may_us = int(PASSED_OVER * estimates.call_us(build.request("large", prompt=50)))

    reserved = []
    for after_us in (0, may_us - 1, may_us):  # from the first time on that it did not fit
        at = began_at + after_us
        room = Room(20)
        assert queue.first(room, at).request.id == "small"
        reserved.append(room.reserved)
    assert reserved == [[], [], ["large"]]


def test_who_comes_back_for_its_memory_goes_before_others_but_not_before_who_is_overdue():
    _, queue, push = made(Fcfs, guard=build.overdue_after(50))
    for n in range(3):
        push(build.request(f"r{n}", at=n), n)

    assert pop_first(queue, Room(came_back=["r2"]), 10).request.id == "r2"
    push(build.request("r3", at=40), 40)
    turn = pop_first(queue, Room(came_back=["r3"]), 50)
    assert (turn.request.id, turn.reason) == ("r0", "overdue")


def test_while_keys_are_renewed_the_head_is_always_up_to_date():
    table = {}
    estimates, queue, push = made(lambda _: ByTable(table), guard=NO_GUARD)
    for n in range(2_000):
        table[f"r{n}"] = n
        push(build.request(f"r{n}"))
    for n in range(2_000):
        table[f"r{n}"] = n + 10_000 if n < 10 else n
    estimates.epoch += 1
    queue.start_renewing()

    served = [pop_first(queue, Room(), 0).request.id for _ in range(2_000)]
    assert served == [f"r{n}" for n in (*range(10, 2_000), *range(10))]


def test_renewing_takes_few_at_a_time_and_ends():
    policy = Counting({}, {})
    asked = policy.asked
    estimates, queue, push = made(lambda _: policy)
    for n in range(5_000):
        push(build.request(f"r{n}"))
    asked.clear()
    for _ in range(3):  # news that come before the last are dealt with
        estimates.epoch += 1
        queue.start_renewing()
        queue.by_key.move(256)
        assert len(asked) <= 300
        asked.clear()
    for _ in range(100):
        queue.by_key.move(256)

    assert not queue.by_key.moving
    assert all(w.epoch == estimates.epoch for w in queue._waiting.values())


def test_a_request_that_comes_back_stands_at_its_new_place_even_with_the_same_key():
    key = (0.0,)

    class Always(ByTable):
        def key(self, request, state):
            return key

    estimates, queue, push = made(lambda _: Always({}))
    push(build.request("again"))
    push(build.request("second"))
    queue.remove("again")
    estimates.remove_call("again", 0)
    push(build.request("again"))

    assert queue.head_key(0) == (key, 1)
    assert [pop_first(queue, Room(), 0).request.id for _ in range(2)] == ["second", "again"]


def test_a_call_that_is_tried_again_is_as_old_as_its_workflow():
    estimates, queue, push = made(lambda _: ByTable({"again": 1}), guard=build.overdue_after(50))
    push(build.request("again", prompt=50, workflow_id="old"), at=0)
    assert pop_first(queue, Room(20), 60) is None
    assert queue.overdue().id == "again"
    queue.remove("again")
    estimates.remove_call("again", 60)
    push(build.request("again", workflow_id="old"), at=70)
    push(build.request("new", workflow_id="new"), at=71)

    assert pop_first(queue, Room(), 72).request.id == "again"


def test_only_a_fact_that_changes_the_state_costs_a_new_key():
    states = {}
    policy = Counting({}, states)
    _, queue, push = made(lambda _: policy)
    request = build.request("r")
    push(request)
    assert not queue.rekey(request)
    assert policy.asked == ["r"]

    for states["r"] in range(1, 10):
        assert queue.rekey(request)
        assert not queue.rekey(request)
    assert len(policy.asked) == 10
    assert len(queue.by_key) == 1  # the key stayed as it was, and so did its entry


def test_a_heap_that_is_moved_stays_in_order_and_counts_all_of_its_entries():
    order = list(range(300))
    Random(1).shuffle(order)
    heap = LazyHeap(lambda entry: entry)
    for n in order:
        heap.push((n,), len(heap) + 1)
    heap.start_moving()
    taken = []
    for left in range(300, 0, -1):
        assert len(heap) == left
        heap.move(1)
        taken.append(heap.pop()[0])

    assert taken == sorted(order)
    assert (heap.top(), heap.pop()) == (None, None)


def test_a_long_life_of_pushes_and_removals_leaves_no_garbage():
    estimates, queue, push = made(Fcfs)
    for n in range(10_000):
        push(build.request(f"r{n}", at=n))
        queue.remove(f"r{n}")
        estimates.remove_call(f"r{n}", n)

    heaps = (queue.by_key, queue.guard._by_due_at, queue.guard._overdue)
    assert sum(map(len, heaps)) < 600
    assert len(estimates._standings) == len(estimates._together) == 0


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_serves_all_and_only_once(policy):
    _, queue, push = made(POLICIES[policy])
    for n in range(50):
        push(build.request(f"r{n}", at=n, workflow_id=f"w{n % 7}", app="a", agent=f"a{n % 3}"), n)

    served = [pop_first(queue, Room(), 50).request.id for _ in range(50)]
    assert sorted(served) == sorted(f"r{n}" for n in range(50))
    assert pop_first(queue, Room(), 50) is None

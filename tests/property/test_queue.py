"""The wait queue against the obvious one: a sorted list."""

from itertools import count

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kairos.scheduler.policies import Fcfs
from kairos.scheduler.queue import WaitQueue
from tests import build


class QueueMachine(RuleBasedStateMachine):
    @initialize()
    def start(self):
        self.queue, self.expected, self.pushed = WaitQueue(Fcfs(), count()), [], 0

    @rule(at=st.integers(0, 5), need=st.integers(1, 50))
    def push(self, at, need):
        request = build.request(f"r{self.pushed}", at=at, prompt=need, completion=1)
        self.pushed += 1
        self.queue.push(request)
        self.expected.append(request)
        self.expected.sort(key=lambda r: r.arrived_at)  # stable: ties stay in order of arrival

    @precondition(lambda self: self.expected)
    @rule(data=st.data())
    def remove(self, data):
        request = data.draw(st.sampled_from(self.expected))
        self.queue.remove(request.id)
        self.expected.remove(request)

    @precondition(lambda self: self.expected)
    @rule(data=st.data())
    def push_again_what_was_removed(self, data):
        request = data.draw(st.sampled_from(self.expected))
        self.queue.remove(request.id)
        self.queue.push(request)
        self.expected.remove(request)
        self.expected.append(request)
        self.expected.sort(key=lambda r: r.arrived_at)

    @rule(room=st.integers(0, 60))
    def pop_first_that_fits(self, room):
        first = next((r for r in self.expected if r.peak_kv_tokens <= room), None)
        assert self.queue.pop_first(lambda r: r.peak_kv_tokens <= room) == first
        if first is not None:
            self.expected.remove(first)

    @invariant()
    def both_agree(self):
        assert len(self.queue) == len(self.expected)
        assert {r.id for r in self.queue.requests()} == {r.id for r in self.expected}
        if self.expected:
            assert self.queue.least_need() == min(r.peak_kv_tokens for r in self.expected)
            assert self.queue.head_key()[0] == (self.expected[0].arrived_at,)

    @invariant()
    def what_is_gone_takes_no_memory_for_long(self):
        limit = 2 * len(self.queue) + 64
        assert max(len(self.queue._by_key), len(self.queue._by_need)) <= limit + 1


TestQueue = QueueMachine.TestCase
TestQueue.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)


def test_a_long_life_of_pushes_and_removals_leaves_no_garbage():
    queue = WaitQueue(Fcfs(), count())
    for n in range(10_000):
        queue.push(build.request(f"r{n}", at=n))
        queue.remove(f"r{n}")

    assert len(queue._by_key) + len(queue._by_need) < 200

"""Of the places in the queue a tenant has its share, whatever comes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kairos.core import (
    Arrived,
    Cancelled,
    Finished,
    QueueFull,
    Record,
    Refuse,
    ShareUsed,
    is_within_share,
)
from tests.support.examples import examples
from tests.support.simulate import build

PLACES = 30
TENANTS = "abc"
FACTS = st.lists(
    st.tuples(
        st.sampled_from(["arrive"] * 8 + ["finish", "cancel"]),
        st.sampled_from("aaaaaaab" + TENANTS),
        st.integers(0, 10**6),
    ),
    min_size=40,
    max_size=200,
)


class Queue:
    """A balancer before one instance, on which little runs; and its log."""

    def __init__(self, share):
        self.share = share
        self.balancer = self.fresh()
        self.at, self.log = 0, []

    def fresh(self):
        instance = build.instance("i", seqs=2)
        return build.balancer(instance, max_waiting=PLACES, tenant_share=self.share)

    def waiting(self):
        """Requests, by tenant."""
        waiting = {tenant: [] for tenant in TENANTS}
        for request, instance in self.balancer.in_flight():
            if instance is None:
                waiting[request.tenant].append(request)
        return waiting

    def tell(self, event):
        self.at += 1
        commands = self.balancer.handle(event, self.at)
        self.log.append(Record(self.at, event, tuple(commands)))
        return commands

    def arrive(self, tenant, number):
        name = f"r{len(self.log)}-{self.at}"
        workflow = {"workflow_id": f"w{number % 12}"} if number % 3 else {}
        return Arrived(build.request(name, at=self.at, tenant=tenant, **workflow))

    def end(self, kind, number):
        here = [(each.id, instance) for each, instance in self.balancer.in_flight()]
        wanted = [name for name, instance in here if kind == "cancel" or instance is not None]
        name = wanted[number % len(wanted)] if wanted else "nobody"
        return Finished(name) if kind == "finish" else Cancelled(name)


def is_over(waiting, tenant):
    """Whether one more of the tenant's would be too many."""
    free = PLACES - sum(map(len, waiting.values())) - 1
    return not is_within_share(len(waiting[tenant]) + 1, free)


@given(facts=FACTS)
def test_a_tenant_is_refused_at_its_share_and_nobody_else_for_it(facts):
    queue = Queue(0.9)
    for kind, tenant, number in facts:
        if kind != "arrive":
            queue.tell(queue.end(kind, number))
            continue
        before, event = queue.waiting(), queue.arrive(tenant, number)
        over = is_over(before, tenant)
        try:
            commands = queue.tell(event)
        except (QueueFull, ShareUsed):
            assert over
            assert queue.waiting() == before
            continue
        refused = [each for each in commands if isinstance(each, Refuse)]
        assert len(refused) == over
        for each in refused:  # a newer workflow of its own gave way
            assert each.reason == "queue_full"
            assert each.request_id in {request.id for request in before[tenant]}
        after = queue.waiting()
        assert sum(map(len, after.values())) <= PLACES
        assert all(len(after[each]) <= len(before[each]) for each in TENANTS if each != tenant)
    counted = {each: queue.balancer._queues.of_tenant(each) for each in TENANTS}
    assert counted == {each: len(waiting) for each, waiting in queue.waiting().items()}

    again = queue.fresh()
    for record in queue.log:
        assert tuple(again.handle(record.event, record.at)) == record.commands


@given(facts=FACTS)
@examples(30)
def test_where_there_are_no_shares_only_all_places_count(facts):
    queue = Queue(1)
    for kind, tenant, number in facts:
        if kind != "arrive":
            queue.tell(queue.end(kind, number))
            continue
        before, event = queue.balancer.waiting, queue.arrive(tenant, number)
        try:
            queue.tell(event)
        except QueueFull:
            assert before == PLACES
        assert queue.balancer.waiting <= PLACES


def test_one_tenant_has_nearly_all_places_and_another_is_let_in():
    queue = Queue(0.9)
    for _ in range(2 + 27):  # of which two run
        queue.tell(queue.arrive("a", 0))
    with pytest.raises(ShareUsed, match="has 27 requests that wait already"):
        queue.tell(queue.arrive("a", 0))
    assert [len(each) for each in queue.waiting().values()] == [27, 0, 0]
    queue.tell(queue.arrive("b", 0))
    with pytest.raises(ShareUsed):
        queue.tell(queue.arrive("a", 0))
    queue.tell(queue.arrive("c", 0))

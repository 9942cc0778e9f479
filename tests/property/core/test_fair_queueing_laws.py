"""Tenants have service in proportion to their weights, whatever comes; and no room stays empty."""

from hypothesis import given
from hypothesis import strategies as st

from kairos.core import SECOND, Arrived, Cancelled, Finished, Record, StartTags, TenantWeight
from tests.support.simulate import build

NAMES = "abc"
WEIGHTS = st.fixed_dictionaries(dict.fromkeys(NAMES, st.sampled_from((0.5, 1.0, 3.0))))


@given(WEIGHTS, st.lists(st.tuples(st.integers(1, 100), st.integers(-50, 50)), min_size=1))
def test_tags_differ_by_no_more_than_a_call_of_each_and_what_charges_were_wrong_by(weights, calls):
    tags = StartTags(weights)
    for name in NAMES:
        tags.open_queue(name)
    largest, wrong = dict.fromkeys(NAMES, 0.0), 0.0
    for cost_us, more_us in calls:
        first = min(NAMES, key=tags.tag)
        tags.charge(first, cost_us)
        tags.correct(first, max(more_us, -cost_us))
        largest[first] = max(largest[first], cost_us / weights[first])
        wrong = max(wrong, abs(more_us) / weights[first])
        for a in NAMES:
            for b in NAMES:
                apart = tags.tag(a) - tags.tag(b)
                assert apart <= largest[a] + largest[b] + 2 * wrong + 1e-9


FACTS = st.lists(
    st.tuples(
        st.sampled_from(["arrive", "arrive", "finish", "finish", "cancel"]),
        st.sampled_from("aaabc"),
        st.integers(0, 10**6),
    ),
    min_size=20,
    max_size=150,
)


class Pool:
    """A balancer before two instances of two sequences each; and its log."""

    def __init__(self, weights):
        self.tenants = {name: TenantWeight(weight) for name, weight in weights.items()}
        self.balancer, self.at, self.log = self.fresh(), 0, []

    def fresh(self):
        instances = build.instance("i", seqs=2), build.instance("j", seqs=2)
        return build.balancer(*instances, placement="least-kv", weights=self.tenants)

    def tell(self, kind, tenant, number):
        self.at += SECOND // 10
        here = self.balancer.in_flight()
        running = [each.id for each, where in here if where is not None]
        if kind == "arrive" or not running:
            name = f"{tenant}{len(self.log)}"
            completion = 5 * (1 + number % 50)
            event = Arrived(build.request(name, at=self.at, tenant=tenant, completion=completion))
        elif kind == "finish":
            event = Finished(running[number % len(running)])
        else:
            event = Cancelled(here[number % len(here)][0].id)
        commands = self.balancer.handle(event, self.at)
        self.log.append(Record(self.at, event, tuple(commands)))
        return commands

    def tags(self, balancer):
        tags = balancer._queues.fairness.tenants[0]
        return {name: tags.tag(name) for name in NAMES}, tags.virtual_time


@given(WEIGHTS, FACTS)
def test_no_room_stays_empty_and_a_replay_leaves_the_same_tags(weights, facts):
    pool = Pool(weights)
    for fact in facts:
        pool.tell(*fact)
        if pool.balancer.waiting:
            assert len(pool.balancer.ledger) == 4
    second = pool.fresh()
    for record in pool.log:
        second.replay(record)
    assert pool.tags(second) == pool.tags(pool.balancer)


@given(WEIGHTS, FACTS)
def test_of_tenants_that_wait_the_one_with_the_lowest_tag_goes(weights, facts):
    pool = Pool(weights)
    for fact in facts:
        waiting = {each.tenant for each, where in pool.balancer.in_flight() if where is None}
        before, _ = pool.tags(pool.balancer)
        commands = pool.tell(*fact)
        event = pool.log[-1].event
        if waiting and commands and not isinstance(event, Arrived):
            after, _ = pool.tags(pool.balancer)
            gone = commands[0].request_id[0]
            if event.request_id[0] != gone:  # else its tag was put right before it went
                assert all(before[gone] <= after[each] + 1e-6 for each in waiting - {gone})

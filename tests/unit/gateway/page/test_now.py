"""What the page says of this moment; and that it only looks."""

from types import SimpleNamespace

import pytest

from kairos.core import (
    SECOND,
    Arrived,
    Failed,
    Finished,
    FirstToken,
    InstanceStatus,
    Record,
    Runtime,
)
from kairos.engines import InstanceView
from kairos.gateway.page.now import Now
from kairos.observe import Telemetry
from tests.support.simulate import build


class Pool:
    """A balancer whose every fact comes when a test says, and the page of it."""

    def __init__(self, *instances, **given):
        self.balancer = build.balancer(*instances, **given)
        self.decides, self.at = True, 0
        self.telemetry = Telemetry(lambda: self.balancer, None, lambda: self.at)
        fleet = SimpleNamespace(views=lambda: [*map(self.view_of, self.balancer.ledger.instances)])
        self.page = Now(self, fleet, self.telemetry, None)
        self.problems = {}

    def now(self):
        return self.at

    def view_of(self, name):
        return InstanceView(
            name,
            f"http://{name}",
            "not_in_use" if name in self.problems else "in_use",
            self.problems.get(name),
            self.balancer.ledger.running(name),
            True,
        )

    def tell(self, fact, at=None):
        self.at = self.at if at is None else at
        commands = self.balancer.handle(fact, self.at)
        self.telemetry(Record(self.at, fact, tuple(commands)))


def test_of_an_instance_it_says_what_runs_there_and_what_its_memory_will_hold():
    pool = Pool(build.instance("a", seqs=4, kv=1_000))
    pool.tell(Arrived(build.request("r", prompt=300, completion=100)))
    pool.tell(FirstToken("r"), SECOND)
    [seen] = pool.page.view().instances
    assert (seen.id, seen.state, seen.running, seen.max_num_seqs) == ("a", "in_use", 1, 4)
    assert (seen.circuit, seen.short_of_memory, seen.models) == ("closed", False, ("m",))
    memory = seen.memory
    assert (memory.size, memory.held, memory.kept) == (1_000, 301, 0)
    assert len(memory.expected) == len(memory.high) == 24
    assert memory.step_s == 1.0
    assert memory.expected[0] == pytest.approx(301, abs=2)
    assert memory.expected[-1] < memory.expected[0] < max(memory.high)


def test_instances_in_trouble_come_first():
    pool = Pool(*[build.instance(name, kv=100) for name in "abcd"])
    pool.problems["c"] = "nothing answers there"
    pool.tell(Arrived(build.request("r", prompt=50)))
    busy = pool.balancer.ledger.instance_of("r")
    pool.tell(InstanceStatus(busy, kv_used=0.99, running=1, waiting=1))
    seen = pool.page.view().instances
    assert {each.id for each in seen[:2]} == {"c", busy}
    assert {each.id: each.short_of_memory for each in seen}[busy]
    assert {each.id: each.problem for each in seen}["c"] == "nothing answers there"


def test_of_what_waits_it_says_who_and_how_long_and_until_when():
    pool = Pool(build.instance("a", seqs=1))
    pool.tell(Arrived(build.request("runs")))
    pool.tell(
        Arrived(
            build.request(
                "waits", at=SECOND, app="shop", agent="cart", deadline_at=9 * SECOND, completion=50
            )
        ),
        SECOND,
    )
    pool.at = 3 * SECOND
    queue = pool.page.view().queue
    [call] = queue.calls
    assert (queue.total, call.place, call.id, call.workflow_id) == (1, 1, "waits", "w-waits")
    assert (call.app, call.agent, call.tenant, call.standing) == (
        "shop",
        "cart",
        "default",
        "policy",
    )
    assert (call.waited_s, call.deadline_s) == (2.0, 6.0)
    assert call.expected_call_s == call.expected_remaining_s == pytest.approx(1.002)


def test_every_page_of_the_queue_is_of_one_order():
    pool = Pool(build.instance("a", seqs=1))
    for n in range(300):
        pool.tell(Arrived(build.request(str(n), at=n, completion=n * 31 % 97 + 1)), n)
    pages = [pool.page.queue(offset, 50) for offset in range(0, 350, 50)]
    assert [each.total for each in pages] == [299] * 7
    told = [call for page in pages for call in page.calls]
    assert [call.place for call in told] == list(range(1, 300))
    assert [call.id for call in told] == [each.request.id for each in pool.balancer.queued(999)]


def test_of_a_page_that_was_found_a_while_ago_what_has_left_since_is_left_out():
    pool = Pool(build.instance("a", seqs=1))
    for n in range(200):
        pool.tell(Arrived(build.request(str(n), at=n)), n)
    assert [call.id for call in pool.page.queue(150, 49).calls] == [*map(str, range(151, 200))]
    for n in range(160):
        pool.tell(Finished(str(n)))
    seen = pool.page.queue(150, 49)
    assert (seen.total, [call.id for call in seen.calls]) == (39, [*map(str, range(161, 200))])
    assert [call.place for call in pool.page.queue(0, 50).calls] == [*range(1, 40)]
    pool.at += 2 * SECOND
    assert pool.page.queue(150, 49).calls == []


def test_it_counts_what_ended_and_what_calls_were_answered():
    pool = Pool(build.instance("a"))
    for n in range(3):
        pool.tell(Arrived(build.request(str(n))))
    pool.tell(Finished("0"))
    pool.tell(Failed("1", "upstream_failed"))
    pool.telemetry.count_errors("queue_full", 7)
    view = pool.page.view()
    assert (view.running, view.decides, view.workflows_open) == (1, True, None)
    assert view.ended == {"finished": 1, "failed": 1, "cancelled": 0, "refused": 0}
    assert view.errors == {"queue_full": 7}


@pytest.mark.parametrize("policy", ["fcfs", "kairos"])
def test_that_somebody_looks_changes_no_decision(policy, monkeypatch):
    unseen, _ = build.simulate(3, policy=policy, placement="kairos")
    feed = Runtime.feed

    def feed_and_look(runtime, event):
        brain = SimpleNamespace(
            balancer=runtime.balancer, decides=True, now=lambda: runtime.balancer.at
        )
        here = [
            InstanceView(i, i, "in_use", None, 0, True) for i in runtime.balancer.ledger.instances
        ]
        telemetry = Telemetry(lambda: runtime.balancer, None, brain.now)
        page = Now(brain, SimpleNamespace(views=lambda: here), telemetry, None)
        page.view()
        page.queue(0, 10_000)
        feed(runtime, event)

    monkeypatch.setattr(Runtime, "feed", feed_and_look)
    seen, _ = build.simulate(3, policy=policy, placement="kairos")
    assert any(command for record in seen for command in record.commands)
    assert seen == unseen


def test_who_has_waited_longest_is_told_without_those_that_run():
    pool = Pool(build.instance("a", seqs=1))
    for n in range(9):
        request = build.request(f"r{n}", at=n * SECOND, completion=100 - 10 * n, app="shop")
        pool.tell(Arrived(request), n * SECOND)
    pool.at = 10 * SECOND
    told = [(each.id, each.waited_s) for each in pool.page.view().longest]
    assert told == [("r1", 9), ("r2", 8), ("r3", 7), ("r4", 6), ("r5", 5)]

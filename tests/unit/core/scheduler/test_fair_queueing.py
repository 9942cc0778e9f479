"""Whose turn it is among tenants, and among the apps of one."""

import pytest

from kairos.core import SECOND, Arrived, Finished, TenantWeight, Tick
from kairos.core.scheduler.fair_queueing import FairQueueing
from tests.support.simulate import build


class Queues:
    """Tenants of which something waits all the time; each call costs as much as is said."""

    def __init__(self, weights=None, *waiting):
        self.fairness = FairQueueing(weights or {})
        self.waiting = list(waiting)
        for share in waiting:
            self.fairness.open_queue(share)

    def go(self, *costs_us, times=1):
        """In which order they have their turn."""
        cost_of = dict(zip(self.waiting, costs_us, strict=True))
        order = []
        for _ in range(times):
            share = self.fairness.order(self.waiting, at_most=1)[0]
            self.fairness.charge(share, cost_of[share])
            order.append(share)
        return order


A, B = ((0, tenant, "standard", None) for tenant in "ab")


def test_who_has_had_least_goes_first_and_of_equal_ones_who_asked_first():
    assert Queues({}, A, B).go(3, 1, times=8) == [A, B, B, B, A, B, B, B]


def test_with_three_times_the_weight_it_goes_three_times_as_often():
    order = Queues({"a": TenantWeight(3.0)}, A, B).go(1, 1, times=400)
    assert order.count(A) == 300


def test_a_charge_that_was_wrong_is_put_right():
    queues = Queues({}, A, B)
    queues.go(1, 1, times=2)
    request = build.request("r", tenant="a")
    queues.fairness.correct(request, 2)
    assert queues.go(1, 1, times=3) == [B, B, A]


WEIGHTS = {"a": TenantWeight(1.0, {"chat": 3.0})}


class TestApps:
    def share_of(self, app, tenant="a"):
        request = build.request("r", tenant=tenant, app=app)
        return FairQueueing(WEIGHTS).share_of(request)

    def test_they_share_what_their_tenant_has(self):
        chat, other = self.share_of("chat"), self.share_of("other")
        order = Queues(WEIGHTS, chat, other, B).go(1, 1, 1, times=800)
        assert (order.count(chat), order.count(other), order.count(B)) == (300, 100, 400)


class TestClasses:
    def share_of(self, name, tenant="a"):
        return FairQueueing({}).share_of(build.request("r", tenant=tenant, service_class=name))

    def test_one_that_is_not_known_is_standard(self):
        assert self.share_of("none") == self.share_of("standard") == A

    def test_they_do_so_too_where_the_second_comes_while_the_first_waits(self):
        queues = Queues({}, A, B)
        queues.go(1, 1, times=10)
        urgent = self.share_of("interactive")
        queues.fairness.open_queue(urgent)
        queues.waiting.append(urgent)
        order = queues.go(1, 1, 1, times=1000)
        assert (order.count(A), order.count(urgent), order.count(B)) == (100, 400, 500)
        for share in (A, urgent):
            queues.fairness.close_queue(share)
        queues.waiting = [B]
        assert queues.go(1) == [B]


class TestInABalancer:
    @pytest.fixture
    def balancer(self):
        return build.balancer(build.instance("i", seqs=2))

    def arrive(self, balancer, *names, **fields):
        for name in names:
            request = build.request(name, at=balancer.at, tenant=name[0], **fields)
            balancer.handle(Arrived(request), balancer.at)

    def running(self, balancer):
        return [each.id for each, where in balancer.in_flight() if where is not None]

    def test_a_flood_of_calls_holds_up_nobody_else(self, balancer):
        self.arrive(balancer, *(f"b{n}" for n in range(50)), "a0", "a1")
        balancer.handle(Finished("b0"), SECOND)
        balancer.handle(Finished("b1"), 2 * SECOND)
        assert self.running(balancer) == ["a0", "a1"]

    def test_one_order_for_all_is_as_before(self):
        balancer = build.balancer(build.instance("i", seqs=2), weights=None)
        self.arrive(balancer, *(f"b{n}" for n in range(50)), "a0")
        balancer.handle(Finished("b0"), SECOND)
        assert self.running(balancer) == ["b1", "b2"]

    @pytest.mark.parametrize(("before", "goes"), [(8, True), (9, False)])
    def test_so_many_are_looked_at_and_no_more(self, before, goes):
        balancer = build.balancer(build.instance("i", seqs=4, kv=100), placement="least-kv")
        self.arrive(balancer, "z0", prompt=40)
        for tenant in "abcdefghi"[:before]:
            self.arrive(balancer, f"{tenant}0", prompt=90)
        self.arrive(balancer, "z1", prompt=10)
        assert self.running(balancer) == (["z0", "z1"] if goes else ["z0"])

    def test_but_not_for_ever(self):
        """What overtakes a call is bounded, whoever it is of."""
        balancer = build.balancer(
            build.instance("i", seqs=40, kv=100), placement="kairos", policy="kairos"
        )
        self.arrive(balancer, "b0", prompt=40)
        self.arrive(balancer, "a0", prompt=90)
        for n in range(1, 400):
            balancer.handle(Tick(), balancer.at + SECOND // 4)
            self.arrive(balancer, f"b{n}", prompt=40)
            if n > 1:
                balancer.handle(Finished(f"b{n - 2}"), balancer.at)
            if "a0" in self.running(balancer):
                return
        pytest.fail("it still waits")

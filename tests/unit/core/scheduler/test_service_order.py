"""In which order what waits would go, as people see it."""

from random import Random

import pytest

from kairos.core import SECOND, Arrived, Bounced, Cancelled, TenantWeight, Tick
from kairos.core.scheduler.guard import NO_GUARD
from tests.support.simulate import build


def waiting(*requests, seqs=1, **given):
    """A balancer whose only sequence is taken, before which these wait."""
    balancer = build.balancer(build.instance("a", seqs=seqs), **given)
    balancer.handle(Arrived(build.request("runs")), 0)
    for each in requests:
        assert balancer.handle(Arrived(each), each.arrived_at) == []
    return balancer


def order(balancer, most=100):
    return [each.request.id for each in balancer.queued(most)]


def served(balancer):
    """In which order they do go, one after the other."""
    went, runs = [], "runs"
    while runs:
        commands = balancer.handle(Cancelled(runs), balancer.at)
        runs = commands[0].request_id if commands else None
        went += [runs] if runs else []
    return went


def test_it_is_the_order_of_the_policy():
    calls = [build.request(str(n), at=n, completion=n * 31 % 17 + 1) for n in range(40)]
    balancer = waiting(*calls, policy="kairos", guard=NO_GUARD)
    told = order(balancer)
    assert told != [each.id for each in calls]
    assert told == served(balancer)


def test_the_first_few_are_told_alone():
    calls = [build.request(str(n), at=n) for n in range(40)]
    assert order(waiting(*calls), 3) == ["0", "1", "2"]


def test_tenants_take_turns_by_weight():
    calls = [
        build.request(f"{tenant}{n}", at=n, tenant=tenant) for n in range(12) for tenant in "ab"
    ]
    balancer = waiting(*calls, weights={"a": TenantWeight(3.0)})
    told = order(balancer)
    assert [name[0] for name in told[:8]].count("a") == 6
    assert sorted(told) == sorted(each.id for each in calls)


def test_apps_and_classes_of_a_tenant_take_turns_and_spare_ones_come_last():
    fields = [
        {"app": app, "service_class": name}
        for app in "xy"
        for name in ("interactive", "standard", "batch")
    ]
    calls = [
        build.request(f"{n}-{i}", at=n, **each) for n in range(5) for i, each in enumerate(fields)
    ]
    balancer = waiting(*calls, weights={"default": TenantWeight(1.0, {"x": 3.0})})
    told = {name: place for place, name in enumerate(order(balancer))}
    names = {each.id: each for each in calls}
    batch = [told[each] for each in told if names[each].service_class == "batch"]
    assert min(batch) == len(calls) - len(batch)
    first = [names[each] for each in order(balancer, 10)]
    assert [each.service_class for each in first].count("interactive") == 8
    assert [each.app for each in first].count("x") > 5


def test_calls_of_several_models_of_a_tenant_are_one_order():
    balancer = build.balancer(build.instance("a", models=("m", "n"), seqs=1))
    balancer.handle(Arrived(build.request("runs")), 0)
    for n, model in enumerate("mnnmmn"):
        balancer.handle(Arrived(build.request(str(n), at=n, model=model)), n)
    assert order(balancer) == list("012345") == served(balancer)


@pytest.mark.parametrize("seed", range(6))
def test_calls_of_several_models_that_are_overdue_leave_in_the_order_that_is_said(seed):
    random = Random(seed)
    balancer = build.balancer(
        build.instance("a", models=("m", "n"), seqs=1),
        policy="kairos",
        guard=build.overdue_after(20),
    )
    balancer.handle(Arrived(build.request("runs")), 0)
    for n in range(30):
        fields = {"model": random.choice("mn"), "completion": random.randint(1, 40)}
        balancer.handle(Arrived(build.request(str(n), at=n, **fields)), n)
    balancer.handle(Tick(), 35)

    said = balancer.queued(30)
    assert {each.standing for each in said} == {"overdue", "policy"}
    assert [each.request.id for each in said] == served(balancer)


def test_it_says_what_is_before_its_time():
    calls = [build.request("late", at=0, completion=100), build.request("soon", at=0)]
    balancer = waiting(*calls, policy="kairos", guard=build.overdue_after(10 * SECOND))
    assert order(balancer) == ["soon", "late"]
    balancer.handle(Tick(), 11 * SECOND)
    newest = build.request("new", at=11 * SECOND, completion=1)
    balancer.handle(Arrived(newest), 11 * SECOND)
    told = balancer.queued(9)
    assert [(each.request.id, each.standing) for each in told] == [
        ("late", "overdue"),
        ("new", "policy"),  # the policy's calls have their share before the next
        ("soon", "overdue"),
    ]


def test_what_an_instance_failed_goes_before_all_that_none_did():
    balancer = build.balancer(build.instance("a", seqs=1), build.instance("b", seqs=1))
    for n in range(5):
        balancer.handle(Arrived(build.request(str(n), at=n)), n)
    assert balancer.handle(Bounced("0", "upstream_unreachable", about_itself=True), 9) == []
    told = balancer.queued(9)
    assert [(each.request.id, each.standing) for each in told] == [
        ("0", "returned"),
        ("2", "policy"),
        ("3", "policy"),
        ("4", "policy"),
    ]


def test_to_look_changes_nothing():
    calls = [build.request(f"{t}{n}", at=n, tenant=t) for n in range(9) for t in "ab"]
    one, other = waiting(*calls, policy="kairos"), waiting(*calls, policy="kairos")
    for _ in range(3):
        order(one)
    assert served(one) == served(other)

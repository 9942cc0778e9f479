"""How much work open workflows still bring, as whoever decides knows it."""

import pytest

from kairos.core import Arrived, Finished, PlanDeclared, PlannedOperator, PlannedWork, look_at_pool
from kairos.core import open_work as module
from kairos.core.open_work import open_work, seats
from kairos.core.pool_demand import OpenWork
from tests.support.simulate import build


def arrive(balancer, name, at=0, **fields):
    balancer.handle(Arrived(build.request(name, at=at, **fields)), at)


def test_a_workflow_brings_what_is_left_of_it():
    balancer = build.balancer(build.instance("a"))
    arrive(balancer, "r", prompt=10, completion=100)  # nothing is learnt: 20 ms a token, 0.2 ms
    [work] = open_work(balancer.estimates)
    assert work == OpenWork(1, 1, pytest.approx(2.002))


def test_parallel_calls_of_a_workflow_all_count():
    balancer = build.balancer(build.instance("a"))
    for name in ("r", "s", "t"):
        arrive(balancer, name, workflow_id="w", prompt=10, completion=100)
    [work] = open_work(balancer.estimates)
    assert work == OpenWork(1, 3, pytest.approx(3 * 2.002))


def test_of_a_declared_plan_all_calls_count_that_are_to_come_also_those_side_by_side():
    balancer = build.balancer(build.instance("a"))
    first = PlannedOperator("first", prompt_tokens=10, completion_tokens=100)
    others = [
        PlannedOperator(f"of{n}", (0,), prompt_tokens=10, completion_tokens=100) for n in "abc"
    ]
    balancer.handle(PlanDeclared("default", "app", PlannedWork((first, *others))), 0)
    arrive(balancer, "r", app="app", agent="first", prompt=10, completion=100)
    [work] = open_work(balancer.estimates)
    assert work == OpenWork(1, 1, pytest.approx(4 * 2.002))
    assert balancer.estimates.left_us(build.request("r")) == pytest.approx(4 * 2_002_000)


def test_workflows_that_are_alike_are_one_row_and_others_another():
    balancer = build.balancer(build.instance("a", seqs=2))
    for name in ("r", "s"):
        arrive(balancer, name, completion=100)
    arrive(balancer, "long", completion=10_000)
    rows = open_work(balancer.estimates)
    assert [row.workflows for row in rows] == [2, 1]
    assert sum(row.calls for row in rows) == 3


def test_of_many_workflows_some_stand_for_all(monkeypatch):
    monkeypatch.setattr(module, "MOST_LOOKED_AT", 10)
    balancer = build.balancer(build.instance("a"))
    for number in range(95):
        arrive(balancer, f"r{number}", completion=100)
    [work] = open_work(balancer.estimates)
    assert work.workflows == pytest.approx(95)
    assert work.left_s == pytest.approx(95 * 2.002)


def test_who_looks_changes_nothing():
    balancer = build.balancer(build.instance("a"))
    arrive(balancer, "r")
    before = balancer.estimates.looked_at_us(build.request("r"))
    assert look_at_pool(balancer, 5) == look_at_pool(balancer, 5)
    assert balancer.estimates.looked_at_us(build.request("r")) == before


def test_a_look_counts_workflows_that_began_also_those_that_ended():
    balancer = build.balancer(build.instance("a"))
    arrive(balancer, "r")
    arrive(balancer, "again", workflow_id="w-r")
    arrive(balancer, "s")
    balancer.handle(Finished("s"), 1)
    seen = look_at_pool(balancer, 2_000_000)
    assert (seen.at_s, seen.begun, seen.running) == (2.0, 2, 2)


def test_seats_are_those_for_which_memory_lasts():
    balancer = build.balancer(build.instance("a", seqs=50, kv=1000))
    assert seats(balancer) is None
    arrive(balancer, "r", prompt=100)
    assert seats(balancer) == pytest.approx(10, rel=0.01)


def test_an_instance_has_no_more_seats_than_it_takes_calls():
    balancer = build.balancer(build.instance("a", seqs=4))
    arrive(balancer, "r", prompt=100)
    assert seats(balancer) == 4


def test_instances_that_compute_prompts_for_others_have_no_seats():
    balancer = build.balancer(build.instance("a", seqs=4), build.instance("p", seqs=50))
    arrive(balancer, "r", prompt=100)
    assert seats(balancer) == 27
    prefills = build.instance("p", seqs=50, phase="prefill")
    balancer = build.balancer(build.instance("a", seqs=4, phase="decode"), prefills)
    arrive(balancer, "r", prompt=100)
    assert seats(balancer) == 4

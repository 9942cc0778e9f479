"""How much work waits for each model, and how much of the pool is used."""

import pytest

from kairos.core import SECOND, Arrived, Finished, InstanceLeft, load_of_pool
from tests.support.simulate import build


def told(balancer, *names, at=0, **fields):
    for name in names:
        balancer.handle(Arrived(build.request(name, at=at, **fields)), at)


def predicted_us(balancer, name):
    return balancer.estimates.call_us(balancer.estimates.request(name))


def test_nothing_waits_in_an_idle_pool_and_nothing_of_it_is_used():
    (load,) = load_of_pool(build.balancer(build.instance("i"))).values()
    assert (load.waiting_work_s, load.busy, load.running, load.instances) == (0, 0, 0, 1)


def test_waiting_work_is_the_predicted_calls_over_those_that_run_at_once():
    balancer = build.balancer(build.instance("i", seqs=2), build.instance("j", seqs=1))
    told(balancer, "a", "b", "c", "d", "e")
    load = load_of_pool(balancer)["m"]
    assert (load.running, load.busy) == (3, 1)
    waiting = [each.id for each, where in balancer.in_flight() if where is None]
    expected = sum(predicted_us(balancer, each) for each in waiting) / 3 / SECOND
    assert len(waiting) == 2
    assert load.waiting_work_s == pytest.approx(expected)
    assert load.waiting_work_s > 0


def test_it_falls_as_calls_end_and_is_nothing_when_the_last_has_its_turn():
    balancer = build.balancer(build.instance("i", seqs=1))
    told(balancer, "a", "b", "c")
    seen = []
    for at, name in enumerate("abc", start=1):
        seen.append(load_of_pool(balancer)["m"].waiting_work_s)
        balancer.handle(Finished(name), at)
    assert seen[0] > seen[1] > seen[2] == 0


def test_models_are_told_apart_and_so_is_who_serves_them():
    both, one = build.instance("i", models=("m", "n"), seqs=1), build.instance("j", seqs=1)
    balancer = build.balancer(both, one)
    told(balancer, "a", "b", "c")
    told(balancer, "d", model="n")
    loads = load_of_pool(balancer)
    assert [loads[each].instances for each in "mn"] == [2, 1]
    assert [loads[each].running for each in "mn"] == [2, 1]
    assert loads["n"].waiting_work_s == pytest.approx(predicted_us(balancer, "d") / SECOND)


def test_instances_that_compute_prompts_for_others_do_not_make_the_pool_look_idle():
    pair = build.instance("p", phase="prefill"), build.instance("d", phase="decode", seqs=1)
    balancer = build.balancer(*pair)
    told(balancer, "a")
    (load,) = load_of_pool(balancer).values()
    assert (load.instances, load.running, load.busy) == (1, 1, 1)


def test_memory_counts_where_it_is_used_more_than_sequences():
    balancer = build.balancer(build.instance("i", seqs=4, kv=100))
    told(balancer, "a", prompt=60, completion=20)
    assert 0.6 <= load_of_pool(balancer)["m"].busy <= 0.8


def test_calls_that_name_no_model_have_a_load_of_their_own_while_they_wait():
    balancer = build.balancer(build.instance("i", seqs=1))
    told(balancer, "a", "b", model=None)
    assert load_of_pool(balancer)[""].waiting_work_s > 0
    assert load_of_pool(balancer)["m"].waiting_work_s == 0


def test_a_model_that_no_instance_serves_any_more_is_not_shown():
    balancer = build.balancer(build.instance("i"))
    balancer.handle(InstanceLeft("i"), 1)
    assert load_of_pool(balancer) == {}

from kairos.events import Arrived, Finished, InstanceLeft
from tests import build


def instances_chosen(balancer, count, **fields):
    chosen = []
    for n in range(count):
        [dispatch] = balancer.handle(Arrived(build.request(f"r{n}", **fields)), 0)
        chosen.append(dispatch.instance_id)
    return chosen


def test_round_robin_takes_turns():
    balancer = build.balancer(*map(build.instance, "abc"), placement="round-robin")

    assert instances_chosen(balancer, 7) == ["a", "b", "c", "a", "b", "c", "a"]


def test_round_robin_skips_an_instance_without_room():
    balancer = build.balancer(
        build.instance("a"), build.instance("b", seqs=1), placement="round-robin"
    )

    assert instances_chosen(balancer, 4) == ["a", "b", "a", "a"]


def test_round_robin_forgets_instances_that_left():
    balancer = build.balancer(*map(build.instance, "abc"), placement="round-robin")
    instances_chosen(balancer, 2)
    balancer.handle(InstanceLeft("c"), 0)

    assert instances_chosen(build.balancer(*map(build.instance, "ab")), 2) == ["a", "b"]
    [dispatch] = balancer.handle(Arrived(build.request("next")), 0)
    assert dispatch.instance_id == "a"


def test_least_kv_takes_the_smallest_booked_share():
    balancer = build.balancer(
        build.instance("small", kv=100, seqs=9),
        build.instance("large", kv=400, seqs=9),
        placement="least-kv",
    )

    # Shares before each choice: 0/0, .2/0, .2/.05, .2/.1, .2/.15, .2/.2
    chosen = instances_chosen(balancer, 6, prompt=10, completion=10)
    assert chosen == ["small", "large", "large", "large", "large", "small"]


def test_least_kv_without_known_memory_takes_the_instance_with_the_fewest_tokens_booked():
    balancer = build.balancer(build.instance("a"), build.instance("b"), placement="least-kv")
    balancer.handle(Arrived(build.request("long", prompt=500)), 0)

    assert instances_chosen(balancer, 3, prompt=10) == ["b", "b", "b"]


def test_least_kv_sees_what_was_released():
    balancer = build.balancer(build.instance("a"), build.instance("b"), placement="least-kv")
    assert instances_chosen(balancer, 2) == ["a", "b"]
    balancer.handle(Finished("r1"), 1)

    [dispatch] = balancer.handle(Arrived(build.request("next", at=1)), 1)
    assert dispatch.instance_id == "b"

"""Whose calls give way where the queue is full."""

import pytest

from kairos.core import Arrived, Finished, QueueFull, Refuse, WorkflowEnded
from tests.support.simulate import build


def full_queue(*, begun="w-begun"):
    """One call runs, of a workflow that has begun therefore; two of others wait, which is all."""
    balancer = build.balancer(build.instance("a", seqs=1), max_waiting=2)
    balancer.handle(Arrived(build.request("runs", workflow_id=begun)), 0)
    for at, name in enumerate(("older", "newer"), start=1):
        assert balancer.handle(Arrived(build.request(name, at=at)), at) == []
    return balancer


def test_in_a_full_queue_a_workflow_under_way_takes_the_place_of_the_newest_that_has_not_begun():
    balancer = full_queue()
    [refused] = balancer.handle(Arrived(build.request("next", workflow_id="w-begun")), 3)
    assert refused == Refuse("newer", "m", "queue_full", retry_after_s=1)
    [refused] = balancer.handle(Arrived(build.request("after", workflow_id="w-begun")), 4)
    assert refused.request_id == "older"
    assert balancer.waiting == 2


def test_but_not_that_of_another_under_way():
    balancer = full_queue()
    for name in ("next", "after"):
        balancer.handle(Arrived(build.request(name, workflow_id="w-begun")), 3)
    with pytest.raises(QueueFull):
        balancer.handle(Arrived(build.request("last", workflow_id="w-begun")), 4)


def test_nor_does_one_that_has_not_begun_take_any():
    balancer = full_queue()
    with pytest.raises(QueueFull):
        balancer.handle(Arrived(build.request("new")), 3)
    with pytest.raises(QueueFull):  # its other call has only waited
        balancer.handle(Arrived(build.request("beside", workflow_id="w-newer")), 3)


def test_once_one_call_of_a_workflow_has_gone_its_others_give_way_to_nobody():
    balancer = build.balancer(build.instance("a", seqs=1), max_waiting=2)
    balancer.handle(Arrived(build.request("runs", workflow_id="w-begun")), 0)
    for name in ("one", "two"):
        balancer.handle(Arrived(build.request(name, workflow_id="w-wide")), 1)
    [dispatch] = balancer.handle(Finished("runs"), 2)
    assert dispatch.request_id == "one"
    balancer.handle(Arrived(build.request("new")), 3)
    [refused] = balancer.handle(Arrived(build.request("next", workflow_id="w-begun")), 4)
    assert refused.request_id == "new"
    with pytest.raises(QueueFull):
        balancer.handle(Arrived(build.request("last", workflow_id="w-begun")), 5)


def test_a_workflow_that_has_ended_begins_anew():
    balancer = full_queue()
    balancer.handle(WorkflowEnded("default", "w-begun"), 3)
    with pytest.raises(QueueFull):
        balancer.handle(Arrived(build.request("next", workflow_id="w-begun")), 4)

"""Check the bounds on workflows that are remembered, or wait to be learnt from."""

import tracemalloc
from collections import Counter

import pytest

from kairos.core import Arrived, CallRow, Finished, OpenedWorkflow, Orchestrator, Record
from kairos.core.orchestrator.kept_workflows import KeptWorkflows, LearningQueue
from kairos.core.orchestrator.open_workflows import WorkflowCall
from kairos.core.orchestrator.workflow import bytes_of
from kairos.core.position import Position
from tests.support.simulate import build

MOST_BYTES = 1_000_000
POSITION = Position(**dict.fromkeys(Position.__struct_fields__, 0))


def test_tenants_who_come_late_take_half_of_a_full_queue_and_no_more():
    queue = LearningQueue(8, 1_000)
    for tenant in ("early", "late"):
        for n in range(8):
            queue.add(OpenedWorkflow((tenant, f"{n}"), at=n))

    assert Counter(each.key[0] for each in queue.take_all()) == {"early": 4, "late": 4}


def workflow(tenant, name, calls, **fields):
    made = OpenedWorkflow((tenant, name), at=0)
    for n in range(calls):
        request = build.request(f"{name}-{n}", tenant=tenant, workflow_id=name, **fields)
        made.add(WorkflowCall(CallRow(request), POSITION))
    return made


LONG = {"prefix": tuple(range(1_000, 1_095))}
LED_TO = {"parent_ids": tuple(f"{n:0128d}" for n in range(32))}


@pytest.mark.parametrize("fields", [{}, LONG, LED_TO, LONG | LED_TO, {"model": "m" * 4_000}])
def test_calls_are_remembered_up_to_so_many_bytes(fields):
    kept = KeptWorkflows(1_000, MOST_BYTES)
    gone = sum(kept.put(workflow("a", f"w{n}", 10, **fields)) for n in range(200))

    held = sum(each.held_bytes for each in kept.all())
    assert MOST_BYTES - workflow("a", "w", 10, **fields).held_bytes < held <= MOST_BYTES
    assert gone == 200 - len(kept)


@pytest.mark.parametrize("fields", [{}, LONG, LED_TO, LONG | LED_TO])
def test_a_call_takes_no_more_memory_than_is_reckoned(fields):
    """But for what all calls share: here each hash and each name is its own."""
    count = 2_000
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        orchestrator = Orchestrator()
        reckoned = 0
        for n in range(count):
            own = {
                name: tuple(type(each)(f"{each}{n}") for each in value)
                for name, value in fields.items()
            }
            own = {
                name: tuple(map(int, value)) if name == "prefix" else value
                for name, value in own.items()
            }
            request = build.request(f"r{n:030d}", workflow_id=f"w{n // 10:030d}", **own)
            reckoned += bytes_of(request)
            orchestrator.observe(Record(at=n, event=Arrived(request), commands=()))
            orchestrator.observe(
                Record(at=n, event=Finished(request.id, 1_000 + n, 2_000 + n), commands=())
            )
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert reckoned / 2 < after - before < reckoned


@pytest.mark.parametrize("greedy", [{}, LONG])
def test_a_tenant_with_large_workflows_leaves_others_their_bytes(greedy):
    kept = KeptWorkflows(1_000, MOST_BYTES)
    for n in range(20):
        kept.put(workflow("honest", f"mine{n}", 1))
    for n in range(500):
        kept.put(workflow("flood", f"w{n}", 10, **greedy))

    assert sum(each.key[0] == "honest" for each in kept.all()) == 20


def test_what_waits_to_be_learnt_from_is_bounded_in_bytes():
    queue = LearningQueue(1_000, MOST_BYTES)
    for n in range(20):
        queue.add(workflow("flood", f"w{n}", 30, **LONG))
    has_room = queue.add(workflow("honest", "mine", 120))

    waiting = queue.take_all()
    assert sum(each.held_bytes for each in waiting) <= MOST_BYTES
    assert any(each.key[0] == "honest" for each in waiting)
    assert not has_room
    assert queue.add(workflow("flood", "again", 30)), "none waits any more"


def test_a_workflow_larger_than_all_room_is_not_learnt_from():
    queue = LearningQueue(1_000, 10)

    assert not queue.add(workflow("a", "w", 1))
    assert not queue.take_all()

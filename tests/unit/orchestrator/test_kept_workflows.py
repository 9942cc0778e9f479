"""The bound on ended workflows that wait to be learnt from."""

from collections import Counter

from kairos.orchestrator.kept_workflows import LearningQueue
from kairos.orchestrator.workflow import OpenedWorkflow


def test_tenants_who_come_late_take_half_of_a_full_queue_and_no_more():
    queue = LearningQueue(8)
    for tenant in ("early", "late"):
        for n in range(8):
            queue.add(OpenedWorkflow((tenant, f"{n}"), at=n))

    assert Counter(each.key[0] for each in queue.take()) == {"early": 4, "late": 4}

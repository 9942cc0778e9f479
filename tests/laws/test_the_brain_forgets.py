"""When all calls have ended the brain is as it was: whatever was counted of them is counted back."""

import random

import pytest

from kairos.entitlements import Quota
from kairos.events import (
    Arrived,
    Bounced,
    Cancelled,
    Failed,
    Finished,
    FirstToken,
    InstanceJoined,
    InstanceLeft,
    Progressed,
    Refuse,
    Tick,
    WorkflowEnded,
)
from kairos.model import SECOND
from kairos.scheduler.policies import POLICIES
from tests.support import build
from tests.support.pristine import differences, state_of

TENANTS = "acme", "other"
INSTANCES = [build.instance(name, kv=400, seqs=9) for name in "ab"]
# What a brain keeps on purpose when calls have ended.
KEPT = {
    # The time, and numbers of changes, which only rise.
    *("Balancer.at", "Dispatching.drained_at", "WorkflowTracker._none_idle_before"),
    *("Ledger.changes", "Ledger._versions", "Ledger._bookings", "Ledger._last_booking"),
    *("PrefixIndex.left", "PrefixIndex.runs", "InstanceHealth.changes", "Curves.changes"),
    *("WorkflowTracker.begun", "InFlightTable.at", "InFlightTable.ended_tokens"),
    *("WaitQueue._dispatched_us", "InFlightTable.changes", "Meter._tokens_on_day"),
    *("StartTags._tags", "StartTags.virtual_time"),
    # What was learnt of calls, tenants, callers and instances.
    *("WorkEstimates._answers", "WorkEstimates._attained_us", "KvRetention._gaps"),
    *("FaultAttribution.callers", "FaultAttribution._outcomes", "Circuits._circuits"),
    *("Faults._opened_by", "WaitQueue.drain", "Ledger._speeds", "ServedInstances._paces"),
    *("ServedInstances.speeds",),
    *("PrefixIndex._caches", "KvRetention._left", "TokenBucket._level", "TokenBucket._at"),
    # Answers to what was asked last, and entries of heaps that are passed over.
    *("WaitQueues._asked", "WaitQueues._its_place", "WaitQueue._few", "Dispatching._placement"),
    *("Ledger._held", "Curves._rows", "Curves.columns", "Curves._shares", "Curves._widths"),
    *("Holdings._heap", "_Prompts.ends", "PromptsUnderWay.changed", "BusyInstances._unsure"),
    *("BusyInstances._whole", "BusyInstances._ids", "BusyInstances._parts", "BusyInstances._busy"),
}


def round_of_calls(balancer, count, began_at):
    """Calls of all fates, until none is here; when the last ended."""
    dice, at, here = random.Random(count), began_at, {}

    def tell(event):
        for command in balancer.handle(event, at):
            if isinstance(command, Refuse):
                del here[command.request_id]

    for number in range(count):
        at += SECOND // 10
        workflow = f"{began_at}-{number % 4}"
        request = build.request(
            f"{began_at}-{number}",
            at=at,
            prompt=dice.randint(1, 90),
            completion=dice.randint(1, 60),
            workflow_id=workflow,
            agent=f"a{number % 3}",
            app="app",
            tenant=TENANTS[number % 2],
            prefix=(number % 4,),
            prefix_units=10,
        )
        here[request.id] = request
        tell(Arrived(request, number))
        running = [name for name in here if name in balancer.ledger]
        if running:
            name, at = dice.choice(running), at + 1
            tell(FirstToken(name))
            tell(Progressed({name: 5}))
        if len(running) > 2 or number % 3 == 0:
            name = dice.choice(sorted(here))
            if name in balancer.ledger and dice.random() < 0.2:
                tell(Bounced(name, "why", about_itself=True))
            elif here.pop(name, None):
                tell(dice.choice([Finished(name, 9, 9, 0), Failed(name, "why"), Cancelled(name)]))
    while here:
        at += SECOND // 10
        running = sorted(name for name in here if name in balancer.ledger)
        name = (running or sorted(here))[0]
        del here[name]
        tell(Finished(name, 9, 9, 0) if running else Cancelled(name))
    for number in range(4):
        tell(WorkflowEnded(TENANTS[number % 2], f"{began_at}-{number}"))
    tell(Tick())
    tell(InstanceLeft("b"))
    tell(InstanceJoined(INSTANCES[1]))
    return at


@pytest.mark.parametrize("placement", ["round-robin", "least-kv", "time-slot", "kairos"])
@pytest.mark.parametrize("policy", [*POLICIES])
def test_many_calls_leave_a_brain_as_a_few_left_it(policy, placement):
    held = {"kv_share": 0.9, "calls_at_once": 99, "workflows_at_once": 99}
    quotas = tuple(Quota(name, calls_per_minute=10_000, **held) for name in TENANTS)
    balancer = build.balancer(policy=policy, placement=placement, quotas=quotas)
    for each in INSTANCES:
        balancer.handle(InstanceJoined(each), 0)
    at = round_of_calls(balancer, 4, 0)  # one of each workflow, on each instance
    first = state_of(balancer, ignoring=KEPT)
    for _ in range(2):
        at = round_of_calls(balancer, 25, at)
    assert differences(first, state_of(balancer, ignoring=KEPT)) == []

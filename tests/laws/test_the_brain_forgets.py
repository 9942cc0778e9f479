"""When all calls have ended the brain is as it was: what was counted of them is counted back."""

import random

import pytest

from kairos.core import (
    POLICIES,
    SECOND,
    Arrived,
    Bounced,
    Cancelled,
    Failed,
    Finished,
    FirstToken,
    InstanceJoined,
    InstanceLeft,
    Progressed,
    Quota,
    Refuse,
    Tick,
    WorkflowEnded,
)
from tests.support.pristine import differences, state_of
from tests.support.simulate import build

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


class Calls:
    """Calls of all fates, and when the last ended."""

    def __init__(self, balancer):
        self.balancer, self.at, self.here = balancer, 0, {}

    def tell(self, event):
        for command in self.balancer.handle(event, self.at):
            if isinstance(command, Refuse):
                del self.here[command.request_id]

    def running(self):
        return sorted(name for name in self.here if name in self.balancer.ledger)

    def run(self, count):
        """Run calls of four workflows until none is left; then an instance restarts."""
        dice, began_at = random.Random(count), self.at
        for number in range(count):
            self.at += SECOND // 10
            self.arrive(began_at, number, dice)
            if running := self.running():
                self.go_on(dice.choice(running))
            if len(running) > 2 or number % 3 == 0:
                self.end_one(dice)
        while self.here:
            self.at += SECOND // 10
            name = (self.running() or sorted(self.here))[0]
            end = Finished(name, 9, 9, 0) if self.running() else Cancelled(name)
            del self.here[name]
            self.tell(end)
        for number in range(4):
            self.tell(WorkflowEnded(TENANTS[number % 2], f"{began_at}-{number}"))
        self.tell(Tick())
        self.tell(InstanceLeft("b"))
        self.tell(InstanceJoined(INSTANCES[1]))

    def arrive(self, began_at, number, dice):
        request = build.request(
            f"{began_at}-{number}",
            at=self.at,
            prompt=dice.randint(1, 90),
            completion=dice.randint(1, 60),
            workflow_id=f"{began_at}-{number % 4}",
            agent=f"a{number % 3}",
            app="app",
            tenant=TENANTS[number % 2],
            prefix=(number % 4,),
            prefix_units=10,
        )
        self.here[request.id] = request
        self.tell(Arrived(request, number))

    def go_on(self, name):
        self.at += 1
        self.tell(FirstToken(name))
        self.tell(Progressed({name: 5}))

    def end_one(self, dice):
        name = dice.choice(sorted(self.here))
        if name in self.balancer.ledger and dice.random() < 0.2:
            self.tell(Bounced(name, "why", about_itself=True))
            return
        del self.here[name]
        self.tell(dice.choice([Finished(name, 9, 9, 0), Failed(name, "why"), Cancelled(name)]))


@pytest.mark.parametrize("placement", ["round-robin", "least-kv", "time-slot", "kairos"])
@pytest.mark.parametrize("policy", [*POLICIES])
def test_many_calls_leave_a_brain_as_a_few_left_it(policy, placement):
    held = {"kv_share": 0.9, "calls_at_once": 99, "workflows_at_once": 99}
    quotas = tuple(Quota(name, calls_per_minute=10_000, **held) for name in TENANTS)
    balancer = build.balancer(policy=policy, placement=placement, quotas=quotas)
    for each in INSTANCES:
        balancer.handle(InstanceJoined(each), 0)
    calls = Calls(balancer)
    calls.run(4)  # one of each workflow
    first = state_of(balancer, ignoring=KEPT)
    for _ in range(2):
        calls.run(25)
    assert differences(first, state_of(balancer, ignoring=KEPT)) == []

"""Try attacks by records on the topics of a pool.

Each is tried in the middle, and read back at a takeover. Afterwards all processes run, one decides,
and calls over HTTP and over the bus are answered. Before records were checked, the pool did not go
on after the attacks in `STOPPED`; the others did nothing, as now.
"""

import msgspec
import pytest

from kairos.cluster import POOL_HEADER, TAKEOVER_HEADER, TOLD, TYPE_HEADER, Told
from kairos.cluster.pool.messages import CAUSE, EPOCH, PERFORMER, TURN
from kairos.core import (
    Arrived,
    Bounced,
    Dispatch,
    Entitlements,
    EntitlementsChanged,
    Finished,
    InstanceJoined,
    PlanDeclared,
    PlannedOperator,
    PlannedWork,
    PolicyChosen,
    Progressed,
    Quota,
    Record,
    Refuse,
    ServiceClass,
    TenantWeight,
    Tick,
    Topic,
)
from tests.support.cluster.pool_world import POOL as NAME
from tests.support.played_pool import PlayedPool
from tests.support.simulate import build

HUGE = 10**30


def record(event, *commands, **headers):
    """A record of the balancer that decides."""

    def write(pool):
        value = msgspec.json.encode(Record(1, event, commands))
        said = {POOL_HEADER: NAME, EPOCH: pool.epoch, PERFORMER: "p9"} | headers
        return Topic.EVENTS, "w", value, said

    return write


def raw(value, **headers):
    def write(pool):
        return Topic.EVENTS, "w", value, {POOL_HEADER: NAME, EPOCH: pool.epoch} | headers

    return write


def order(value, epoch=None, performer="p1"):
    def write(pool):
        return Topic.DISPATCHES, NAME, value, {EPOCH: epoch or pool.epoch, PERFORMER: performer}

    return write


def told(event, performer="p1"):
    def write(_):
        return (
            Topic.REQUESTS,
            NAME,
            msgspec.json.encode(Told(performer, event)),
            {TYPE_HEADER: TOLD},
        )

    return write


def shares(**parts):
    return EntitlementsChanged(Entitlements(**({"classes": {}} | parts)))


PLAN = PlannedWork((PlannedOperator("a", calls=1e300), PlannedOperator("a", (5,))))
TICK = msgspec.json.encode(Record(1, Tick()))
ATTACKS = {
    # A name that is imported: any attribute of any module was called with the estimates.
    "policy-that-is-imported": record(PolicyChosen("os:system")),
    # Valid, where the settings name no tenants: to undo it could not be written. The process ended.
    "entitlements-nobody-set": record(shares(weights={"t": TenantWeight(2.0)})),
    "weight-of-nothing": record(shares(weights={"default": TenantWeight(1e-300)})),
    "weight-below-nothing": record(shares(weights={"default": TenantWeight(-1.0)})),
    "quota-of-nothing-at-once": record(shares(quotas=(Quota("default", calls_at_once=-5),))),
    "class-that-waits-for-less-than-nothing": record(
        shares(classes={"standard": ServiceClass(max_wait_us=-(10**17))})
    ),
    # Decided of a call that nobody performs.
    "call-that-nobody-performs": record(Tick(), Dispatch("ghost", "e0"), Refuse("ghost", None)),
    # Numbers beyond those that the compiled forecast can hold.
    "request-of-too-many-tokens": record(
        Arrived(build.request("huge", prompt=HUGE, completion=HUGE)), **{CAUSE: "0"}
    ),
    "request-that-arrived-before-time": record(
        Arrived(build.request("early", at=-(10**25))), **{CAUSE: "0"}
    ),
    "answer-of-too-many-tokens": record(Finished("c1", HUGE, HUGE, HUGE)),
    "plan-that-follows-itself": record(PlanDeclared("default", "app", PLAN)),
    # The record's own numbers.
    "cause-that-never-comes": record(Tick(), **{CAUSE: str(10**17)}),
    "cause-in-other-digits": record(Tick(), **{CAUSE: "\u0661"}),
    "turn-that-is-no-number": record(Bounced("c1", "x"), **{TURN: "abc"}),
    "turn-with-underscores": record(Arrived(build.request("t")), **{TURN: "1_0"}),
    "epoch-of-nobody": raw(TICK, **{EPOCH: str(10**17)}),
    "epoch-beyond-all-numbers": raw(TICK, **{EPOCH: "9" * 5_000}),
    "instant-beyond-all-numbers": raw(b'{"at":1e400,"event":{"type":"Tick"}}'),
    "deep": raw(b"[" * 100_000),
    "commands-without-end": record(Tick(), *[Refuse("ghost", None)] * 5_000),
    # Orders.
    "order-without-turns": order(
        b'{"commands":[{"type":"Refuse","request_id":"c1","model":null}],"turns":[]}'
    ),
    "order-of-nobody": order(b'{"commands":[],"turns":[]}', str(10**17)),
    "order-in-an-epoch-below-nothing": order(b'{"commands":[],"turns":[]}', "-1"),
    "order-to-an-instance-that-is-none": order(
        b'{"commands":[{"type":"Dispatch","request_id":"c1","instance_id":"nowhere"}],"turns":[0]}'
    ),
    # Facts.
    "progress-below-nothing": told(Progressed({"c1": -5})),
    "instance-told-by-a-performer": told(InstanceJoined(build.instance("e9"))),
    "name-of-a-megabyte": told(Finished("x" * 60_000)),
}
STOPPED = {
    *("policy-that-is-imported", "entitlements-nobody-set", "weight-of-nothing"),
    *("weight-below-nothing", "quota-of-nothing-at-once", "class-that-waits-for-less-than-nothing"),
    *("plan-that-follows-itself", "order-without-turns", "order-of-nobody"),
}


class Attacked(PlayedPool):
    @property
    def epoch(self):
        found = [each for each in self.world.logs[Topic.EVENTS] if TAKEOVER_HEADER in each.headers]
        return str(found[-1].offset)


@pytest.mark.parametrize("name", ATTACKS)
def test_a_record_stops_nobody(name):
    pool = Attacked()
    try:
        pool.perform()
        pool.world.append(*ATTACKS[name](pool))
        pool.world.flow()
        pool.check_alive()
        pool.perform()
        pool.take_over()
        pool.world.sleep(7)
        pool.check_alive()
        pool.perform()
    finally:
        pool.world.__exit__()


def test_what_stopped_a_pool_is_tried():
    assert ATTACKS.keys() >= STOPPED

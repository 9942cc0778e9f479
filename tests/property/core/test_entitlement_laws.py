"""Weights, classes, quotas and the policy change while calls wait and run: nothing is lost or
misplaced, and who replays the log decides the same from there on."""

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from kairos.core import (
    POLICIES,
    SECOND,
    SERVICE_CLASSES,
    Arrived,
    Bounced,
    Cancelled,
    Dispatch,
    Entitlements,
    EntitlementsChanged,
    Finished,
    KairosError,
    PolicyChosen,
    Quota,
    Record,
    Refuse,
    ServiceClass,
    TenantWeight,
    Tick,
    WorkflowEnded,
)
from kairos.core.entitlements import ALIKE
from tests.support.examples import examples
from tests.support.simulate import build

GIVEN = [
    ALIKE,
    Entitlements({"a": TenantWeight(3.0)}),
    Entitlements({"a": TenantWeight(1.0, {"x": 2.0}), "b": TenantWeight(1.0, {"x": 1.0})}),
    Entitlements(classes=SERVICE_CLASSES | {"urgent": ServiceClass(goes="first")}),
    Entitlements(classes=SERVICE_CLASSES | {"interactive": ServiceClass(max_wait_us=2 * SECOND)}),
    Entitlements(classes=SERVICE_CLASSES | {"batch": ServiceClass(weight=0.5)}),
    Entitlements(quotas=(Quota("a", calls_at_once=3), Quota("b", "x", calls_per_minute=9))),
    Entitlements(quotas=(Quota("a", kv_share=0.3), Quota("b", calls_at_once=4))),
    Entitlements(
        quotas=(
            Quota("a", calls_at_once=5, workflows_at_once=3, tokens_per_minute=400),
            Quota("b", key="k", tokens_per_day=900),
        )
    ),
]


@dataclasses.dataclass
class Fact:
    kind: str
    us: int
    tenant: str
    service_class: str
    number: int


FACTS = st.lists(
    st.builds(
        Fact,
        kind=st.sampled_from(
            ["arrive"] * 8
            + ["finish"] * 4
            + ["cancel", "bounce", "tick", "end"]
            + ["entitle"] * 2
            + ["choose"]
        ),
        us=st.sampled_from([0, 1, SECOND // 2, 3 * SECOND]),
        tenant=st.sampled_from("aab"),
        service_class=st.sampled_from(["standard", "interactive", "batch", "urgent"]),
        number=st.integers(0, 10**6),
    ),
    min_size=15,
    max_size=60,
)


class Story:
    def __init__(self, begun=ALIKE):
        self.begun = begun
        self.balancer, self.at, self.log = self.fresh(), 0, []
        self.here = {}  # tenant by call

    def fresh(self):
        instances = build.instance("i", seqs=2, kv=600), build.instance("j", seqs=1, kv=400)
        return build.balancer(
            *instances, policy="kairos", max_wait_us=8 * SECOND, entitlements=self.begun
        )

    def go_on(self, facts):
        for fact in facts:
            self.at += fact.us
            self.tell(self.event(fact))

    def tell(self, event):
        try:
            commands = self.balancer.handle(event, self.at)
        except KairosError:
            return
        self.log.append(Record(self.at, event, tuple(commands)))
        self.follow(event, commands)
        self.check()

    def event(self, fact):
        number, here = fact.number, self.balancer.in_flight()
        if fact.kind == "entitle":
            return EntitlementsChanged(GIVEN[number % len(GIVEN)])
        if fact.kind == "choose":
            return PolicyChosen(sorted(POLICIES)[number % len(POLICIES)])
        running = [each.id for each, where in here if where is not None]
        match fact.kind if here else "arrive":
            case "finish" if running:
                return Finished(running[number % len(running)])
            case "bounce" if running:
                return Bounced(running[number % len(running)], "why")
            case "cancel":
                return Cancelled(here[number % len(here)][0].id)
            case "end":
                return WorkflowEnded(fact.tenant, f"w{number % 5}")
            case "tick":
                return Tick()
        request = build.request(
            f"r{len(self.log)}",
            at=self.at,
            tenant=fact.tenant,
            app=["x", "y", None][number % 3],
            key=["k", None][number % 2],
            workflow_id=f"w{number % 5}",
            service_class=fact.service_class,
            completion=5 * (1 + number % 50),
        )
        return Arrived(request)

    def follow(self, event, commands):
        if isinstance(event, Arrived):
            self.here[event.request.id] = event.request
        elif isinstance(event, Finished | Cancelled):
            del self.here[event.request_id]
        for command in commands:
            if isinstance(command, Refuse):
                del self.here[command.request_id]

    def check(self):
        """Each call is where whoever looks for it looks."""
        balancer = self.balancer
        assert {each.id for each, _ in balancer.in_flight()} == self.here.keys()
        waiting = [each for each, where in balancer.in_flight() if where is None]
        queues = balancer._queues
        assert len(queues) == len(waiting)
        assert sum(len(queue) for queue in queues.open().values()) == len(waiting)
        for request in waiting:
            queues._asked = None
            assert request.id in queues.of(request)
            level, _, name, _ = queues.fairness.share_of(request)
            longest_us = queues.fairness.max_wait_us((level, "", name, None)) or 8 * SECOND
            assert queues.of(request).max_wait_us == longest_us
        waits = {(place[0][0], place[0][1]) for place in queues.open()}
        for level, tags in queues.fairness.tenants.items():
            assert set(tags._waiting) == {tenant for each, tenant in waits if each == level}

    def cancel_all(self):
        for name in list(self.here):
            self.balancer.handle(Cancelled(name), self.at)
        assert self.balancer.waiting == len(self.balancer.ledger) == 0


@examples(30)
@given(FACTS)
def test_nothing_is_lost_or_misplaced(facts):
    story = Story()
    story.go_on(facts)
    story.cancel_all()


@examples(30)
@given(FACTS, FACTS, st.sampled_from(GIVEN))
def test_who_replays_the_log_decides_the_same_from_there_on(before, after, begun):
    story = Story(begun)
    story.go_on(before)
    second = story.fresh()
    for record in story.log:
        second.replay(record)
    assert second.entitlements == story.balancer.entitlements
    so_far = len(story.log)
    story.go_on(after)
    for record in story.log[so_far:]:
        assert decided(second.handle(record.event, record.at)) == decided(record.commands)


@examples(30)
@given(FACTS, st.sampled_from(GIVEN))
def test_that_all_is_as_it_was_says_no_more_than_that_time_has_passed(facts, entitlements):
    story, other = Story(entitlements), Story(entitlements)
    for fact in facts:
        if fact.kind != "entitle":
            story.go_on([fact])
            other.go_on([fact])
            for each in (Tick(), Tick()):
                story.tell(each)
            for each in (Tick(), EntitlementsChanged(entitlements)):
                other.tell(each)
    assert [each.commands for each in story.log] == [each.commands for each in other.log]


@examples(30)
@given(FACTS, st.sampled_from(GIVEN), st.sampled_from(GIVEN))
def test_entitlements_that_changed_decide_as_those_of_the_settings(facts, before, entitlements):
    changed, begun = Story(before), Story(entitlements)
    changed.tell(EntitlementsChanged(entitlements))
    begun.tell(Tick())
    changed.go_on(facts)
    begun.go_on(facts)
    assert list(map(said, changed.log[1:])) == list(map(said, begun.log[1:]))


def said(record):
    return record.at, record.event, decided(record.commands)


def decided(commands):
    return [
        (each.request_id, each.instance_id, each.reason, each.tenants_before, each.limits)
        if isinstance(each, Dispatch)
        else each
        for each in commands
    ]

"""What one tenant makes Kairos remember pushes out nothing of another's, and spoils nothing."""

import pytest

from kairos.core import (
    POOLED_AGENT,
    SECOND,
    AgentRank,
    Arrived,
    ProfilesLearnt,
    WorkEstimates,
    WorkflowEnded,
    exponential_distribution,
    workflow_key,
)
from kairos.core.dispatcher import kv_retention
from kairos.core.dispatcher.demand import Curves
from kairos.core.dispatcher.kv_retention import KvRetention
from kairos.core.errors import WorkflowCancelled
from kairos.core.faults.attribution import MOST_SUSPECTS, FaultAttribution
from kairos.core.orchestrator.orchestrator import MAX_TO_LEARN
from kairos.core.orchestrator.profiles import Profiles
from kairos.core.scheduler.output_lengths import OutputLengths
from kairos.core.workflow_tracker import WorkflowTracker
from tests.support.core import learnt
from tests.support.simulate import build
from tests.unit.core.orchestrator.test_orchestrator import CALL_BYTES, Facts


def agents(profiles, tenant):
    return {
        (each.app, each.agent) for each in profiles.status(tenant) if each.agent != POOLED_AGENT
    }


def published(profiles):
    learning = profiles.take_changed(whole=True)
    found, models = learning.learn()
    return {each.key: each for each in found}, {(each.tenant, each.app) for each in models}


def test_where_a_workflow_stands_is_not_forgotten_for_another_tenants_many():
    positions = WorkflowTracker(max_workflows=10)
    mine = build.request("mine", tenant="honest")
    positions.record_arrival(mine, 0)
    positions.record_call_end("mine", SECOND, 10)
    for n in range(100):
        positions.record_arrival(build.request(f"r{n}", tenant="flood"), 2 * SECOND)

    assert len(positions) == 10
    assert positions.used(workflow_key(mine)).calls == 0  # it never ran
    assert positions.record_arrival(
        build.request("next", tenant="honest", workflow_id="w-mine"), 9
    ).stage


def test_an_open_workflow_stays_beside_a_tenant_with_very_many():
    facts = Facts(max_workflows=4)
    facts.call(0, 1, "mine", tenant="honest", workflow_id="mine")
    for n in range(20):
        facts.call(n, n + 1, f"r{n}", tenant="flood", workflow_id=f"w{n}")

    assert len(facts.orchestrator) == 4
    assert facts.orchestrator.workflow("honest", "mine") is not None
    assert facts.orchestrator.workflow("flood", "w16") is None


def test_an_open_workflow_stays_beside_a_tenant_with_very_many_calls(monkeypatch):
    monkeypatch.setattr("kairos.core.orchestrator.orchestrator.MAX_OPEN_BYTES", 10 * CALL_BYTES)
    facts = Facts()
    facts.call(0, 1, "mine", tenant="honest", workflow_id="mine")
    for n in range(20):
        facts.call(n, n + 1, f"r{n}", tenant="flood", workflow_id=f"w{n % 4}")

    assert facts.orchestrator.workflow("honest", "mine") is not None
    assert facts.orchestrator.evicted > 0


def test_what_ended_can_be_looked_at_whatever_else_has_ended(monkeypatch):
    monkeypatch.setattr("kairos.core.orchestrator.orchestrator.MAX_ENDED", 4)
    facts = Facts()
    facts.call(0, 1, "mine", tenant="honest", workflow_id="mine")
    facts.end(1, "mine", tenant="honest")
    for n in range(20):
        facts.call(n, n + 1, f"r{n}", tenant="flood", workflow_id=f"w{n}")
        facts.end(n + 1, f"w{n}", tenant="flood")

    assert facts.orchestrator.workflow("honest", "mine").ended_at
    assert facts.orchestrator.workflow("flood", "w10") is None
    assert facts.orchestrator.workflow("flood", "w19").ended_at


def test_what_ended_is_learnt_from_whoever_else_ends_more_than_can_be():
    facts = Facts()
    for n in range(MAX_TO_LEARN + 5):
        facts.call(n, n + 0.5, f"r{n}", tenant="flood", workflow_id=f"w{n}")
        facts.end(n + 0.5, f"w{n}", tenant="flood")
    for n in range(3):
        facts.call(10**5 + n, 10**5 + n, f"mine{n}", tenant="honest", workflow_id=f"w{n}")
        facts.end(10**5 + n, f"w{n}", tenant="honest")

    taken = [each.key for each in facts.orchestrator.take_ended()]
    assert facts.orchestrator.unlearnt == 5 + 3
    assert len(taken) == MAX_TO_LEARN
    assert taken[-3:] == [("honest", f"w{n}") for n in range(3)]
    assert taken[:-3] == [("flood", f"w{n}") for n in range(MAX_TO_LEARN - 3)]


@pytest.mark.parametrize("flood", [1, 50])
def test_of_each_tenants_open_workflows_some_are_learnt_from(monkeypatch, flood):
    monkeypatch.setattr("kairos.core.orchestrator.orchestrator.OPEN_CALLS", 40)
    facts = Facts()
    for n in range(10):
        facts.call(0, 1, f"mine{n}", tenant="honest", workflow_id=f"w{n}")
    for n in range(500):
        facts.call(2, 3, f"r{n}", tenant="flood", workflow_id=f"w{n % flood}")

    found = [
        call.row.request.tenant for each in facts.orchestrator.still_open() for call in each.ended
    ]
    assert found.count("honest") == 10
    assert len(found) <= 40


@pytest.mark.parametrize("bounds", [{"max_apps": 4}, {"max_tracked": 4}])
def test_a_tenants_agents_are_known_whatever_names_another_makes_up(bounds):
    profiles = Profiles(**bounds)
    for n in range(30):
        profiles.add(learnt.sample("a", app=f"app{n}", tenant="flood"))
    for app in ("one", "two"):
        profiles.add(learnt.sample("mine", app=app, tenant="honest"))
    for n in range(30):
        profiles.add(learnt.sample("a", app=f"more{n}", tenant="flood"))

    assert agents(profiles, "honest") == {("one", "mine"), ("two", "mine")}
    assert len(agents(profiles, "flood")) == 2
    assert ("flood", "app0", "a") in profiles.take_changed().forgotten


def test_an_app_that_is_quiet_is_not_forgotten_for_another_tenants_many_calls(monkeypatch):
    monkeypatch.setattr("kairos.core.orchestrator.pools._UNUSED_APP", 10)
    profiles = Profiles(max_apps=3)
    profiles.add(learnt.sample("mine", app="mine", tenant="honest"))
    for n in range(100):
        profiles.add(learnt.sample("a", app=f"app{n}", tenant="flood"))

    assert agents(profiles, "honest") == {("mine", "mine")}


def test_lengths_of_answers_are_kept_beside_very_many_names(monkeypatch):
    monkeypatch.setattr("kairos.core.scheduler.output_lengths._MAX_AGENTS", 10)
    lengths = OutputLengths()
    mine = build.request("r", tenant="honest", agent="mine")
    for _ in range(4):
        lengths.learn_answer(mine, 7)
    for n in range(100):
        lengths.learn_answer(build.request("r", tenant="flood", agent=f"a{n}"), 1)

    assert lengths.distribution(mine) is not None


def test_an_app_of_which_nothing_has_ended_is_noted_beside_very_many_of_another(monkeypatch):
    monkeypatch.setattr("kairos.core.scheduler.work_estimates._MAX_APPS", 5)
    estimates = WorkEstimates()
    for n in range(20):
        request = build.request(f"r{n}", tenant="flood", app=f"app{n}")
        estimates.add_call(request, 0)
        estimates.remove_call(f"r{n}", 1)
    first = build.request("first", tenant="honest", app="app", workflow_id="w")
    estimates.add_call(first, 0)
    estimates.note_dispatch("first", 0)
    estimates.remove_call("first", 50 * SECOND)

    other = build.request("other", tenant="honest", app="app")
    estimates.add_call(other, 60 * SECOND)
    assert estimates.remaining_us(other) == 50 * SECOND


class Two:
    """An honest tenant, and one that makes calls a thousand times as long."""

    def __init__(self):
        self.profiles = Profiles()

    def call(self, tenant, app, us):
        self.profiles.add(learnt.sample(tenant=tenant, app=app, us=us))


def test_a_new_app_is_expected_to_be_as_its_own_tenants_before_all_tenants_are_asked():
    two = Two()
    for n in range(100):
        two.call("honest", f"app{n % 2}", 1_000)
        two.call("poison", f"app{n % 2}", 1_000_000)
    learning = two.profiles.take_changed(whole=True)
    found, models = learning.learn()
    estimates = WorkEstimates()
    ranks = tuple(AgentRank(*each.key, each.remaining_us.mean) for each in found)
    estimates.learn(ProfilesLearnt(tuple(found), tuple(models), ranks))

    new = build.request("r", tenant="honest", app="new", agent="new", prompt=100)
    estimates.add_call(new, 0)
    assert estimates.call_us(new) == 1_000
    assert estimates.rank(new) == pytest.approx(1_000)
    assert estimates.remaining_us(new) == pytest.approx(1_000, rel=0.1)
    stranger = build.request("s", tenant="stranger", app="new", agent="new", prompt=100)
    assert estimates.call_us(stranger) > 100_000


def test_a_tenant_that_is_alone_is_all_that_there_is():
    profiles = Profiles()
    for _ in range(50):
        profiles.add(learnt.sample())
    found, models = published(profiles)
    assert {key[:2] for key in found} == models == {("t", "app"), (POOLED_AGENT, POOLED_AGENT)}


def test_when_a_second_tenant_comes_all_that_was_known_is_the_firsts():
    two = Two()
    for _ in range(50):
        two.call("honest", "app", 1_000)
    two.call("poison", "app", 1_000_000)
    two.call("honest", "app", 1_000)

    found, models = published(two.profiles)
    assert found["honest", POOLED_AGENT, POOLED_AGENT].samples == 51
    assert found["honest", POOLED_AGENT, POOLED_AGENT].call_us.mean == pytest.approx(1_000)
    assert found["poison", POOLED_AGENT, POOLED_AGENT].samples == 1
    assert {("honest", POOLED_AGENT), ("poison", POOLED_AGENT)} <= models


def test_what_was_known_of_tenants_before_a_restart_is_known_after_it():
    two = Two()
    for _ in range(50):
        two.call("honest", "app", 1_000)
        two.call("poison", "app", 1_000_000)
    found, models = two.profiles.take_changed(whole=True).learn()
    after = Profiles()
    after.restore(found, models)
    again, _ = published(after)

    assert again["honest", POOLED_AGENT, POOLED_AGENT].call_us.mean == pytest.approx(1_000)
    assert set(again) == {each.key for each in found}


def test_tenants_of_which_calls_are_kept_together_are_bounded(monkeypatch):
    monkeypatch.setattr("kairos.core.orchestrator.pools.MAX_TENANTS", 3)
    monkeypatch.setattr("kairos.core.orchestrator.pools._UNUSED_APP", 5)
    two = Two()
    for n in range(4):
        two.call(f"t{n}", "app", 1_000)
    found, _ = published(two.profiles)
    assert {key[0] for key in found if key[1] == POOLED_AGENT} == {"t0", "t1", "t2", POOLED_AGENT}
    for _ in range(5):
        two.call("t0", "app", 1_000)
    two.call("t4", "app", 1_000)
    learning = two.profiles.take_changed(whole=True)
    assert learning.forgotten == (("t1", POOLED_AGENT, POOLED_AGENT),)
    assert ("t4", POOLED_AGENT, POOLED_AGENT) in {each.key for each in learning.learn()[0]}


def test_facts_of_one_tenants_workflows_are_not_those_of_anothers_with_the_same_id():
    facts = Facts()
    facts.tell(0, Arrived(build.request("a", tenant="one", workflow_id="w")))
    facts.tell(0, Arrived(build.request("b", tenant="two", workflow_id="w")))
    facts.end(1, "w", tenant="one")
    assert facts.orchestrator.workflow("two", "w").ended_at is None


def test_a_caller_is_known_to_be_of_long_standing_beside_very_many_new_ones():
    attribution = FaultAttribution()
    for _ in range(50):
        attribution.count_served_call(("honest", "app", "mine"))
    attribution.record_failure("mine", ("honest", "app", "mine"), "a", 0, began_at=0)
    for n in range(2 * MOST_SUSPECTS):
        attribution.count_served_call(("flood", "app", f"a{n}"))
        attribution.record_failure(n, ("flood", "app", f"a{n}"), "a", 0, began_at=0)

    assert attribution.callers["honest", "app", "mine"].served == 50
    assert (
        attribution.record_failure("mine", ("honest", "app", "mine"), "b", 0, began_at=0) < 0.5
    )  # the second time
    assert ("flood", "app", "a0") not in attribution.callers


def test_memory_is_kept_for_a_tenant_beside_one_that_leaves_very_many_contexts(monkeypatch):
    monkeypatch.setattr(kv_retention, "_MAX_LEFT", 50)
    monkeypatch.setattr(kv_retention, "_MAX_AGENTS", 20)
    made, instance, fill_us = KvRetention(), build.instance("i", kv=1_000), 20 * SECOND

    def call(tenant, name, agent="a"):
        fields = {"tenant": tenant, "agent": agent, "prefix": (name,), "prefix_units": 64}
        return build.request(f"{tenant} {name}", prompt=100, **fields)

    at = 0
    for n in range(8):  # each comes back after a second
        for tenant in ("honest", "flood"):
            made.retain_context(call(tenant, hash((tenant, n))), instance, 100, fill_us, at)
            made.assign_context(call(tenant, hash((tenant, n))), at + SECOND)
            made.release_context(f"{tenant} {hash((tenant, n))}")
        at += fill_us
    made.retain_context(call("honest", 1), instance, 100, fill_us, at)
    for n in range(100):
        made.retain_context(call("flood", 1_000 + n), instance, 100, fill_us, at)
    assert made.kept("i").tokens == 1_000
    for n in range(100):
        made.retain_context(call("flood", 2_000 + n, f"a{n}"), instance, 100, fill_us, at)

    made.assign_context(call("spy", 1), at)  # that begins alike is nothing to it
    assert made.kept_for(call("spy", 1), at) is None
    made.assign_context(call("honest", 1), at)
    assert made.kept_for(call("honest", 1), at) == ("i", 100)
    assert ("honest", "", "a") in made._gaps


def test_a_workflow_that_was_cancelled_stays_so_beside_very_many_of_another(monkeypatch):
    monkeypatch.setattr("kairos.core.admission._MAX_CANCELLED", 5)
    balancer = build.balancer(build.instance("i"))
    balancer.handle(WorkflowEnded("honest", "w", cancelled=True), 0)
    for n in range(50):
        balancer.handle(WorkflowEnded("flood", f"w{n}", cancelled=True), 0)

    with pytest.raises(WorkflowCancelled):
        balancer.handle(Arrived(build.request("r", tenant="honest", workflow_id="w")), 1)
    balancer.handle(Arrived(build.request("s", tenant="flood", workflow_id="w0")), 1)


def test_agents_of_which_nothing_is_known_have_one_curve_however_many_they_are():
    curves = Curves(None)
    rows = {
        curves.row(("flood", "app", f"a{n}"), build.request("r", completion=256), None)
        for n in range(100)
    }
    assert len(rows) == 1
    other = curves.row(("flood", "app", "a0"), build.request("r", completion=8), None)
    known = curves.row(("flood", "app", "a0"), build.request("r"), exponential_distribution(256.0))
    assert len({*rows, other, known}) == 3

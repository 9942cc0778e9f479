"""What clients choose, names and ids and how many of them, makes nothing fail, and nothing grow
without end."""

import msgspec
import pytest

from kairos.core import (
    POOLED_AGENT,
    SECOND,
    Arrived,
    Cancelled,
    Dispatch,
    Failed,
    Finished,
    InstanceLeft,
    Learner,
    Orchestrator,
    ProfilesLearnt,
    Record,
    SeenJoin,
    WorkEstimates,
    WorkflowEnded,
)
from kairos.core.orchestrator.profiles import Profiles
from kairos.core.scheduler.policies import LeastWorkLeft
from kairos.core.scheduler.queue import WaitQueue
from kairos.core.workflow_tracker import MAX_NAMES, WorkflowTracker
from kairos.observe import workflow_snapshot, workflow_view
from kairos.observe.views import MAX_PARENTS
from tests.support.core import learnt
from tests.support.simulate import build


class Told:
    """A learner that is told of one workflow, in seconds."""

    def __init__(self):
        self.learner = Learner(Orchestrator())

    def arrives(self, at_s, name, *, runs=True, **fields):
        request = build.request(name, at=at_s * SECOND, workflow_id="w", **fields)
        self.tell(at_s, Arrived(request), *([Dispatch(name, "i")] if runs else []))

    def tell(self, at_s, event, *commands):
        self.learner.observe(Record(at_s * SECOND, event, tuple(commands)))

    def learnt(self, at_s):
        """Mean remaining seconds by agent, once the workflow has ended."""
        self.tell(at_s, WorkflowEnded("default", "w"))
        published = self.learner.step()
        return {
            p.agent: p.remaining_us.mean / SECOND for p in published.profiles if p.tenant != "*"
        }

    def view(self, at_s):
        workflow = self.learner.orchestrator.workflow("default", "w")
        joins = self.learner.orchestrator.joins
        return workflow_view(workflow_snapshot(workflow, at_s * SECOND, joins), 0, 10_000)


@pytest.mark.parametrize("end", [Cancelled("r"), Failed("r", "gone")], ids=["cancelled", "failed"])
def test_an_id_that_is_used_again_without_counting_is_another_attempt_even_if_it_never_ran(end):
    told = Told()
    told.arrives(0, "r", agent="a")
    told.tell(2, Finished("r", 1, 1))
    told.arrives(3, "r", agent="a", runs=False)
    told.tell(4, end)

    told.tell(5, WorkflowEnded("default", "w"))
    assert told.learner.step() is None  # how long the last attempt would have been is not known


def test_a_client_that_tries_again_by_itself_teaches_its_last_attempt():
    told = Told()
    told.arrives(0, "r", agent="a")
    told.tell(2, Failed("r", "gone"))
    told.arrives(3, "r", agent="a")
    told.tell(8, Finished("r", 1, 1))

    assert told.learnt(9)["a"] == pytest.approx(5)
    [node] = told.learner.orchestrator.workflow("default", "w").graph().nodes.values()
    assert node.attempts == 2


def test_of_a_learnt_join_of_very_many_calls_some_are_told_and_all_are_counted():
    told = Told()
    for n in range(MAX_PARENTS + 20):
        told.arrives(0, f"branch-{n}", agent="branch", upstream="user")
    for n in range(MAX_PARENTS + 20):
        told.tell(5, Finished(f"branch-{n}", 1, 1))
    told.arrives(6, "join", agent="join", upstream="branch")
    told.tell(7, Finished("join", 1, 1))

    orchestrator = told.learner.orchestrator
    workflow = orchestrator.workflow("default", "w")
    for seen in 8 * workflow.graph().sightings():
        orchestrator.joins.add(SeenJoin(workflow.app, seen))

    join = told.view(7).calls[-1]
    assert join.id == "join"
    assert (len(join.parents), join.parents_total) == (MAX_PARENTS, MAX_PARENTS + 20)


def test_agents_beyond_the_bound_of_a_workflow_count_as_one():
    positions = WorkflowTracker()
    for n in range(MAX_NAMES):
        positions.record_arrival(build.request(f"r{n}", workflow_id="w", agent=f"agent-{n}"), 0)

    more = [
        positions.record_arrival(build.request(f"more-{n}", workflow_id="w", agent=f"new-{n}"), 0)
        for n in range(3)
    ]
    known = positions.record_arrival(build.request("again", workflow_id="w", agent="agent-7"), 0)

    assert [position.visit for position in more] == [1, 2, 3]
    assert {position.agents for position in more} == {MAX_NAMES + 1}
    assert known.visit == 2


def test_models_of_apps_that_are_forgotten_are_forgotten():
    estimates = WorkEstimates()
    for app in ("old", "new"):
        estimates.learn(ProfilesLearnt(*taught(app)))
    estimates.learn(ProfilesLearnt(forgotten=(("t", "old", POOLED_AGENT),)))

    assert estimates.model(build.request("r", tenant="t", app="new")) is not None
    assert estimates.model(build.request("r", tenant="t", app="old")) is None


def taught(app):
    """What an app's calls teach, without what they teach of everything."""
    profiles = Profiles()
    for each in learnt.samples(20, app=app):
        profiles.add(each)
    found, models = profiles.take_changed().learn()
    return tuple(p for p in found if p.tenant == "t"), tuple(m for m in models if m.tenant == "t")


def test_calls_that_were_pooled_stay_counted_when_their_app_is_forgotten(monkeypatch):
    monkeypatch.setattr("kairos.core.orchestrator.pools._UNUSED_APP", 10)
    profiles = Profiles(max_agents=1, max_apps=1)
    for agent in ("first", "second", "third"):
        profiles.add(learnt.sample(agent, app="old"))
    assert profiles.pooled == 2
    for _ in range(12):
        profiles.add(learnt.sample("first", app="new"))

    assert {status.app for status in profiles.status("t")} == {"new"}
    assert profiles.pooled == 2 + 9  # the first nine of the new app came before there was room


def test_a_wide_fan_out_that_is_refused_as_a_whole_gets_no_new_keys_on_the_way(monkeypatch):
    rekeyed = []
    monkeypatch.setattr(WaitQueue, "rekey", lambda _, request: rekeyed.append(request.id))
    balancer = build.balancer(build.instance("i", seqs=1), policy="kairos")
    for n in range(6):
        balancer.handle(Arrived(build.request(f"r{n}", workflow_id="w")), 0)
    rekeyed.clear()

    refused = balancer.handle(InstanceLeft("i"), 1)

    assert [each.request_id for each in refused] == [f"r{n}" for n in range(1, 6)]
    assert not rekeyed


def test_gittins_indices_are_those_of_the_models_learnt_last_and_no_others():
    estimates = WorkEstimates()
    policy = LeastWorkLeft(estimates)
    keys = {}
    for app, spread in (("old", 1.0), ("new", 1.0), ("new", 0.0)):
        [model] = taught(app)[1]
        model = msgspec.structs.replace(model, residuals=(-spread, spread))
        estimates.learn(ProfilesLearnt(models=(model,)))
        request = build.request(f"{app} {spread}", tenant="t", app=app, agent="writer")
        estimates.add_call(request, 0)
        keys[app, spread] = policy.key(request, policy.state(request))[0]

    assert keys["new", 1.0] == keys["old", 1.0] < keys["new", 0.0]
    assert list(policy._indices) == [("t", "new")]

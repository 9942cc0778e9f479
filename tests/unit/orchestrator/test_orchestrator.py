"""The orchestrator: from records to workflows, and from workflows that ended to what is learnt."""

import tracemalloc

import pytest

from kairos.events import (
    Arrived,
    Cancelled,
    Dispatch,
    Failed,
    Finished,
    ProfilesLearnt,
    Record,
    Refuse,
    WorkflowEnded,
)
from kairos.learner import Learner
from kairos.model import SECOND
from kairos.orchestrator.orchestrator import MAX_ENDED, MAX_TO_LEARN, Orchestrator
from kairos.orchestrator.profiles import CallSample
from kairos.orchestrator.remaining import remaining
from kairos.orchestrator.workflow import MAX_CALLS
from tests.support import build
from tests.support.learnt import profile


class Facts:
    """Records told to an orchestrator, in seconds."""

    def __init__(self, **limits):
        self.orchestrator = Orchestrator(**limits)
        self.lessons = []

    @property
    def samples(self):
        for workflow in self.orchestrator.take_ended():
            self.lessons += workflow.lessons()
        return [lesson for lesson in self.lessons if isinstance(lesson, CallSample)]

    @property
    def censored(self):
        return [lesson for lesson in [*self.samples, *self.lessons] if isinstance(lesson, tuple)]

    def tell(self, at_s, event, *commands):
        record = Record(int(at_s * SECOND), event, tuple(commands))
        self.orchestrator.observe(record)
        return record

    def arrive(self, at_s, name, *, run_at_s=None, **fields):
        """Arrives and is dispatched, at once or by an event of another request."""
        request = build.request(name, at=int(at_s * SECOND), **{"workflow_id": "w", **fields})
        run_now = run_at_s in (None, at_s)
        self.tell(at_s, Arrived(request), *([Dispatch(name, "i")] if run_now else []))
        if not run_now:
            self.tell(run_at_s, Finished("someone else"), Dispatch(name, "i"))

    def call(self, begin_s, end_s, name, **fields):
        self.arrive(begin_s, name, **fields)
        self.tell(end_s, Finished(name, 10, 20))

    def end(self, at_s, workflow="w", tenant="default"):
        self.tell(at_s, WorkflowEnded(tenant, workflow))

    def learnt(self):
        return {s.key[2]: s for s in self.samples}


def chain(facts):
    facts.call(0, 2, "r1", app="a", agent="x", upstream="user")
    facts.call(3, 7, "r2", app="a", agent="y", upstream="x")
    facts.end(8)


def test_a_workflow_that_ended_teaches_what_remained_after_each_of_its_calls():
    facts = Facts()
    chain(facts)
    learnt = facts.learnt()
    assert learnt["x"].key == ("default", "a", "x")
    assert (learnt["x"].call_us, learnt["x"].remaining_us) == (2 * SECOND, 6 * SECOND)
    assert (learnt["y"].call_us, learnt["y"].remaining_us) == (4 * SECOND, 4 * SECOND)
    assert (learnt["x"].remaining_stages, learnt["y"].remaining_stages) == (2, 1)
    assert learnt["y"].completion_tokens == 20


def test_queueing_is_load_and_not_work():
    facts = Facts()
    facts.arrive(0, "r1", run_at_s=50, agent="x")
    facts.tell(52, Finished("r1", 10, 20))
    facts.end(53)
    assert facts.learnt()["x"].remaining_us == 2 * SECOND
    assert facts.learnt()["x"].call_us == 2 * SECOND


def test_only_time_that_nobody_waits_in_the_queue_is_time_between_calls():
    facts = Facts()
    facts.call(0, 2, "r1", agent="x", upstream="user")
    facts.arrive(5, "r2", run_at_s=50, agent="y", upstream="x")
    facts.tell(51, Finished("r2", 1, 1))
    rest = remaining(facts.orchestrator.workflow("default", "w").graph())
    assert rest["r1"].gap_us == 3 * SECOND


def test_a_call_that_took_no_time_is_learnt_as_the_shortest_there_is():
    facts = Facts()
    facts.call(3, 3, "r1", agent="x")
    facts.end(4)
    assert facts.learnt()["x"].remaining_us == 1


def test_a_call_is_learnt_with_the_position_that_it_had_when_it_arrived():
    facts = Facts()
    chain(facts)
    position = facts.learnt()["y"].position
    assert (position.stage, position.served_us, position.last_completion_tokens) == (
        1,
        2 * SECOND,
        20,
    )


def test_parallel_branches_count_by_the_longest():
    facts = Facts()
    facts.call(0, 1, "r1", agent="plan")
    facts.arrive(1, "r2", agent="short", parent_ids=("r1",))
    facts.arrive(1, "r3", agent="long", parent_ids=("r1",))
    facts.tell(2, Finished("r2", 1, 1))
    facts.tell(6, Finished("r3", 1, 1))
    facts.call(6, 8, "r4", agent="join", parent_ids=("r2", "r3"))
    facts.end(9)
    remaining_s = {agent: s.remaining_us / SECOND for agent, s in facts.learnt().items()}
    assert remaining_s == {"plan": 8, "short": 3, "long": 7, "join": 2}


def test_nothing_is_learnt_before_the_end():
    facts = Facts()
    facts.call(0, 2, "r1")
    assert not facts.samples
    assert len(facts.orchestrator) == 1


def test_an_end_that_is_told_while_a_call_runs_waits_for_the_call():
    facts = Facts()
    facts.arrive(0, "r1", agent="x")
    facts.end(1)
    assert not facts.samples
    facts.tell(4, Finished("r1", 1, 1))
    assert facts.learnt()["x"].call_us == 4 * SECOND
    assert facts.orchestrator.workflow("default", "w").ended_at == SECOND


def test_an_end_that_is_told_while_calls_run_waits_for_the_last_of_them():
    facts = Facts()
    facts.arrive(0, "r1", agent="x")
    facts.arrive(0, "r2", agent="y")
    facts.end(1)
    facts.end(3)
    facts.tell(4, Finished("r1", 1, 1))
    assert not facts.samples
    facts.tell(6, Finished("r2", 1, 1))
    assert set(facts.learnt()) == {"x", "y"}
    assert facts.orchestrator.workflow("default", "w").ended_at == SECOND


def test_a_workflow_whose_id_is_used_again_after_its_end_is_a_new_one():
    facts = Facts()
    facts.call(0, 1, "r1", agent="x")
    facts.end(2)
    facts.call(3, 4, "r2", agent="y")
    again = facts.orchestrator.workflow("default", "w")
    assert again.ended_at is None
    facts.end(5)
    assert facts.learnt()["y"].position == facts.learnt()["x"].position  # a first call


def test_a_call_that_is_made_once_more_after_its_workflow_ended_does_not_begin_it_anew():
    facts = Facts()
    chain(facts)
    facts.call(9, 10, "r2", app="a", agent="y", upstream="x")
    workflow = facts.orchestrator.workflow("default", "w")
    assert workflow.ended_at == 8 * SECOND
    assert [call.row.request.id for call in workflow.calls] == ["r1", "r2"]
    assert facts.orchestrator.open_workflow(("default", "w")) is None
    facts.end(11)
    assert len(facts.samples) == 2


def ended(facts, at_s, name, calls=1):
    """A workflow of so many calls that ends."""
    for n in range(calls):
        facts.call(at_s, at_s, f"{name}-{at_s}-{n}", workflow_id=name)
    facts.end(at_s, name)


def kept(facts, *names):
    return [name for name in names if facts.orchestrator.workflow("default", name) is not None]


def test_workflows_that_ended_are_kept_up_to_so_many_calls_of_all(monkeypatch):
    monkeypatch.setattr("kairos.orchestrator.orchestrator.MAX_ENDED_CALLS", 10)
    facts = Facts()
    for n in range(6):
        ended(facts, n, f"w{n}", calls=3)
    assert kept(facts, *(f"w{n}" for n in range(6))) == ["w3", "w4", "w5"]


def test_a_workflow_that_ends_again_takes_the_place_of_its_first_end(monkeypatch):
    monkeypatch.setattr("kairos.orchestrator.orchestrator.MAX_ENDED_CALLS", 10)
    monkeypatch.setattr("kairos.orchestrator.orchestrator.MAX_ENDED", 2)
    facts = Facts()
    ended(facts, 0, "v")
    for at_s in range(1, 9):
        ended(facts, at_s, "w", calls=3)
    assert kept(facts, "v", "w") == ["v", "w"]
    ended(facts, 9, "v")
    ended(facts, 10, "u")
    assert kept(facts, "u", "v", "w") == ["u", "v"]


def test_what_is_told_twice_counts_once():
    facts = Facts()
    facts.arrive(0, "r1", agent="x")
    facts.arrive(0, "r1", agent="x")
    facts.tell(2, Finished("r1", 1, 1))
    facts.tell(3, Finished("r1", 1, 1))
    facts.end(4)
    facts.end(5)
    assert len(facts.samples) == 1
    assert facts.samples[0].remaining_us == 2 * SECOND
    assert len(facts.orchestrator.workflow("default", "w").calls) == 1


@pytest.mark.parametrize("end", [Failed("r2", "broke off"), Cancelled("r2")])
def test_what_failed_or_was_cancelled_is_counted_and_never_learnt_as_short(end):
    facts = Facts()
    facts.call(0, 2, "r1", app="a", agent="x")
    facts.arrive(3, "r2", app="a", agent="y", upstream="x")
    facts.tell(4, end)
    facts.end(5)
    assert not facts.samples  # what remained after r1 is not known either
    assert facts.censored == [("default", "a", "x"), ("default", "a", "y")]


def test_a_call_that_never_ran_is_censored_too():
    facts = Facts()
    request = build.request("r1", workflow_id="w", agent="x")
    facts.tell(0, Arrived(request))
    facts.tell(9, Finished("other"), Refuse("r1", "m", "waited_too_long"))
    facts.end(9)
    assert not facts.samples
    assert len(facts.censored) == 1


def test_a_retry_that_succeeds_is_one_call_and_is_learnt():
    facts = Facts()
    facts.arrive(0, "r1", agent="x", attempt=1)
    facts.tell(5, Failed("r1", "gone"))
    facts.arrive(6, "r1", agent="x", attempt=2)
    facts.tell(8, Finished("r1", 1, 1))
    facts.end(9)
    assert not facts.censored
    assert facts.learnt()["x"].remaining_us == 2 * SECOND
    [node] = facts.orchestrator.workflow("default", "w").graph().nodes.values()
    assert node.attempts == 2


def test_silence_ends_a_workflow():
    facts = Facts(idle_us=100 * SECOND)
    facts.call(0, 2, "r1", agent="x")
    facts.orchestrator.expire(int(101.9 * SECOND))
    assert not facts.samples
    facts.orchestrator.expire(102 * SECOND)
    assert facts.learnt()["x"].remaining_us == 2 * SECOND
    assert facts.orchestrator.expired == 1
    workflow = facts.orchestrator.workflow("default", "w")
    assert workflow.idle
    assert workflow.ended_at == 2 * SECOND


def test_a_call_that_takes_long_is_no_silence():
    facts = Facts(idle_us=100 * SECOND)
    facts.arrive(0, "r1")
    facts.orchestrator.expire(500 * SECOND)
    assert len(facts.orchestrator) == 1
    facts.tell(501, Finished("r1", 1, 1))
    facts.orchestrator.expire(601 * SECOND)
    assert len(facts.orchestrator) == 0


def test_a_call_that_takes_long_does_not_hide_the_silence_of_others():
    facts = Facts(idle_us=100 * SECOND)
    facts.arrive(0, "long", workflow_id="v")
    facts.call(1, 2, "r1")
    facts.orchestrator.expire(102 * SECOND)
    assert facts.orchestrator.expired == 1
    assert facts.orchestrator.workflow("default", "w").idle


def test_a_workflow_with_a_new_call_is_not_the_longest_idle():
    facts = Facts(max_workflows=2)
    facts.call(0, 1, "r1", workflow_id="v")
    facts.call(2, 3, "r2", workflow_id="w")
    facts.arrive(4, "r3", workflow_id="v")
    facts.call(5, 6, "r4", workflow_id="u")
    assert facts.orchestrator.workflow("default", "v") is not None
    assert facts.orchestrator.workflow("default", "w") is None


def test_tenants_do_not_see_each_other():
    facts = Facts()
    facts.call(0, 1, "r1", tenant="x", agent="p")
    facts.call(0, 2, "r2", tenant="y", agent="p")
    facts.end(3, tenant="x")
    assert [s.key[0] for s in facts.samples] == ["x"]
    assert facts.orchestrator.workflow("z", "w") is None
    assert len(facts.orchestrator.workflow("y", "w").calls) == 1


def test_the_longest_idle_workflow_makes_room_and_is_counted_and_not_learnt():
    facts = Facts(max_workflows=2)
    for n in range(3):
        facts.call(n, n + 0.5, f"r{n}", workflow_id=f"w{n}")
    assert len(facts.orchestrator) == 2
    assert facts.orchestrator.evicted == 1
    assert len(facts.orchestrator._positions) == 2
    assert facts.orchestrator.workflow("default", "w0") is None
    assert not facts.samples


def test_open_workflows_make_room_when_they_have_too_many_calls_together(monkeypatch):
    monkeypatch.setattr("kairos.orchestrator.orchestrator.MAX_OPEN_CALLS", 5)
    facts = Facts()
    for n in range(4):
        facts.call(n, n + 0.4, f"r{n}", workflow_id="long")
    for n in range(2):
        facts.call(10 + n, 10.5 + n, f"s{n}", workflow_id=f"short{n}")
    assert facts.orchestrator.evicted == 1
    assert facts.orchestrator.workflow("default", "long") is None
    facts.end(20, "short0")
    for n in range(4):
        facts.call(30 + n, 30.5 + n, f"t{n}", workflow_id="other")
    assert facts.orchestrator.evicted == 1  # one short, and four: five again


def test_a_workflow_that_was_under_way_before_the_first_record_is_not_learnt():
    facts = Facts()
    facts.tell(100, Finished("a stranger"))
    facts.call(101, 102, "r1", workflow_id="old", workflow_started_at=99 * SECOND)
    facts.call(103, 104, "r2", workflow_id="new", workflow_started_at=100 * SECOND)
    facts.end(105, "old")
    facts.end(106, "new")
    assert [sample.position.prompt_tokens for sample in facts.samples] == [10]
    assert facts.censored == []
    assert facts.orchestrator.workflow("default", "old").calls  # to look at it is kept


def test_news_of_a_call_whose_workflow_was_evicted_change_nothing():
    facts = Facts(max_workflows=1)
    facts.arrive(0, "r1", workflow_id="v")
    facts.arrive(1, "r2", workflow_id="w")
    facts.tell(2, Finished("r1", 1, 1))
    facts.tell(3, Finished("r2", 1, 1))
    facts.end(4)
    assert len(facts.samples) == 1


def test_workflows_that_ended_are_kept_to_look_at_but_not_for_ever():
    facts = Facts()
    for n in range(MAX_ENDED + 5):
        facts.call(n, n + 0.5, f"r{n}", workflow_id=f"w{n}")
        facts.end(n + 0.6, f"w{n}")
    assert facts.orchestrator.workflow("default", "w4") is None
    assert facts.orchestrator.workflow("default", "w5") is not None
    assert len(facts.orchestrator) == 0


def test_a_workflow_of_more_calls_than_are_kept_is_counted_and_not_learnt():
    facts = Facts()
    for n in range(MAX_CALLS + 3):
        facts.call(n, n + 0.5, f"r{n}")
    workflow = facts.orchestrator.workflow("default", "w")
    assert (len(workflow.calls), workflow.left_out) == (MAX_CALLS, 3)
    facts.end(MAX_CALLS + 5)
    assert not facts.samples


def test_workflows_that_nobody_learns_from_are_counted_and_not_kept_for_ever():
    facts = Facts()
    for n in range(MAX_TO_LEARN + 3):
        facts.call(n / 1000, n / 1000, f"r{n}", workflow_id=f"w{n}")
        facts.end(n / 1000, f"w{n}")
    assert facts.orchestrator.unlearnt == 3
    assert len(facts.orchestrator.take_ended()) == MAX_TO_LEARN
    assert facts.orchestrator.take_ended() == []


def test_a_workflow_that_was_evicted_and_goes_on_is_a_new_one():
    facts = Facts(max_workflows=1, idle_us=100 * SECOND)
    facts.arrive(0, "r1", workflow_id="v")
    facts.arrive(1, "other", workflow_id="w")
    facts.arrive(2, "r2", workflow_id="v", agent="x")
    facts.tell(3, Finished("r1", 1, 1))  # of the one that was evicted
    facts.tell(4, Finished("r2", 1, 1))
    facts.orchestrator.expire(200 * SECOND)
    assert facts.learnt()["x"].remaining_us == 2 * SECOND


@pytest.mark.parametrize(
    ("options", "most"),
    [({"max_workflows": 1_000}, 1_000), pytest.param({}, 100_000, marks=pytest.mark.long)],
)
def test_as_many_open_workflows_are_held_as_may_be_and_no_more(options, most):
    facts = Facts(**options)
    for n in range(most + 50):
        facts.arrive(n / 1000, f"r{n}", workflow_id=f"w{n}")
    assert len(facts.orchestrator) == most
    assert facts.orchestrator.evicted == 50


def test_an_open_workflow_takes_little_memory():
    facts = Facts()
    tracemalloc.start()
    for n in range(2_000):
        for call in range(3):
            at = n / 10 + call / 100
            facts.call(at, at + 0.005, f"r{n}-{call}", workflow_id=f"w{n}")
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(facts.orchestrator) == 2_000
    assert held / len(facts.orchestrator) < 8_000  # bytes


def test_what_is_published_says_all_that_is_known_and_only_when_it_is_new():
    learner = Learner(Orchestrator())
    assert learner.step() is None
    facts = Facts()
    facts.orchestrator = learner.orchestrator
    for n in range(8):
        w = {"workflow_id": f"w{n}", "app": "a"}
        facts.call(10 * n, 10 * n + 1, f"r{n}", agent="x", upstream="user", **w)
        facts.call(10 * n + 1, 10 * n + 4, f"s{n}", agent="y", upstream="x", **w)
        facts.end(10 * n + 5, f"w{n}")

    learnt = learner.step()
    assert isinstance(learnt, ProfilesLearnt)
    means = {p.key: p.remaining_us.mean for p in learnt.profiles}
    assert means["default", "a", "x"] == pytest.approx(4 * SECOND)
    assert means["default", "a", "y"] == pytest.approx(3 * SECOND)
    order = [rank.agent for rank in learnt.ranks if rank.tenant == "default"]
    assert order.index("y") < order.index("x")
    assert ("default", "a") in {(m.tenant, m.app) for m in learnt.models}
    assert learnt.kendall_tau == 1.0
    assert learner.step() is None


class Learnt:
    """What learning comes to, said by the test."""

    def __init__(self, *agents, mean_us=1_000_000, forgotten=()):
        self.profiles = [profile(agent, [mean_us + n]) for n, agent in enumerate(agents)]
        self.forgotten = forgotten

    def learn(self):
        return self.profiles, []


@pytest.mark.interpreted
def test_all_agents_are_embedded_anew_only_when_enough_of_many_have_changed(monkeypatch):
    learner, embedded = Learner(Orchestrator()), []
    embed = learner._ranking.embed
    monkeypatch.setattr(learner._ranking, "embed", lambda: embedded.append(embed()))
    agents = [f"agent{n}" for n in range(300)]
    learner.compute(Learnt(*agents))
    assert len(embedded) == 1
    for n in range(10):  # a tenth of them, less 20
        learner.compute(Learnt(agents[n], mean_us=2_000_000))
    assert len(embedded) == 1
    learner.compute(Learnt(agents[10], mean_us=2_000_000))
    assert len(embedded) == 2
    learner.compute(Learnt(agents[11], mean_us=2_000_000))
    assert len(embedded) == 2


def test_an_agent_that_is_forgotten_is_ranked_no_more_and_anew_when_it_returns():
    learner = Learner(Orchestrator())
    learner.compute(Learnt("here", "gone"))
    published = learner.compute(
        Learnt("here", mean_us=5_000_000, forgotten=(("t", "app", "gone"),))
    )
    assert published.forgotten == (("t", "app", "gone"),)
    assert [rank.agent for rank in published.ranks] == ["here"]
    assert len(learner._ranking) == len(learner._published) == 1
    again = learner.compute(Learnt("gone"))
    assert "gone" in [rank.agent for rank in again.ranks]


def test_clocks_that_disagree_within_the_skew_do_not_break_a_chain():
    learner = Learner(Orchestrator(skew_us=SECOND))
    facts = Facts()
    facts.orchestrator = learner.orchestrator
    facts.arrive(0, "r1", app="a", agent="x", upstream="user")
    facts.arrive(1.5, "r2", app="a", agent="y", upstream="x")  # of which r1 is the cause
    facts.tell(2, Finished("r1", 1, 1))
    facts.tell(5, Finished("r2", 1, 1))
    facts.end(6)

    means = {p.agent: p.remaining_us.mean / SECOND for p in learner.step().profiles}
    assert means["x"] == pytest.approx(2 + 3.5)


def test_a_learner_goes_on_from_what_was_published_before():
    first = Learner(Orchestrator())
    facts = Facts()
    facts.orchestrator = first.orchestrator
    chain(facts)
    published = first.step()

    second = Learner(Orchestrator())
    second.restore(published.profiles, published.models)
    again = second.step()
    before = {p.key: p.remaining_us.mean for p in published.profiles}
    assert {p.key: pytest.approx(p.remaining_us.mean) for p in again.profiles} == before
    assert [r.agent for r in again.ranks] == [r.agent for r in published.ranks]

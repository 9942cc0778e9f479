"""The orchestrator: from records to workflows, and from workflows that ended to what is learnt."""

from random import Random

import pytest

from kairos.core import (
    MAX_CALLS,
    SECOND,
    Arrived,
    Cancelled,
    Dispatch,
    Failed,
    Finished,
    Learner,
    Orchestrator,
    ProfilesLearnt,
    Record,
    Refuse,
    WorkflowEnded,
    remaining_work,
)
from kairos.core.orchestrator.orchestrator import MAX_ENDED
from kairos.core.orchestrator.profiles import CallSample
from kairos.core.orchestrator.workflow import bytes_of
from kairos.observe import LearntStore
from tests.support.core.learnt import profile
from tests.support.simulate import build

CALL_BYTES = bytes_of(build.request("r"))


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


def test_only_time_that_nobody_waits_in_the_queue_is_time_between_calls():
    facts = Facts()
    facts.call(0, 2, "r1", agent="x", upstream="user")
    facts.arrive(5, "r2", run_at_s=50, agent="y", upstream="x")
    facts.tell(51, Finished("r2", 1, 1))
    rest = remaining_work(facts.orchestrator.workflow("default", "w").graph())
    assert rest["r1"].gap_us == 3 * SECOND


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
    monkeypatch.setattr("kairos.core.orchestrator.orchestrator.MAX_ENDED_BYTES", 10 * CALL_BYTES)
    facts = Facts()
    for n in range(6):
        ended(facts, n, f"w{n}", calls=3)
    assert kept(facts, *(f"w{n}" for n in range(6))) == ["w3", "w4", "w5"]


def test_a_workflow_that_ends_again_takes_the_place_of_its_first_end(monkeypatch):
    monkeypatch.setattr("kairos.core.orchestrator.orchestrator.MAX_ENDED_BYTES", 10 * CALL_BYTES)
    monkeypatch.setattr("kairos.core.orchestrator.orchestrator.MAX_ENDED", 2)
    facts = Facts()
    ended(facts, 0, "v")
    for at_s in range(1, 9):
        ended(facts, at_s, "w", calls=3)
    assert kept(facts, "v", "w") == ["v", "w"]
    ended(facts, 9, "v")
    ended(facts, 10, "u")
    assert kept(facts, "u", "v", "w") == ["u", "v"]


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
    monkeypatch.setattr("kairos.core.orchestrator.orchestrator.MAX_OPEN_BYTES", 5 * CALL_BYTES)
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


def test_a_workflow_that_was_evicted_and_goes_on_is_a_new_one():
    facts = Facts(max_workflows=1, idle_us=100 * SECOND)
    facts.arrive(0, "r1", workflow_id="v")
    facts.arrive(1, "other", workflow_id="w")
    facts.arrive(2, "r2", workflow_id="v", agent="x")
    facts.tell(3, Finished("r1", 1, 1))  # of the one that was evicted
    facts.tell(4, Finished("r2", 1, 1))
    facts.orchestrator.expire(200 * SECOND)
    assert facts.learnt()["x"].remaining_us == 2 * SECOND


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
        self.forgotten, self.joins = forgotten, ()

    def learn(self):
        return self.profiles, []


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


def test_a_learner_goes_on_from_what_was_published_before():
    first = Learner(Orchestrator())
    facts = Facts()
    facts.orchestrator = first.orchestrator
    chain(facts)
    published = first.step()

    second = Learner(Orchestrator())
    second.restore(published)
    again = second.step()
    before = {p.key: p.remaining_us.mean for p in published.profiles}
    assert {p.key: pytest.approx(p.remaining_us.mean) for p in again.profiles} == before
    assert [r.agent for r in again.ranks] == [r.agent for r in published.ranks]


def map_reduce(facts, workflow, at_s, draw):
    """A plan, three searches at once, and a sum that follows the last of them."""
    ends = [at_s + 2 + draw.uniform(0.5, 3) for _ in range(3)]
    named = {"workflow_id": workflow, "app": "a"}
    facts.call(at_s, at_s + 1, f"{workflow}p", agent="plan", **named)
    for n in range(3):
        facts.arrive(
            at_s + 1 + n / 100, f"{workflow}s{n}", agent="search", upstream="plan", **named
        )
    for end, n in sorted(zip(ends, range(3), strict=True)):
        facts.tell(end, Finished(f"{workflow}s{n}", 1, 1))
    last = max(ends) + 0.01
    facts.call(last, last + 1, f"{workflow}j", agent="sum", upstream="search", **named)
    facts.end(last + 2, workflow)
    return last + 3


def test_where_calls_join_is_known_after_a_restart(tmp_path):
    draw, at_s = Random(3), 0.0
    first, store = Learner(Orchestrator()), LearntStore(tmp_path / "learnt.json")
    facts = Facts()
    facts.orchestrator = first.orchestrator
    for n in range(60):
        at_s = map_reduce(facts, f"w{n}", at_s, draw)
        published = first.step()
        if published is not None:
            store(Record(1, published))
    store.save()
    known = store.read()

    for restored in (False, True):
        second = Learner(Orchestrator())
        if restored:
            second.restore(known)
        again = Facts()
        again.orchestrator = second.orchestrator
        map_reduce(again, "x", 0.0, draw)
        workflow = second.orchestrator.workflow("default", "x")
        graph = workflow.graph(0, second.orchestrator.joins)
        assert len(graph.nodes["xj"].parents) == (3 if restored else 1)

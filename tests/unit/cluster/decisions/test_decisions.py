"""The state of a process that decides for others: open calls, and performers."""

import pytest

from kairos.cluster.decisions.messages import LoggedDecision
from kairos.cluster.decisions.open_calls import OpenCallTable
from kairos.cluster.decisions.reports import Liveness, Report, Reports
from kairos.core import (
    SECOND,
    Arrived,
    Bounced,
    Cancelled,
    Dispatch,
    Failed,
    Finished,
    FirstToken,
    InstanceLeft,
    InvalidRequest,
    PlanDeclared,
    PlannedOperator,
    PlannedWork,
    PrefillFailed,
    Progressed,
    Record,
    Refuse,
    WorkflowEnded,
)
from tests.support.simulate import build


def seconds(number):
    return int(number * SECOND)


@pytest.fixture
def liveness():
    return Liveness("us", ["p", "q"], 0)


def test_nobody_is_lost_while_the_bus_is_silent(liveness):
    assert liveness.take_lost(seconds(100)) == set()


def test_after_a_silence_of_the_bus_everybody_has_time_to_be_heard(liveness):
    liveness.hear("us", seconds(100))
    for second in (100, 101, 102, 103, 104, 105):
        liveness.hear("us", seconds(second))
        assert liveness.take_lost(seconds(second)) == set()
    liveness.hear("us", seconds(105.1))
    assert liveness.take_lost(seconds(105.1)) == {"p", "q"}


def test_a_performer_that_has_left_is_not_lost_later(liveness):
    liveness.forget("p")
    for second in range(7):
        liveness.hear("us", seconds(second))
    assert liveness.take_lost(seconds(6)) == {"q"}


def decided(event, *commands, at=0, **more):
    return LoggedDecision(Record(at, event, commands), **more)


@pytest.fixture
def opened():
    """Calls of three performers, each with its number."""
    calls = OpenCallTable()
    for cause, name in enumerate("abc", start=4):
        arrived = Arrived(build.request(name))
        calls.apply(decided(arrived, at=7, performer=f"of-{name}", cause=cause))
    return calls


def names(calls):
    return [each.request.id for each in calls]


def test_a_first_token_closes_nothing(opened):
    assert opened.apply(decided(FirstToken("a"))).ended == []
    assert "a" in opened


def test_a_dispatch_says_where_a_call_runs(opened):
    applied = opened.apply(decided(Finished("b"), Dispatch("a", "e1"), Dispatch("unknown", "e2")))
    assert names(applied.ended) == ["b"]
    assert [(call.request.id, command.instance_id) for call, command in applied.commands] == [
        ("a", "e1")
    ]
    assert opened.get("a").dispatch.instance_id == "e1"
    assert (opened.running("e1"), opened.running("e2")) == (1, 0)


def test_a_call_that_waits_again_runs_nowhere_and_has_a_new_turn(opened):
    opened.apply(decided(FirstToken("a"), Dispatch("a", "e1")))
    opened.apply(decided(Bounced("a", "broke"), turn=8))
    assert (opened.get("a").dispatch, opened.get("a").turn) == (None, 8)


def test_a_call_that_is_to_be_repeated_stays_open(opened):
    assert opened.apply(decided(Cancelled("a"), redo=True)).ended == []
    assert opened.get("a").to_redo
    assert opened.apply(decided(Cancelled("unknown"), redo=True)).ended == []
    opened.recall(decided(Cancelled("b"), redo=True))
    assert opened.get("b").to_redo


def test_a_successor_knows_what_was_refused_since_the_performer_may_not(opened):
    opened.recall(decided(Cancelled("x"), Refuse("a", None)))
    assert opened.get("a").refused == Refuse("a", None)
    assert names(opened.apply(decided(Cancelled("x"), Refuse("b", None))).ended) == ["b"]


def test_a_refused_call_over_the_bus_ends_once_its_answer_is_committed(opened):
    opened.apply(decided(Arrived(build.request("d")), performer="us"), bus_call=object())
    assert opened.apply(decided(Cancelled("x"), Refuse("d", None))).ended == []
    assert names(opened.apply(decided(Failed("d", "refused"))).ended) == ["d"]


def test_the_course_of_the_open_calls_restores_them_and_nothing_else(opened):
    opened.apply(decided(FirstToken("c"), Dispatch("a", "e1"), Dispatch("c", "e2"), at=8))
    opened.apply(decided(Bounced("c", "broke"), Refuse("b", None), at=9, turn=3))
    again = OpenCallTable()
    for decision in opened.course():
        again.apply(decision)
    assert again.all() == opened.all()
    for name in ("a", "c"):
        opened.apply(decided(Finished(name)))
    assert opened.course() == []


class Deciding:
    """Reports on three open calls: what is decided, and what is refused."""

    def __init__(self, calls):
        self.decided, self.declined = [], []
        self.reports = Reports(
            calls, self, lambda event, _: self.decided.append(event), self.decline
        )

    def now(self):
        return 1_000

    def decline(self, report, refusal):
        self.declined.append((report.performer, type(refusal).__name__, report.turn))


@pytest.fixture
def deciding(opened):
    opened.apply(decided(FirstToken("c"), Dispatch("a", "e1")))
    return Deciding(opened)


OF_CALLS = [FirstToken, PrefillFailed, Finished, Cancelled]


@pytest.mark.parametrize("kind", OF_CALLS)
@pytest.mark.parametrize(
    ("name", "performer", "is_heard"),
    [("a", "of-a", True), ("a", "of-b", False), ("unknown", "of-a", False)],
)
def test_a_performer_reports_on_its_own_calls(deciding, kind, name, performer, is_heard):
    event = kind(name)
    assert deciding.reports.hear(Report(performer, event)) is is_heard
    assert deciding.decided == [event] * is_heard


def test_progress_counts_for_calls_that_run_at_the_performer(deciding):
    progressed = Progressed({"a": 5, "b": 6, "unknown": 7})
    assert deciding.reports.hear(Report("of-a", progressed))
    assert deciding.decided == [Progressed({"a": 5})]
    assert not deciding.reports.hear(Report("of-b", progressed)), "it waits there"


@pytest.mark.parametrize(
    ("refused", "answer"), [(None, "Declined"), (Refuse("gone", None), "Refuse")]
)
def test_a_call_that_was_given_up_and_waits_again_is_answered(deciding, refused, answer):
    assert deciding.reports.hear(Report("of-a", Bounced("gone", "broke"), 2), refused)
    assert deciding.declined == [("of-a", answer, 2)]


def test_an_id_is_open_once_and_times_are_not_ahead(deciding):
    deciding.reports.hear(Report("of-d", Arrived(build.request("a")), 1))
    assert deciding.declined == [("of-d", "Declined", 1)]
    deciding.reports.hear(Report("of-d", Arrived(build.request("d", at=5_000))))
    assert [each.request.arrived_at for each in deciding.decided] == [1_000]


@pytest.mark.parametrize(
    "event",
    [
        WorkflowEnded("default", "w"),
        PlanDeclared("default", "app", PlannedWork((PlannedOperator("a"),))),
    ],
)
def test_an_end_of_a_workflow_and_a_plan_may_come_from_any_performer(deciding, event):
    assert deciding.reports.hear(Report("of-nobody", event))
    assert deciding.decided == [event]


def test_what_no_performer_knows_is_refused(deciding):
    with pytest.raises(InvalidRequest, match="InstanceLeft"):
        deciding.reports.hear(Report("of-a", InstanceLeft("e1")))

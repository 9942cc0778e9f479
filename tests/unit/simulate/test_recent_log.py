"""The end of a log: which calls and instances of it count."""

from contextlib import closing

import pytest

from kairos.core import (
    SECOND,
    Arrived,
    Dispatch,
    Finished,
    InstanceJoined,
    InstanceLeft,
    PolicyChosen,
    Record,
    SetupError,
)
from kairos.observe import FactLog, note_start
from kairos.simulate.gained import RecentLog
from tests.support.simulate import build


def call(workflow, begins_s, ends_s, name=None, started_s=None, instance="a"):
    name = name or f"{workflow}-{begins_s}"
    started_at = round((begins_s if started_s is None else started_s) * SECOND)
    request = build.request(
        name, at=round(begins_s * SECOND), workflow_id=workflow, workflow_started_at=started_at
    )
    at = request.arrived_at
    return [
        Record(at, Arrived(request), (Dispatch(name, instance),)),
        Record(round(ends_s * SECOND), Finished(name, 10, 5)),
    ]


def joined(name, at_s=0):
    return Record(at_s * SECOND, InstanceJoined(build.instance(name)))


def left(name, at_s):
    return Record(at_s * SECOND, InstanceLeft(name))


@pytest.fixture
def log(tmp_path):
    def written(*records, file_bytes=1 << 20):
        in_time = sorted(records, key=lambda each: each.at)
        with closing(FactLog(tmp_path, file_bytes=file_bytes)) as facts:
            for each in in_time:
                facts(each)
                facts.flush()
        return tmp_path

    return written


def test_a_workflow_counts_if_it_began_and_ended_in_the_time(log):
    directory = log(
        joined("a"),
        *call("before", 5, 20),
        *call("whole", 11, 13),
        *call("whole", 14, 15, started_s=11),
        *call("under way", 12, 13),
        call("under way", 14, 99, started_s=12)[0],
    )
    found = RecentLog(directory, 10 * SECOND).whole_workflows()
    assert {key[1]: len(rows) for key, rows in found.items()} == {"whole": 2}


def test_of_many_calls_the_last_count_and_workflows_that_are_whole_among_them(log):
    calls = [each for n in range(20) for each in call(f"w{n}", n, n + 0.5)]
    calls += call("w3", 18.6, 18.8, started_s=3)
    found = RecentLog(log(joined("a"), *calls), 0, most_calls=5)
    assert len(found.rows) == 5
    assert found.begins_at == round(15.5 * SECOND)
    assert sorted(key[1] for key in found.whole_workflows()) == ["w16", "w17", "w18", "w19"]


def test_what_another_policy_served_before_does_not_count(log):
    chosen = Record(12 * SECOND, PolicyChosen("fcfs"))
    directory = log(joined("a"), *call("before", 11, 12.5), chosen, *call("after", 13, 14))
    found = RecentLog(directory, 10 * SECOND)
    assert found.begins_at == 12 * SECOND
    assert [key[1] for key in found.whole_workflows()] == ["after"]


def test_instances_that_joined_long_before_are_known_though_nothing_else_of_then_is(log):
    old = [each for n in range(30) for each in call(f"old{n}", n, n + 0.5)]
    directory = log(
        joined("a"), joined("b"), *old, left("b", 31), *call("new", 50, 51), file_bytes=2_000
    )
    assert len(list(directory.glob("facts-*"))) > 5
    found = RecentLog(directory, 45 * SECOND)
    assert [row.request.workflow_id for row in found.rows] == ["new"]
    assert found.at_first == {"a"}
    assert found.limits.keys() == {"a", "b"}


def test_who_comes_and_goes_is_told_and_limits_that_are_told_anew_are_no_change(log):
    directory = log(
        *(joined("a"), joined("a", 12), joined("b", 13), left("b", 15), left("a", 16)),
        *call("w", 11, 14),
    )
    found = RecentLog(directory, 10 * SECOND)
    assert found.at_first == {"a"}
    told = [(each.at // SECOND, each.what, each.instance_id) for each in found.changes]
    assert told == [(13, "join", "b"), (15, "leave", "b"), (16, "leave", "a")]


def test_a_log_that_says_nothing_of_the_time_is_refused(log, tmp_path):
    directory = log(joined("a"), *call("w", 1, 2))
    with pytest.raises(SetupError, match="says nothing of that time"):
        RecentLog(directory, 10 * SECOND)
    with pytest.raises(SetupError, match="there is no directory"):
        RecentLog(tmp_path / "none", 0)


def test_a_workflow_of_which_a_restart_lost_a_call_is_not_whole_and_its_engines_come_again(
    log, tmp_path
):
    log(joined("a"), *call("whole", 5, 20), *call("cut", 6, 7), call("cut", 8, 9)[0])
    with closing(FactLog(tmp_path)) as facts:
        note_start(facts, 100 * SECOND)
        facts(joined("b", 101))
        for each in call("after", 110, 120, instance="b"):
            facts(each)
    recent = RecentLog(tmp_path, 0)
    assert {workflow for _, workflow in recent.whole_workflows()} == {"whole", "after"}
    changes = [(each.what, each.instance_id) for each in recent.changes]
    assert changes[-2:] == [("leave", "a"), ("join", "b")]

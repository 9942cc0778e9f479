"""What happened at a time that is over, by a log."""

import json
from contextlib import closing
from datetime import UTC, datetime

import pytest
from typer.testing import CliRunner

from kairos.cli.main import app
from kairos.cli.past import happened
from kairos.core import (
    SECOND,
    Arrived,
    Dispatch,
    Failed,
    Finished,
    InstanceJoined,
    InstanceLeft,
    PolicyChosen,
    Record,
    Refuse,
    SetupError,
)
from kairos.observe import FactLog, note_start
from tests.support.simulate import build

BEGIN = 1_750_000_000


def at(seconds):
    return (BEGIN + seconds) * SECOND


def arrived(name, seconds, *commands):
    request = build.request(name, at=at(seconds), agent="writer", app="shop")
    return Record(at(seconds), Arrived(request), commands)


@pytest.fixture
def log(tmp_path):
    records = [
        Record(at(-100), InstanceJoined(build.instance("a"))),
        arrived("long", -50, Dispatch("long", "a")),
        arrived("waits", -20),
        arrived("quick", 1, Dispatch("quick", "a")),
        Record(at(2), Finished("quick", 10, 5)),
        Record(at(3), InstanceJoined(build.instance("a"))),
        Record(at(4), InstanceLeft("a")),
        Record(at(5), Failed("long", "upstream_broke_off"), (Refuse("waits", None),)),
        Record(at(6), InstanceJoined(build.instance("b"))),
        Record(at(7), PolicyChosen("fcfs")),
        arrived("last", 8),
        Record(at(30), Finished("last", 1, 1)),
    ]
    with closing(FactLog(tmp_path)) as facts:
        for each in records:
            facts(each)
    return tmp_path


def test_calls_are_counted_and_those_that_were_there_before_are_known(log):
    found = happened(log, at(0), at(10))
    assert len(found.moments) == 10
    assert [each.waiting for each in found.moments] == [1, 1, 1, 1, 1, 1, 0, 0, 1, 1]
    assert [each.running for each in found.moments] == [1, 2, 2, 1, 1, 1, 0, 0, 0, 0]
    counted = [
        sum(getattr(each, name) for each in found.moments)
        for name in ("arrived", "dispatched", "finished", "failed", "refused")
    ]
    assert counted == [2, 1, 1, 1, 1]
    assert found.instances == {"a": 2}
    assert found.failures == {"upstream_broke_off": 1, "no_instance": 1}


def test_who_came_and_went_and_what_was_chosen_is_told_and_limits_told_anew_are_not(log):
    changes = [(each.at - at(0), each.what) for each in happened(log, at(0), at(10)).changes]
    assert changes == [
        (4 * SECOND, "instance a left"),
        (6 * SECOND, "instance b joined"),
        (7 * SECOND, "the policy fcfs was chosen"),
    ]


def test_the_slowest_are_told_those_that_have_not_ended_too(log):
    slowest = happened(log, at(0), at(10)).slowest
    assert [(each.workflow_id, each.outcome, each.took_s, each.waited_s) for each in slowest] == [
        ("w-long", "failed", 55, 0),
        ("w-waits", "refused", 25, 25),
        ("w-last", "waits", 2, 2),
        ("w-quick", "finished", 1, 0),
    ]


def test_a_time_of_which_the_log_says_nothing_is_refused(log):
    with pytest.raises(SetupError, match="says nothing of that time"):
        happened(log, at(100), at(200))


def test_long_times_have_sixty_moments(log):
    found = happened(log, at(0), at(3600))
    assert len(found.moments) == 60
    assert [each.at for each in found.moments[:2]] == [at(0), at(60)]


def test_the_command_tells_it(log):
    when = datetime.fromtimestamp(BEGIN, UTC).isoformat()
    run = CliRunner().invoke(app, ["happened", when, "--log", str(log), "--seconds", "10"])
    assert run.exit_code == 0, run.output
    assert "instance a left" in run.stdout
    assert "1 calls: no_instance" in run.stdout
    run = CliRunner().invoke(app, ["happened", when, "--log", str(log), "--json"])
    assert json.loads(run.stdout)["begins_at"] == at(0)


def test_what_was_open_when_a_gateway_was_killed_has_failed_once_it_has_started_again(tmp_path):
    with closing(FactLog(tmp_path)) as facts:
        facts(Record(at(-10), InstanceJoined(build.instance("a"))))
        facts(arrived("runs", 1, Dispatch("runs", "a")))
        facts(arrived("waits", 2))
        facts(arrived("ends", 3, Dispatch("ends", "a")))
        facts(Record(at(4), Finished("ends", 10, 5)))
    with closing(FactLog(tmp_path)) as facts:
        note_start(facts, at(60))
        facts(Record(at(61), InstanceJoined(build.instance("a"))))

    found = happened(tmp_path, at(0), at(100))
    assert found.failures == {"lost_at_restart": 2}
    lost = [(call.took_s, call.outcome) for call in found.slowest if call.why == "lost_at_restart"]
    assert lost == [(3.0, "failed"), (2.0, "failed")]  # until the last that was heard of it
    assert (found.moments[-1].waiting, found.moments[-1].running) == (0, 0)
    assert [each.what for each in found.changes] == [
        "instance a left",
        "Kairos started (calls open before a restart count as failed)",
        "instance a joined",
    ]

"""The demo's one or two runs, with runs that do nothing in place of real ones."""

import json
from contextlib import asynccontextmanager

import pytest

from kairos.config import Settings
from kairos.demo import command
from kairos.demo.options import Options
from kairos.errors import SetupError
from kairos.metrics import RunMetrics

ONE = Options(apps=("qa",), workflows=2, seed=7)
BOTH = [Settings(policy="kairos"), Settings(policy="fcfs")]


class Idle:
    """A run that is over at once, with so many of the workflows finished."""

    def __init__(self, finished):
        self.finished = finished
        self.metrics = RunMetrics()
        self.outcomes = {}

    async def to_the_end(self, submissions, limit_s):
        self.submissions = submissions


@pytest.fixture
def runs(monkeypatch):
    """What becomes of the runs, in order (an error, or workflows finished); and what was asked."""
    outcomes, asked = [], []

    @asynccontextmanager
    async def started(settings, kind, seed, on_progress):
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        run = Idle(outcome)
        asked.append((settings.policy, kind, seed, run))
        yield run

    async def show_progress(*_):
        pass

    monkeypatch.setattr(command, "started", started)
    monkeypatch.setattr(command, "show_progress", show_progress)
    return outcomes, asked


async def test_each_policy_gets_a_run_of_its_own_with_the_same_tasks(runs, capsys):
    outcomes, asked = runs
    outcomes += [2, 2]

    assert await command.demo(BOTH, "sim", ONE, as_json=True)

    assert [(policy, kind, seed) for policy, kind, seed, _ in asked] == [
        ("kairos", "sim", 7),
        ("fcfs", "sim", 7),
    ]
    first, second = (run for *_, run in asked)
    assert first is not second
    assert first.submissions == second.submissions
    assert list(json.loads(capsys.readouterr().out)["runs"]) == ["kairos", "fcfs"]


@pytest.mark.parametrize("finished", [(1, 2), (2, 1)])
async def test_one_run_that_does_not_finish_is_enough_to_fail(runs, capsys, finished):
    outcomes, _ = runs
    outcomes += finished

    assert not await command.demo(BOTH, "sim", ONE, as_json=True)

    policy = ("kairos", "fcfs")[finished.index(1)]
    said = capsys.readouterr().err
    assert f"1 of 2 workflows did not finish in time under {policy};" in said
    assert said.count("did not finish") == 1


async def test_the_first_run_is_shown_though_the_second_cannot_start(runs, capsys):
    outcomes, _ = runs
    outcomes += [2, SetupError("no engine")]

    with pytest.raises(SetupError, match="no engine"):
        await command.demo(BOTH, "sim", ONE, as_json=True)

    shown = json.loads(capsys.readouterr().out)
    assert list(shown["runs"]) == ["kairos"]
    assert shown["ratio"] == {}


async def test_one_run_alone_is_no_comparison(runs, capsys):
    outcomes, _ = runs
    outcomes += [2]

    assert await command.demo(BOTH[:1], "sim", ONE, as_json=True)

    assert json.loads(capsys.readouterr().out)["workflows"] == 0

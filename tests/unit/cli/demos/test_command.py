"""The demo's one or two runs, with runs that do nothing in place of real ones."""

import json
from contextlib import asynccontextmanager

import msgspec
import pytest

from kairos.cli.demo import Demo
from kairos.cli.demos import command, gain
from kairos.core import RunMetrics, SetupError
from kairos.settings import Settings

ONE = Demo(apps="qa", workflows=2, seed=7, as_json=True)
BOTH = [Settings(policy="kairos"), Settings(policy="fcfs")]


class Idle:
    """A run that ends at once, with this many workflows finished."""

    def __init__(self, finished):
        self.finished = finished
        self.metrics = RunMetrics()
        self.outcomes = {}

    def start(self):
        pass

    async def to_the_end(self, submissions, limit_s, turn=(0, 1)):
        self.submissions, self.turn = submissions, turn


@pytest.fixture
def runs(monkeypatch):
    """What becomes of the runs, in order (an error, or workflows finished); and what was asked."""
    outcomes, asked = [], []

    @asynccontextmanager
    async def started(settings, kind, seed, on_progress, engines=2):
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        run = Idle(outcome)
        asked.append((settings.policy, kind, seed, run))
        yield run

    async def show_progress(*_):
        pass

    monkeypatch.setattr(gain, "SEEDS", 3)

    monkeypatch.setattr(command, "started", started)
    monkeypatch.setattr(command, "show_progress", show_progress)
    return outcomes, asked


async def test_both_orders_are_run_at_once_with_the_same_tasks_and_each_is_first_in_turn(
    runs, capsys
):
    outcomes, asked = runs
    outcomes += [2, 2]

    assert await command.demo(BOTH, "sim", ONE)

    assert [(policy, kind, seed) for policy, kind, seed, _ in asked] == [
        ("kairos", "sim", 7),
        ("fcfs", "sim", 7),
    ]
    first, second = (run for *_, run in asked)
    assert first is not second
    assert first.submissions == second.submissions
    assert (first.turn, second.turn) == ((0, 2), (1, 2))
    printed = json.loads(capsys.readouterr().out)
    assert list(printed["runs"]) == ["kairos", "fcfs"]
    assert printed["simulated"]["policies"] == ["kairos", "fcfs"]


async def test_engines_that_are_not_started_here_have_one_order_after_the_other(runs, capsys):
    outcomes, asked = runs
    outcomes += [2, 2]

    assert await command.demo(BOTH, None, ONE)

    assert [run.turn for *_, run in asked] == [(0, 1), (0, 1)]
    assert "simulated" not in json.loads(capsys.readouterr().out)


async def test_tasks_that_did_not_end_are_named_and_no_times_are_compared(runs, capsys):
    outcomes, _ = runs
    outcomes += [1, 2]

    assert await command.demo(BOTH, "sim", msgspec.structs.replace(ONE, as_json=False))

    printed = capsys.readouterr()
    assert "1 of 2 workflows did not finish in time under kairos;" in printed.err
    assert printed.err.count("did not finish") == 1
    assert "are not compared" in printed.out
    assert "Under kairos a task takes" in printed.out  # the verdict does not depend on the runs


async def test_two_orders_of_which_one_ended_nothing_are_a_failure(runs):
    outcomes, _ = runs
    outcomes += [0, 2]
    assert not await command.demo(BOTH, "sim", ONE)


async def test_the_first_run_is_shown_though_the_second_cannot_start(runs, capsys):
    outcomes, _ = runs
    outcomes += [2, SetupError("no engine")]

    with pytest.raises(SetupError, match="no engine"):
        await command.demo(BOTH, None, ONE)

    shown = json.loads(capsys.readouterr().out)
    assert list(shown["runs"]) == ["kairos"]
    assert shown["ratio"] == {}


async def test_one_run_alone_is_no_comparison(runs, capsys):
    outcomes, _ = runs
    outcomes += [2]

    assert await command.demo(BOTH[:1], "sim", ONE)

    assert json.loads(capsys.readouterr().out)["workflows"] == 0

"""What Kairos gained: a log that a simulation wrote, of which the truth is known."""

import json
import re
from contextlib import closing
from statistics import fmean

import msgspec
import pytest

from kairos.core import PLACEMENTS, POLICIES, SECOND, Interval, SetupError
from kairos.engines import load_profile
from kairos.observe import FactLog
from kairos.simulate import World, draw_arrivals, draw_submissions, measure_gain
from kairos.simulate.gained import BASELINES, KAIROS, Decided, _verdict, others_of
from kairos.simulate.workload.application import generated_calls, load_application
from kairos.simulate.workload.workflows import workflow
from tests.support.cli.command import invoke

FCFS = Decided("fcfs", "round-robin")


def planned(count=60, per_s=0.9):
    generated = (generated_calls(load_application(name), count, 1) for name in ("qa", "cg"))
    workflows = [workflow(calls) for app_of in generated for calls in app_of]
    return draw_submissions(workflows, draw_arrivals("poisson", count, per_s, 1), 1)


def played(plan, decided, *observers):
    engines = {f"engine-{n}": load_profile("a40-llama3-8b") for n in range(2)}
    policy, placement = POLICIES[decided.policy], PLACEMENTS[decided.placement]
    world = World(plan, engines, policy, placement, observers=observers)
    world.run()
    ended = {name: at for (_, name), at in world.metrics.ended.items()}
    return fmean((ended[each.workflow.id] - each.at_us) / SECOND for each in plan)


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """The log of a pool that served first come, first served; how long workflows took, and would
    have taken."""
    directory, plan = tmp_path_factory.mktemp("log"), planned()
    with closing(FactLog(directory)) as log:
        was = played(plan, FCFS, log)
    return directory, was, played(plan, KAIROS)


def test_what_served_is_predicted_and_so_is_what_another_policy_would_have_done(served):
    directory, was, would_have = served
    told = []
    found = measure_gain(directory, 0, *msgspec.structs.astuple(FCFS), told.append, [KAIROS])
    assert found.workflows == 60
    assert found.share == 1
    assert found.actual_mean_s == pytest.approx(was, rel=1e-3)
    assert abs(found.mean_off) < 0.1
    assert found.trust == "good"
    assert found.engines_off < 0.15
    (kairos,) = found.others
    assert kairos.mean_s == pytest.approx(would_have, rel=0.1)
    assert kairos.times.low <= kairos.times.mean <= kairos.times.high
    assert kairos.times.mean == pytest.approx(kairos.mean_s / found.ran.mean_s, rel=0.05)
    assert told == sorted(told)
    assert told[-1] <= 1
    delays = [each.others_s[0] - each.ran_s for each in found.by_workflow]
    assert delays == sorted(delays, reverse=True)


def test_the_same_log_gives_the_same_answer(served):
    first, second = (
        measure_gain(served[0], 0, *msgspec.structs.astuple(FCFS), lambda _: None, [KAIROS])
        for _ in range(2)
    )
    assert first == second


def test_too_few_workflows_are_refused(served):
    with pytest.raises(SetupError, match=r"[0-3] workflows began and ended in this time"):
        measure_gain(
            served[0],
            last_end(served[0]) - SECOND * 10,
            *msgspec.structs.astuple(FCFS),
            lambda _: None,
            [KAIROS],
        )


def last_end(directory):
    lines = max(directory.glob("facts-*")).read_bytes().splitlines()
    return max(json.loads(line)["at"] for line in lines if b'"type":"Finished"' in line)


def test_what_is_asked_about_is_never_what_served():
    assert others_of(KAIROS) == [*BASELINES, Decided("fcfs", "kairos")]
    assert others_of(FCFS) == [KAIROS, Decided("fcfs", "least-kv")]


@pytest.mark.parametrize(
    ("times", "off", "verdict"),
    [
        (Interval(1.3, 1.2, 1.4), 0.02, "slower"),
        (Interval(0.7, 0.6, 0.8), -0.02, "quicker"),
        (Interval(1.3, 0.9, 1.4), 0.02, "no difference"),
        (Interval(1.05, 1.02, 1.08), 0.06, "no difference"),
        (Interval(1.5, 1.4, 1.6), 0.3, "not known"),
        (None, 0.0, "not known"),
    ],
)
def test_a_difference_counts_beyond_its_interval_and_the_models_own_error(times, off, verdict):
    assert _verdict(times, off) == verdict


def test_the_command_tells_it_and_how_far_the_model_is_to_be_trusted(served):
    asked = ["gained", "--log", str(served[0]), "--since", "all", "--policy", "fcfs"]
    run = invoke(*asked, "--placement", "round-robin")
    assert run.exit_code == 0, run.output
    assert re.search(r"fcfs +│ round-robin .* what served", run.stdout)
    assert "trust in it is good" in " ".join(run.stdout.split())
    run = invoke(*asked, "--placement", "round-robin", "--json")
    assert json.loads(run.stdout)["workflows"] == 60
    wrong = invoke(*asked, "--placement", "nowhere")
    assert isinstance(wrong.exception, SetupError)

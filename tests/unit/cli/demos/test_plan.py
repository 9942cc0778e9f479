import pytest

from kairos.cli.demo import Demo
from kairos.cli.demos.plan import plan_submissions
from kairos.simulate import draw_arrivals, plan_arrivals


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("KAIROS_HOME", str(tmp_path))


def planned(**options):
    chosen = Demo(**options)
    arrivals = plan_arrivals(chosen.arrivals, chosen.workflows, chosen.rate, chosen.seed)
    return plan_submissions(chosen, arrivals.at_us)


def test_the_same_seed_plans_the_same_and_another_does_not():
    assert planned(seed=3) == planned(seed=3)
    assert [s.question for s in planned(seed=3)] != [s.question for s in planned(seed=4)]
    assert [s.at_us for s in planned(seed=3)] != [s.at_us for s in planned(seed=4)]


def test_the_right_answer_is_kept_from_the_agents():
    by_app = {s.app.name: s.value for s in planned()}

    assert set(by_app["qa"]) == set(by_app["rg"]) == {"text"}
    assert set(by_app["cg"]) == {"text", "tests", "entry_point"}


def test_without_the_trace_arrivals_are_generated_like_it():
    plan = plan_arrivals("azure-conv", 50, 2.0, 5)

    assert plan.at_us == draw_arrivals("azure-conv", 50, 2.0, 5)
    assert "kairos traces fetch azure-conv" in plan.source
    assert plan.trace == {"cv": 1.09, "index_of_dispersion": {1: 1.39, 10: 3.86, 60: 16.1}}
    assert plan.here["cv"] is not None

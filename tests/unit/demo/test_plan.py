from collections import Counter

import pytest

from agents import inputs
from kairos.demo.options import Options
from kairos.demo.plan import plan_arrivals, plan_submissions
from kairos.tools.traces import fetch
from kairos.workload import arrivals


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("KAIROS_HOME", str(tmp_path))


def planned(**options):
    chosen = Options(**options)
    return plan_submissions(chosen, plan_arrivals(chosen).at_us)


def test_the_same_seed_plans_the_same_and_another_does_not():
    assert planned(seed=3) == planned(seed=3)
    assert [s.question for s in planned(seed=3)] != [s.question for s in planned(seed=4)]
    assert [s.at_us for s in planned(seed=3)] != [s.at_us for s in planned(seed=4)]


def test_the_longer_an_applications_workflows_the_fewer_there_are():
    submissions = planned(workflows=12)

    assert Counter(s.app.name for s in submissions) == {"qa": 6, "rg": 4, "cg": 2}
    assert [s.app.name for s in submissions] != sorted(s.app.name for s in submissions)
    assert {s.app.name for s in planned(apps=("rg",), workflows=3)} == {"rg"}


def test_the_right_answer_is_kept_from_the_agents():
    by_app = {s.app.name: s.value for s in planned()}

    assert set(by_app["qa"]) == set(by_app["rg"]) == {"text"}
    assert set(by_app["cg"]) == {"text", "tests", "entry_point"}


def test_more_tasks_than_inputs_begin_again():
    questions = [s.question for s in planned(apps=("rg",), workflows=40)]

    assert len(questions) == 40
    assert set(questions) == {task.text for task in inputs.load("rg")}


def test_without_the_trace_arrivals_are_generated_like_it():
    plan = plan_arrivals(Options(workflows=50, rate_per_s=2.0, seed=5))

    assert plan.at_us == arrivals("azure-conv", 50, 2.0, 5)
    assert "kairos traces fetch azure-conv" in plan.source
    assert plan.trace == {"cv": 1.09, "index_of_dispersion": {1: 1.39, 10: 3.86, 60: 16.1}}
    assert plan.here["cv"] is not None


def test_the_trace_itself_is_used_once_it_has_been_fetched(data):
    generated = plan_arrivals(Options())
    fetch("azure-conv", data)
    plan = plan_arrivals(Options())

    assert plan.source == "the trace itself"
    assert plan.at_us != generated.at_us
    assert plan_arrivals(Options(arrivals="azure-code")).source != "the trace itself"


def test_data_sets_of_one_application_are_mixed_in_equal_parts(data):
    sources = {}
    for name in ("gsm8k_test", "mmlu_history"):
        fetch(name, data)
        sources[name] = {task.text for task in inputs.load("qa", name)}

    submissions = planned(workflows=24, inputs=("gsm8k_test", "mmlu_history"))

    questions = [s.question for s in submissions if s.app.name == "qa"]
    assert Counter(n for q in questions for n in sources if q in sources[n]) == {
        "gsm8k_test": 6,
        "mmlu_history": 6,
    }
    topics = {s.question for s in submissions if s.app.name == "rg"}
    assert topics <= {task.text for task in inputs.load("rg")}

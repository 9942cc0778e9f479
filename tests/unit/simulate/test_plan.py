"""What a simulation is made of: a trace, workflow files, a scenario, and instances."""

import msgspec
import pytest

from kairos.core import SECOND, InvalidFile, SetupError
from kairos.engines import load_profile
from kairos.simulate import Load, offered_workload
from kairos.simulate.plan import SimulationPlan, check_fits, holds, planner, scenario_planner
from kairos.simulate.workload.arrival_process import measure_burstiness
from kairos.simulate.workload.scenario import read
from kairos.simulate.workload.workflow_file import write_workflows
from kairos.simulate.world import WorldEvent
from tests.support.simulate import worlds
from tests.support.simulate.worlds import recorded_call

ENGINE = "a40-llama3-8b"
TRACE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.0000000,374,44
2023-11-16 18:17:04.0000000,396,109
2023-11-16 18:17:07.0000000,879,55
"""


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "conv.csv"
    path.write_text(TRACE)
    return path


def planned(load_, seed=1):
    return planner(offered_workload(load_), 2, ENGINE)(seed)


def at_s(plan):
    return [each.at_us / SECOND for each in plan.submissions]


def test_each_request_of_a_trace_is_a_workflow_at_its_own_instant(trace):
    plan = planned(Load(workflows=trace))

    assert at_s(plan) == [0, 1, 4]
    assert list(plan.instances) == ["engine-0", "engine-1"]
    assert plan.instances["engine-0"] == load_profile(ENGINE)
    [call] = plan.submissions[1].workflow.calls
    assert (call.app, call.agent, call.prompt_tokens, call.completion_tokens) == (
        "conv",
        "conv",
        396,
        109,
    )
    assert len({each.workflow.id for each in plan.submissions}) == 3
    assert plan.submissions[0].workflow.prompts != plan.submissions[1].workflow.prompts


def test_a_rate_stretches_the_trace_and_a_count_cuts_it(trace):
    """2 gaps in 4 s are 0.5 arrivals per second."""
    assert at_s(planned(Load(workflows=trace, rate_per_s=1.0))) == [0, 0.5, 2]
    assert at_s(planned(Load(workflows=trace, count=2))) == [0, 1]
    assert planned(Load(workflows=trace, rate_per_s=1.0)).time_scale == 0.5


@pytest.mark.parametrize("rate", [2.0, pytest.param(None, marks=pytest.mark.long)])
def test_the_burstiness_of_a_stretched_trace_is_that_of_the_trace(data, rate):
    path = data / "azure" / "AzureLLMInferenceTrace_conv.csv.gz"
    plan = planned(Load(workflows=path, rate_per_s=rate, max_context=8192))
    told = measure_burstiness([each.at_us for each in plan.submissions], plan.time_scale)
    assert round(told["cv"], 2) == 1.09
    for window, expected in {1: 1.39, 10: 3.86, 60: 16.1}.items():
        assert told["index_of_dispersion"][window] == pytest.approx(expected, rel=0.02)


def test_the_lengths_of_a_trace_may_arrive_otherwise(trace):
    load_ = Load(workflows=trace, arrivals="poisson", rate_per_s=3.0, count=7)
    first, second = (planned(load_, seed) for seed in (1, 2))

    assert len(first.submissions) == 7
    assert at_s(first) != at_s(second)
    assert {each.workflow.calls[0].prompt_tokens for each in first.submissions} == {374, 396, 879}


def test_workflows_may_arrive_as_in_a_trace(trace, tmp_path):
    path = tmp_path / "workflows.jsonl"
    write_workflows(path, [recorded_call(f"w{n}") for n in range(3)])

    plan = planned(Load(workflows=path, arrivals=str(trace), rate_per_s=1.0))

    assert at_s(plan) == [0, 0.5, 2]
    assert sorted(each.workflow.id for each in plan.submissions) == ["w0", "w1", "w2"]


def test_a_request_without_tokens_is_refused_with_its_line(trace):
    trace.write_text(TRACE.replace(",109", ",0"))
    with pytest.raises(InvalidFile, match=r"conv\.csv:3: "):
        planned(Load(workflows=trace))


def test_an_engine_holds_whole_blocks_and_no_more_than_its_model():
    engine = worlds.profile(kv=95)
    assert holds(engine) == 90
    assert holds(msgspec.structs.replace(engine, max_model_len=50)) == 50


def test_a_call_must_fit_the_largest_instance_to_the_token():
    small, large = worlds.profile(kv=50), worlds.profile(kv=90)
    fits, over = (worlds.submission("w", worlds.call(tokens, prompt=80)) for tokens in (10, 11))
    instances = {"i": small, "j": large}

    check_fits(SimulationPlan(submissions=[fits], instances=instances))
    with pytest.raises(SetupError, match=r"80 \+ 11 = 91 tokens.*takes 90.*--max-context 90"):
        check_fits(SimulationPlan(submissions=[fits, over], instances=instances))


SCENARIO = """
workflows = 5
seed = 7
arrivals = { rate_per_s = 2, process = "poisson" }
apps = [{ app = "qa" }]
instances = [
    { profile = "a40-llama3-8b", count = 2, kv_tokens = 50000 },
    { profile = "h200-llama3-8b", max_num_seqs = 3 },
]
events = [
    { at_s = 2.5, what = "fail", instance = 0 },
    { at_s = 4, what = "recover", instance = 0 },
    { at_s = 1, what = "join", instance = 2 },
    { at_s = 3, what = "slow", instance = 1, factor = 1.5 },
]
"""


def test_an_instance_of_a_scenario_that_holds_no_block_is_refused(tmp_path):
    path = tmp_path / "scenario.toml"
    path.write_text(SCENARIO.replace("50000", "16"))
    assert scenario_planner(read(path))
    path.write_text(SCENARIO.replace("50000", "15"))
    with pytest.raises(SetupError, match=r"kv_tokens = 15 of a40-llama3-8b .* give 16 or more"):
        scenario_planner(read(path))


def test_a_scenario_names_its_instances_by_number_and_what_happens_to_them(tmp_path):
    path = tmp_path / "scenario.toml"
    path.write_text(SCENARIO)
    plan = scenario_planner(read(path))(7)

    a40, h200 = load_profile(ENGINE), load_profile("h200-llama3-8b")
    less = msgspec.structs.replace(a40, kv_tokens=50000)
    assert plan.instances == {
        "engine-0": less,
        "engine-1": less,
        "engine-2": msgspec.structs.replace(h200, max_num_seqs=3),
    }
    assert list(plan.happenings) == [
        WorldEvent(at_us=1_000_000, what="join", instance_id="engine-2"),
        WorldEvent(at_us=2_500_000, what="fail", instance_id="engine-0"),
        WorldEvent(at_us=3_000_000, what="slow", instance_id="engine-1", factor=1.5),
        WorldEvent(at_us=4_000_000, what="join", instance_id="engine-0"),
    ]
    assert len(plan.submissions) == 5
    assert {each.workflow.app for each in plan.submissions} == {"qa"}
    assert (
        at_s(plan) == at_s(scenario_planner(read(path))(7)) != at_s(scenario_planner(read(path))(8))
    )

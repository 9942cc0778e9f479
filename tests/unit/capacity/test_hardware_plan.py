"""`kairos plan-hardware`, from the file to the table, the JSON and the picture."""

import json

import pytest

from kairos.capacity import hardware_options as module
from kairos.capacity import pool_simulation
from kairos.capacity.engine_rates import derived, measured_rates
from kairos.capacity.hardware_options import load_catalogue
from kairos.capacity.pool_simulation import engine_profile
from kairos.core import InvalidFile, SetupError
from kairos.simulate import load_workflows, workflows_of_flow
from tests.support.capacity.planner import call, run
from tests.support.simulate.model import write_workflows

# Arithmetic and bandwidth that are bought apart.
APART = """
[[accelerator]]
name = "thinker"
vendor = "none"
memory_gb = 100
bandwidth_gb_s = 900
tflops = { bf16 = 2000 }
watts = 100
source = "made up"
date = "2026-01"
bought = { usd = 10000, source = "made up", date = "2026-01" }

[[accelerator]]
name = "reader"
vendor = "none"
memory_gb = 100
bandwidth_gb_s = 4000
tflops = { bf16 = 100 }
watts = 100
source = "made up"
date = "2026-01"
bought = { usd = 10000, source = "made up", date = "2026-01" }
"""


@pytest.fixture
def export(tmp_path):
    """Forty workflows of two calls, ten seconds from each to the next."""
    path = tmp_path / "day.jsonl"
    write_workflows(
        path,
        (
            each
            for i in range(40)
            for each in (
                call(f"w{i}", 0, "plan", 2000, 100 + i, workflow_start_ms=i * 10_000),
                call(f"w{i}", 1, "write", 500, 900, gap_ms=500, workflow_start_ms=i * 10_000,
                     cached_prefix_tokens=100),
            )
        ),
    )  # fmt: skip
    return path


def test_the_plan_as_json_has_what_the_choice_rests_on(export):
    found = json.loads(
        run("--export", export, "--hardware", "h100,gaudi3", "--max-devices", 2,
            "--target", "p95=20s", "--what-if", "load=100", "--json").stdout
    )  # fmt: skip
    assert found["met"]
    assert found["workflows_per_s"] == pytest.approx(40 / 390, rel=1e-4)
    chosen = found["chosen"]
    assert chosen in found["front"]
    assert chosen["p95_s"] <= 20
    assert chosen["usd_per_hour"] == pytest.approx(
        sum(each["count"] * each["usd_per_hour"] for each in chosen["instances"])
    )
    assert all(each["rests_on"] and not each["measured"] for each in chosen["instances"])
    assert set(chosen["routes"]) == {"docs/plan", "docs/write"}
    nodes = {each["name"]: each for each in found["graph"]["nodes"]}
    assert nodes["docs/write.decode"]["places"] == chosen["routes"]["docs/write"]
    tool = nodes["before docs/write"]
    assert tool["places"] == {"cpu workers": 1.0}
    assert tool["at_once"] == pytest.approx(0.5 * 40 / 390, abs=0.001)  # half a second each
    assert found["what_if"]["load=100"]["usd_per_hour"] > chosen["usd_per_hour"]


def test_the_plan_as_tables_says_what_to_have_and_what_runs_where(export):
    found = run("--export", export, "--hardware", "gaudi3,l40s", "--no-pairs", "--max-devices", 1)
    assert "What to have" in found.stdout
    assert "docs/plan, docs/write" in found.stdout
    assert "derived; bought: Intel, Gaudi 3 at Hot Chips 2024" in found.stdout
    assert "left out" not in found.stdout
    assert "No pool is within" not in found.stdout
    late = run("--export", export, "--hardware", "gaudi3", "--no-pairs", "--max-devices", 1,
               "--target", "p95=10ms")  # fmt: skip
    assert "No pool is within target and budget" in late.stdout
    assert "Nothing is within 0.01 s; the quickest is" in late.stdout
    assert (found.exit_code, late.exit_code) == (0, 3)
    poor = run("--export", export, "--hardware", "gaudi3", "--no-pairs", "--max-devices", 1,
               "--budget", 0.5)  # fmt: skip
    assert "Nothing is within 0.5 USD/h; the cheapest that serves the load is 1 x" in poor.stdout
    assert poor.exit_code == 3


def test_a_measured_profile_takes_the_place_of_a_data_sheet(export):
    found = json.loads(
        run("--export", export, "--hardware", "a40", "--no-pairs", "--max-devices", 1,
            "--profile", "a40=cpu-tiny", "--rate", 0.01, "--json").stdout
    )  # fmt: skip
    [instance] = found["chosen"]["instances"]
    assert (instance["measured"], instance["rests_on"]) == (True, "profile cpu-tiny")


def test_a_pool_has_no_more_kinds_of_instance_than_asked_for(export):
    found = json.loads(
        run("--export", export, "--hardware", "h100,gaudi3,a40", "--max-devices", 1, "--rate", 20,
            "--max-kinds", 1, "--json").stdout
    )  # fmt: skip
    assert {len(each["instances"]) for each in found["front"]} == {1}


def test_g8_prices_and_terms_are_inputs(export):
    def usd(*words):
        said = run("--export", export, "--hardware", "h100", "--no-pairs", "--max-devices", 1,
                   "--json", *words).stdout  # fmt: skip
        return json.loads(said)["chosen"]["usd_per_hour"]

    assert usd() == pytest.approx(1.1161, abs=1e-4)
    assert usd("--prices", "rented") == 3.99
    assert usd("--years", 8, "--interest", 0, "--usd-per-kwh", 0) == pytest.approx(
        25000 / 96 / 730, abs=1e-4
    )


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--target", "p95=fast"), "'p95=fast' is not a target: write p95=30s"),
        (("--target", "p50=3s"), "'p50=3s' is not a target"),
        (("--target", "p95=0s"), "'p95=0s' is not a target"),
        (("--rate", "0"), "--rate is 0; give more than 0"),
        (("--budget", "-1"), "--budget is -1"),
        (("--model", "gpt"), "no model 'gpt'; it has"),
        (("--hardware", "h300"), "no accelerator 'h300'"),
        (("--profile", "a40"), "write --profile DEVICE=PROFILE"),
        (("--profile", "b999=cpu-tiny"), "--profile names b999"),
        (("--profile", "a40=none"), "there is no profile 'none'"),
        (("--precision", "int3"), "does not compute in int3"),
        (("--years", "0"), "years must be above 0"),
        (("--what-if", "moon=2"), "'moon=2': write load=2"),
        (("--what-if", "price:b999=2"), "b999 is not among the hardware"),
    ],
)
def test_what_makes_no_sense_is_refused_with_what_to_do(export, words, problem):
    with pytest.raises(SetupError, match=problem):
        run("--export", export, *words)


def test_a_file_that_is_none_is_refused(tmp_path):
    with pytest.raises(InvalidFile, match="No such file"):
        run("--export", tmp_path / "none.jsonl")


def test_without_times_the_rate_must_be_given(tmp_path):
    path = tmp_path / "day.jsonl"
    write_workflows(path, [call("w", 0, "plan", 10, 10)])
    with pytest.raises(SetupError, match="give --rate"):
        run("--export", path)


def test_the_busiest_ten_minutes_are_planned_for(tmp_path):
    path = tmp_path / "day.jsonl"
    starts = [*range(0, 7_200_000, 600_000), *range(3_600_000, 3_700_000, 1000)]
    write_workflows(
        path,
        (call(f"w{i}", 0, "a", 10, 10, workflow_start_ms=at) for i, at in enumerate(starts)),
    )
    assert module.busiest_rate(load_workflows(path)) == pytest.approx(102 / 600)


def test_agents_beyond_the_most_are_pooled(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MAX_AGENTS", 1)
    path = tmp_path / "day.jsonl"
    write_workflows(
        path, [call("w", 0, "plan", 10, 10), call("w", 1, "a", 9, 9), call("w", 2, "b", 9, 9)]
    )
    [calls] = module.observed_calls(load_workflows(path))
    assert [each.agent for each in calls] == ["docs/plan", "(others)", "(others)"]
    assert [each.after for each in calls] == [(), (0,), (1,)]


def test_one_thing_is_multiplied(export):
    options = module.HardwareOptions(
        export=export, models=["llama-3-8b"], targets=["p95=20s,ttft=250ms"]
    )
    asked = module.read_question(options, module.planned_workflows(options))
    assert asked.targets.ttft_s == 0.25
    assert module.change_question(asked, "load=2").workflows_per_s == 2 * asked.workflows_per_s
    assert module.change_question(asked, "target=0.5").p95_s == 10
    assert module.change_question(asked, "link=0.25").link.gbit_s == 100
    dear = module.change_question(asked, "price:h100=2").offer.devices
    assert {each.name: each.bought.usd for each in dear if each.name == "h100"} == {"h100": 50_000}


def test_the_chosen_pool_is_simulated_on_demand(export):
    words = ("--export", export, "--hardware", "h100", "--no-pairs", "--max-devices", 1,
             "--rate", 2, "--simulate")  # fmt: skip
    found = json.loads(run(*words, "--json").stdout)
    count = found["simulated"]["workflows"]
    assert count == pytest.approx(910, rel=0.05)
    assert found["chosen"]["mean_s"] == pytest.approx(found["simulated"]["mean_s"], rel=0.1)
    assert found["chosen"]["p95_s"] == pytest.approx(found["simulated"]["p95_s"], rel=0.2)
    assert f"Simulated with {count} workflows" in run(*words).stdout


def test_pools_that_are_busier_than_was_compared_with_simulation_are_marked(export):
    words = ("--export", export, "--hardware", "h100", "--no-pairs", "--max-devices", 1)
    busy = json.loads(run(*words, "--rate", 100, "--json").stdout)
    for each in busy["front"]:
        assert each["checked"] == all(part["utilisation"] <= 0.8 for part in each["instances"])
    assert not busy["chosen"]["checked"]
    said = run(*words, "--rate", 100).stdout
    assert "*?" in said
    assert "busier than 80%, where planned times were not compared" in said
    calm = run(*words, "--rate", 2).stdout
    assert "*?" not in calm
    assert "were not compared" not in calm


def test_g10_a_chosen_pair_is_simulated_within_20_percent_of_what_is_planned(tmp_path, monkeypatch):
    monkeypatch.setattr(pool_simulation, "STAYS", 12)
    calls = [call(f"w{i}", 0, "plan", 3000 + 40 * i, 80 + i) for i in range(40)]
    write_workflows(tmp_path / "day.jsonl", calls)
    (tmp_path / "own.toml").write_text(APART)
    words = ("--export", tmp_path / "day.jsonl", "--catalogue", tmp_path / "own.toml",
             "--hardware", "thinker,reader", "--max-devices", 1, "--rate", 50,
             "--simulate", "--json")  # fmt: skip
    found = json.loads(run(*words).stdout)
    chosen, simulated = found["chosen"], found["simulated"]

    assert {each["phases"]: each["device"] for each in chosen["instances"]} == {
        "prefill": "thinker",
        "decode": "reader",
    }
    assert chosen["mean_s"] == pytest.approx(simulated["mean_s"], rel=0.15)
    assert chosen["p95_s"] == pytest.approx(simulated["p95_s"], rel=0.2)


def test_pipelines_cannot_be_simulated():
    known = load_catalogue()
    rates = derived(known.accelerator_named("h100"), known.model_named("llama-3-8b"), pipeline=2)
    with pytest.raises(SetupError, match="is a pipeline"):
        engine_profile(rates, "h100-pp2", 4096)


def test_a_simulated_engine_has_the_rates_of_the_plan():
    known = load_catalogue()
    rates = derived(known.accelerator_named("a40"), known.model_named("llama-3-8b"))
    found = measured_rates(engine_profile(rates, "a40", 8192))
    for field in ("fixed_s", "weights_s", "prefill_token_s", "decode_seq_s", "kv_token_s"):
        assert getattr(found, field) == pytest.approx(getattr(rates, field))
    assert found.kv_tokens == int(rates.kv_tokens) // 16 * 16


FLOW = """
flow: two
defaults: {max_tokens: 40}
operators:
  row: {kind: input}
  summary: {kind: llm, prompt: "{{ row.text }} Summarise it."}
  answer: {kind: llm, prompt: "{{ summary }} Is it good?"}
outputs: {summary: summary, answer: answer}
"""


@pytest.fixture
def flow(tmp_path):
    """Thirty rows; two and two have the same text."""
    (tmp_path / "two.yaml").write_text(FLOW)
    rows = [{"text": f"{i // 2} " * 400} for i in range(30)]
    lines = "".join(json.dumps(each) + "\n" for each in rows)
    (tmp_path / "rows.jsonl").write_text(lines)
    return tmp_path / "two.yaml", "--inputs", tmp_path / "rows.jsonl"


def test_hardware_is_planned_for_a_declared_flow_from_its_rows(flow):
    found = json.loads(
        run(*flow, "--rate", 3, "--hardware", "h100", "--max-devices", 1, "--json").stdout
    )

    assert found["workflows_per_s"] == 3
    assert set(found["chosen"]["routes"]) == {"two/summary", "two/answer"}
    assert found["met"]


def test_the_calls_of_a_flow_are_those_of_its_rows_and_equal_ones_are_made_once(flow):
    path, _, inputs = flow
    made = workflows_of_flow(path, inputs, None)

    assert len(made) == 15
    assert [[call.agent for call in each.calls] for each in made] == [["summary", "answer"]] * 15
    assert all(each.waits_for == ((), (0,)) for each in made)
    assert all(200 <= each.calls[0].prompt_tokens <= 350 for each in made)
    assert all(1 <= call.completion_tokens <= 40 for each in made for call in each.calls)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "say what is to be served"),
        (("FLOW", "--export", "EXPORT"), "say what is to be served"),
        (("--export", "EXPORT", "--inputs", "ROWS"), "of a FLOW"),
        (("FLOW", "--inputs", "ROWS"), "give --rate"),
        (("FLOW", "--rate", "1"), "--inputs FILE"),
    ],
)
def test_what_is_planned_for_is_an_export_or_a_flow_with_its_rows(flow, export, words, said):
    named = {"FLOW": flow[0], "EXPORT": export, "ROWS": flow[2]}
    with pytest.raises(SetupError, match=said):
        run(*(named.get(each, each) for each in words))


def test_cached_tokens_count_in_whole_blocks(export):
    calls = [call for each in module.observed_calls(load_workflows(export)) for call in each]
    assert {call.cached_tokens for call in calls} == {0, 96}  # of 100

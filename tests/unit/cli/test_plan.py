"""`kairos plan`, which asks no engine."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kairos.cli.flow_options import PASS_NAMES
from kairos.cli.main import app
from kairos.core import KairosError, SetupError
from kairos.workflows import Passes

FLOW = """
flow: reports
operators:
  row: {kind: input}
  summary: {kind: llm, prompt: "Summarise {{ row.text }}", max_tokens: 10}
  again: {kind: llm, prompt: "Summarise {{ row.text }}", max_tokens: 10}
  never: {kind: llm, prompt: "{{ row.text }}?"}
  answer: {kind: llm, prompt: "{{ summary }} {{ again }} {{ row.question }}", max_tokens: 10}
outputs: {answer: answer}
"""
ROWS = [{"text": f"report {n // 5}", "question": f"question {n}"} for n in range(10)]


@pytest.fixture
def planned(tmp_path):
    (tmp_path / "f.yaml").write_text(FLOW)
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))

    def planned(*options):
        options = [option.replace("ROWS", str(tmp_path / "rows.jsonl")) for option in options]
        result = CliRunner().invoke(app, ["plan", str(tmp_path / "f.yaml"), *options])
        if result.exception is not None:
            raise result.exception
        return result.output

    return planned


def test_it_says_what_is_left_out_and_merged_and_how_many_calls_are_left(planned):
    said = planned("--inputs", "ROWS")

    assert "left out, since no output needs it: never" in said
    assert "merged: again is computed as summary" in said
    assert "columns needed: question, text; columns written: answer" in said
    assert "summary: llm; after row; equal calls made once" in said
    assert "2 calls, 8 merged" in said
    assert "for 10 rows: 12 calls" in said


def test_passes_can_be_switched_off(planned):
    left = ", ".join(name for name in PASS_NAMES if name != "cse")
    assert f"passes: {left}" in planned("--without", "cse")
    assert "for 10 rows: 40 calls" in planned(
        "--inputs", "ROWS", "--without", "cse", "--without", "prune"
    )
    with pytest.raises(SetupError, match=f"--without magic: there are {', '.join(PASS_NAMES)}"):
        planned("--without", "magic")


def test_a_program_gets_json(planned):
    told = json.loads(planned("--json", "--inputs", "ROWS"))

    assert told["pruned"] == ["never"]
    assert told["prediction"]["by_operator"]["summary"]["calls"] == 2


def test_a_table_without_a_column_that_is_needed_is_refused(planned, tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"text": "t", "questions": []}\n')

    with pytest.raises(
        SetupError, match="no column 'question', which the flow needs; it has 'text'"
    ):
        planned("--inputs", "ROWS")


HOST = """
devices = 2
[models.small]
profile = "a40-llama3-8b"
load_s = 20
[models.large]
profile = "a40-llama2-13b"
load_s = 30
"""


@pytest.fixture
def host(tmp_path):
    text = FLOW.replace(
        'summary: {kind: llm, prompt: "S', 'summary: {kind: llm, model: small, prompt: "S'
    )
    text = text.replace("again: {kind: llm,", "again: {kind: llm, model: small,")
    text = text.replace("answer: {kind: llm,", "answer: {kind: llm, model: large,")
    text = text.replace("never: {kind: llm,", "never: {kind: llm, model: large,")
    (tmp_path / "f.yaml").write_text(text)
    (tmp_path / "host.toml").write_text(HOST)
    return tmp_path / "host.toml"


def test_it_says_what_runs_on_which_device_of_a_host_that_switches_models(planned, host):
    said = planned("--inputs", "ROWS", "--host", str(host))
    assert "on 2 devices: " in said
    assert "load small 20.0 s, then summary" in said
    assert "load large 30.0 s, then answer" in said
    assert "beside it: round robin " in said
    one = json.loads(planned("--inputs", "ROWS", "--host", str(host), "--devices", "1", "--json"))
    plan = one["placement"]["plan"]
    assert [(each["operator"], each["device"]) for each in plan["phases"]] == [
        ("summary", 0),
        ("answer", 0),
    ]
    assert plan["phases"][1]["begins_at"] > 50e6


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("devices = 2", "devices = 0"), "devices is 0: give 1 to 64"),
        (("load_s = 30", "load_s = -1"), "load_s of large is -1"),
        (("load_s = 30", "load = 30"), "known are: engine, options, profile, load_s"),
        (("large", "other"), "the model 'large', and the host file knows small, other"),
        (('"a40-llama2-13b"', '"none"'), "there is no profile 'none'"),
    ],
)
def test_a_host_file_that_is_wrong_is_told_so(planned, host, change, said):
    host.write_text(HOST.replace(*change))
    with pytest.raises(KairosError, match=said):
        planned("--inputs", "ROWS", "--host", str(host))


def test_a_host_without_rows_is_told_so(planned, host):
    with pytest.raises(SetupError, match="--inputs FILE"):
        planned("--host", str(host))


def test_with_a_profile_and_engines_it_says_how_long_a_table_takes(planned, tmp_path):
    table = str(tmp_path / "rows.jsonl")
    pool = ("--inputs", "ROWS", "--engine-profile", "a40-llama3-8b", "--instances", "2")
    with pytest.raises(KairosError, match=r"f\.profile\.json.*cannot be read"):
        planned(*pool)
    profiled = CliRunner().invoke(
        app, ["profile", str(tmp_path / "f.yaml"), "--inputs", table, "--simulate", "a40-llama3-8b"]
    )
    assert profiled.exit_code == 0, profiled.output
    said = planned(*pool)
    assert "expected on 2 x a40-llama3-8b: " in said
    assert "for 10 rows, 12 calls, 8 merged" in said

    told = json.loads(planned("--json", *pool))["forecast"]
    assert told["time_s"]["low"] <= told["time_s"]["mean"] <= told["time_s"]["high"]
    with pytest.raises(SetupError, match="--inputs"):
        planned("--engine-profile", "a40-llama3-8b")


AHEAD = f"""
flow: ahead
operators:
  row: {{kind: input}}
  draft: {{kind: llm, prompt: "{{{{ row.text }}}}", max_tokens: 2000}}
  answer: {{kind: llm, prompt: "{"Check each word of it. " * 400} {{{{ draft }}}}", max_tokens: 10}}
outputs: {{answer: answer}}
"""


def test_what_begins_ahead_rests_on_the_answers_that_were_learnt(planned, tmp_path):
    (tmp_path / "f.yaml").write_text(AHEAD)
    flow, table = str(tmp_path / "f.yaml"), str(tmp_path / "rows.jsonl")
    pool = ("--inputs", table, "--engine-profile", "a40-llama3-8b")
    simulated = ["profile", flow, "--inputs", table, "--simulate", "a40-llama3-8b"]
    assert CliRunner().invoke(app, simulated).exit_code == 0
    ahead = "begins ahead: the prompt of answer, beside draft"
    assert ahead in planned(*pool)
    path = tmp_path / "f.profile.json"
    learnt = json.loads(path.read_text())
    tokens = learnt["operators"]["draft"]["completion_tokens"]
    learnt["operators"]["draft"]["completion_tokens"] = dict.fromkeys(tokens, 1.0)
    path.write_text(json.dumps(learnt))
    assert ahead in planned()
    assert "begins ahead" not in planned(*pool)


def test_a1_a_plan_is_shown_as_primitives():
    flow = Path(__file__).parents[3] / "examples" / "naive_rag.yaml"
    asked = CliRunner().invoke(app, ["plan", str(flow), "--primitives", "--without", "cached"])
    assert asked.exit_code == 0, asked.output
    assert "5 found:Search after asked:Embed, collection:Aggregate" in asked.output.splitlines()


def test_every_pass_can_be_switched_off_and_the_help_names_it():
    assert Passes.__struct_fields__ == PASS_NAMES
    help_text = " ".join(
        CliRunner().invoke(app, ["plan", "--help"], env={"COLUMNS": "200"}).output.split()
    )
    assert f"Switch a pass off: {', '.join(PASS_NAMES)}" in help_text

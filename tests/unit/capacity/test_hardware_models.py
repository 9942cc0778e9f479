"""`kairos plan-hardware` for an application with several models: one plan, one shared target."""

import json

import pytest

from kairos.capacity.hardware_options import (
    agent_names,
    load_catalogue,
    observed_calls,
    with_models,
)
from kairos.core import SetupError
from kairos.simulate import load_workflows, workflows_of_flow
from tests.support.capacity.planner import call, run
from tests.support.simulate.model import write_workflows


def exported(path, *agents, workflows=40):
    """Write workflows with one call for each (agent, prompt, answer, model), one a second."""
    write_workflows(
        path,
        (
            call(
                f"w{i}",
                at,
                agent,
                prompt,
                answer + i,
                workflow_start_ms=i * 1000,
                model=model,
                upstream=None if at else "user",
            )
            for i in range(workflows)
            for at, (agent, prompt, answer, model) in enumerate(agents)
        ),
    )
    return path


SERVED = [
    ([], None, "llama-3-8b"),
    ([], "qwen2.5-7b", "qwen2.5-7b"),
    ([], "Qwen/Qwen2.5-7B-Instruct", "qwen2.5-7b"),
    ([], "meta-llama/Meta-Llama-3-8B-Instruct", "llama-3-8b"),
    ([], "ours", "llama-3-8b"),
    (["qwen3-8b"], "ours", "qwen3-8b"),
    (["qwen3-8b"], "qwen2.5-7b", "qwen2.5-7b"),
    (["ours=qwen3-32b"], "ours", "qwen3-32b"),
    (["plan=qwen3-32b", "ours=qwen3-8b"], "ours", "qwen3-32b"),
    (["docs/plan=mistral-7b", "plan=qwen3-32b"], "ours", "mistral-7b"),
    (["plan=qwen3-32b", "qwen3-8b"], None, "qwen3-32b"),
]


@pytest.mark.parametrize(("texts", "served", "model"), SERVED)
def test_a_call_has_the_model_of_its_agent_or_of_what_served_it(tmp_path, texts, served, model):
    path = exported(tmp_path / "day.jsonl", ("plan", 10, 10, served), workflows=1)
    [found] = with_models(load_workflows(path), texts, load_catalogue())
    assert [each.model for each in found.calls] == [model]


@pytest.mark.parametrize(
    ("texts", "problem"),
    [
        (["plan=gpt"], "no model 'gpt'; it has"),
        (["gpt"], "no model 'gpt'; it has"),
        (["=qwen3-8b"], "write --model NAME, or --model AGENT=NAME"),
        (["plan="], "write --model NAME"),
        (
            ["other=qwen3-8b"],
            "other=...: no call is of such an agent or model; there",
        ),
        (["qwen3-8b", "qwen3-32b"], "--model says two things of the same calls"),
        (["plan=qwen3-8b", "plan=qwen3-32b"], "--model says two things"),
    ],
)
def test_a_model_that_fits_nothing_is_refused_with_what_to_do(tmp_path, texts, problem):
    path = exported(tmp_path / "day.jsonl", ("plan", 10, 10, "ours"), workflows=1)
    with pytest.raises(SetupError, match=problem):
        with_models(load_workflows(path), texts, load_catalogue())


def test_an_agent_with_two_models_is_planned_for_each(tmp_path):
    path = tmp_path / "day.jsonl"
    models = ["qwen3-8b", "qwen3-32b", "qwen3-8b"]
    write_workflows(
        path,
        [
            call("w", i, "a", 10, 10, model=model, upstream=None if i else "user")
            for i, model in enumerate(models)
        ],
    )
    workflows = with_models(load_workflows(path), [], load_catalogue())
    assert sorted(agent_names(workflows).values()) == ["docs/a@qwen3-32b", "docs/a@qwen3-8b"]
    [calls] = observed_calls(workflows)
    assert [each.agent.partition("@")[2] for each in calls] == models


def test_one_plan_has_a_pool_for_each_model_and_the_target_holds_over_both(tmp_path):
    path = exported(
        tmp_path / "day.jsonl",
        ("plan", 1500, 100, "Qwen/Qwen2.5-7B-Instruct"),
        ("write", 700, 300, "ours"),
    )
    words = ("--export", path, "--model", "ours=llama-3-8b", "--hardware", "a100,h100",
             "--max-devices", 1, "--no-pairs", "--rate", 2, "--json")  # fmt: skip
    found = json.loads(run(*words, "--target", "p95=9s", "--simulate").stdout)
    assert found["met"]
    assert found["models"] == {"docs/plan": "qwen2.5-7b", "docs/write": "llama-3-8b"}
    chosen = found["chosen"]
    assert chosen["p95_s"] <= 9
    assert {each["model"] for each in chosen["instances"]} == {"qwen2.5-7b", "llama-3-8b"}
    for agent, model in found["models"].items():
        assert all(name.endswith(model) for name in chosen["routes"][agent])
    simulated = found["simulated"]
    assert chosen["mean_s"] == pytest.approx(simulated["mean_s"], rel=0.15)
    assert chosen["p95_s"] == pytest.approx(simulated["p95_s"], rel=0.2)
    apart = [
        json.loads(run(*words, "--target", f"p95={target}s").stdout)["chosen"]["usd_per_hour"]
        for target in (20, 9, 6.5)
    ]
    assert apart == sorted(apart)
    said = run(*words[:-1]).stdout
    assert "qwen2.5-7b for docs/plan; llama-3-8b for docs/write" in said


RETRIEVES = """
flow: answers
defaults: {max_tokens: 40, model: qwen2.5-7b}
operators:
  row: {kind: input}
  parts: {kind: chunk, size: 40, overlap: 0, inputs: {text: row.text}}
  vectors: {kind: embed, inputs: {texts: parts}}
  shelf: {kind: ingest, inputs: {texts: parts, vectors: vectors}}
  asked: {kind: embed, inputs: {texts: row.question}}
  found: {kind: search, top_k: 4, inputs: {collection: shelf, vectors: asked}}
  best: {kind: rerank, top_k: 2, inputs: {query: row.question, passages: found}}
  answer: {kind: llm, prompt: "{{ best | join }} {{ row.question }}"}
outputs: {answer: answer}
"""


def test_what_embeds_and_ranks_in_a_declared_flow_is_planned_for_too(tmp_path):
    (tmp_path / "answers.yaml").write_text(RETRIEVES)
    rows = [{"text": f"word{i} and " * 200, "question": f"What is {i}?"} for i in range(12)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
    flow = tmp_path / "answers.yaml"
    made = workflows_of_flow(flow, tmp_path / "rows.jsonl", None)
    assert len(made) == 12
    for each in made:
        agents = [each.agent for each in each.calls]
        assert set(agents) == {"vectors_part", "asked", "best", "answer"}
        assert agents[-1] == "answer"
        assert agents.index("best") > agents.index("vectors_part")
        assert {one.model for one in each.calls} == {
            "qwen3-embedding-8b", "qwen3-reranker-0.6b", "qwen2.5-7b"
        }  # fmt: skip
    found = json.loads(
        run(flow, "--inputs", tmp_path / "rows.jsonl", "--rate", 1, "--hardware", "a100",
            "--max-devices", 1, "--no-pairs", "--json").stdout
    )  # fmt: skip
    assert {each["model"]: each["count"] for each in found["chosen"]["instances"]} == {
        "qwen3-embedding-8b": 1, "qwen3-reranker-0.6b": 1, "qwen2.5-7b": 1
    }  # fmt: skip


def test_a_voice_agent_hears_thinks_and_speaks_within_one_target(tmp_path):
    """The paper's workload: 4 s of speech, a plan with a tool, and 5 s of speech as an answer."""
    path = exported(
        tmp_path / "voice.jsonl",
        ("hear", 50, 30, "mistralai/Voxtral-Mini-3B-2507"),
        ("think", 900, 60, "meta-llama/Meta-Llama-3-8B-Instruct"),
        ("speak", 90, 420, "orpheus-3b"),
    )
    words = ("--export", path, "--model", "mistralai/Voxtral-Mini-3B-2507=voxtral-mini-3b",
             "--rate", 1, "--hardware", "l40s,a100", "--max-devices", 1, "--no-pairs",
             "--target", "p95=7s")  # fmt: skip
    found = json.loads(run(*words, "--simulate", "--json").stdout)
    assert found["met"]
    assert sorted(found["models"].values()) == ["llama-3-8b", "orpheus-3b", "voxtral-mini-3b"]
    assert found["simulated"]["p95_s"] == pytest.approx(found["chosen"]["p95_s"], rel=0.2)
    assert found["simulated"]["p95_s"] <= 7


def test_work_that_nobody_waits_for_has_a_mixtures_experts_on_several_devices(tmp_path):
    path = exported(tmp_path / "night.jsonl", ("a", 1000, 400, "qwen3-235b-a22b"))
    words = ("--export", path, "--hardware", "h200", "--no-pairs")
    found = json.loads(run(*words, "--objective", "tokens", "--budget", 80, "--json").stdout)
    [instance] = found["chosen"]["instances"]
    assert instance["name"].startswith("h200-ep")
    deployed = run(*words, "--objective", "tokens", "--budget", 80, "--deploy", "kubernetes").stdout
    assert "--enable-expert-parallel" in deployed
    assert f"--data-parallel-size={instance['devices']}" in deployed

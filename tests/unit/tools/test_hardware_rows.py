"""Rows G1 to G12 of docs/research/hardware.md, through `kairos plan-hardware`."""

import json

import pytest
from typer.testing import CliRunner

from kairos.cli.main import app
from kairos.tools.hardware_files import catalogue
from kairos.workload.workflow_file import FileCall, write_workflows


def planned(*words):
    found = CliRunner().invoke(app, ["plan-hardware", *map(str, words), "--json"])
    if found.exception and not isinstance(found.exception, SystemExit):
        raise found.exception
    return json.loads(found.stdout)


def exported(path, *workflows):
    """Workflows of (agent, upstream, prompt, answer, gap_ms)."""
    write_workflows(
        path,
        (
            FileCall(
                workflow_id=f"w{number}",
                app="x",
                agent=agent,
                upstream=upstream,
                call_index=at,
                prompt_tokens=prompt,
                completion_tokens=answer,
                gap_ms=gap_ms or None,
            )
            for number, calls in enumerate(workflows)
            for at, (agent, upstream, prompt, answer, gap_ms) in enumerate(calls)
        ),
    )
    return path


def device(name, usd, **figures):
    figures = {"bandwidth_gb_s": 1000, "tflops": "{ bf16 = 100 }"} | figures
    return "\n".join(
        [
            "[[accelerator]]",
            f'name = "{name}"',
            'vendor = "none"',
            "memory_gb = 100",
            *(f"{key} = {value}" for key, value in figures.items()),
            "watts = 1000",
            'source = "made up"',
            'date = "2026-01"',
            f'rented = {{ usd = {usd}, source = "made up", date = "2026-01" }}',
            "",
        ]
    )


def profile(path, **step_us):
    """An engine that has one call at a time."""
    terms = ("weights_us", "prefill_seq_us", "decode_seq_us", "kv_token_us", "attention_us")
    step = dict.fromkeys(terms, 0) | step_us
    path.write_text(
        f'name = "{path.stem}"\nsource = "made up"\nmeasured = false\nkv_tokens = 16000\n'
        "block_size = 16\nmax_num_seqs = 1\nmax_num_batched_tokens = 8192\nmax_model_len = 8192\n"
        "call_us = 0\n[step]\n" + "".join(f"{key} = {value}\n" for key, value in step.items())
    )
    return path


def test_g1_the_application_is_a_typed_graph_with_its_loops_unrolled_and_its_calls_taken_apart(
    tmp_path,
):
    loop = [
        [("plan", "user", 1000, 100, 0)]
        + [("act", "plan", 400, 50, 2000)] * rounds
        + [("say", "act", 200, 30, 0)]
        for rounds in (1, 3)
    ]
    path = exported(tmp_path / "day.jsonl", *loop)
    found = planned("--export", path, "--hardware", "h100", "--max-devices", 1, "--rate", 1)
    nodes = {each["name"]: each for each in found["graph"]["nodes"]}
    assert {name: each["kind"] for name, each in nodes.items()} == {
        "x/plan.prefill": "prefill",
        "x/plan.decode": "decode",
        "before x/act": "tool",
        "x/act.prefill": "prefill",
        "x/act.decode": "decode",
        "x/say.prefill": "prefill",
        "x/say.decode": "decode",
    }
    assert [*nodes] == [*dict.fromkeys(nodes)]
    assert nodes["x/act.decode"]["runs"] == 2  # of one round and three
    assert (nodes["x/plan.prefill"]["tokens"], nodes["x/act.decode"]["tokens"]) == (1000, 50)
    assert nodes["before x/act"]["wait_s"] == 2
    assert nodes["before x/act"]["at_once"] == pytest.approx(4.0)  # two rounds of two seconds
    edges = {(each["source"], each["target"]): each for each in found["graph"]["edges"]}
    assert ("x/plan.decode", "before x/act") in edges
    assert ("x/act.decode", "x/say.prefill") in edges
    # G7: the cache of a prompt, 128 KiB a token of Llama-3-8B.
    kv = catalogue().model_named("llama-3-8b").kv_bytes_per_token()
    assert edges["x/plan.prefill", "x/plan.decode"]["bytes"] == 1000 * kv


@pytest.mark.parametrize(
    ("prompt", "answer", "binding"),
    [(8000, 1, "tflops"), (16, 400, "bandwidth_gb_s")],
)
def test_g2_a_call_takes_as_long_as_its_slowest_resource(tmp_path, prompt, answer, binding):
    path = exported(tmp_path / "day.jsonl", [("a", "user", prompt, answer, 0)])
    twice = {"bandwidth_gb_s": 2000, "tflops": "{ bf16 = 200 }"}
    own = tmp_path / "own.toml"

    def mean_s(**figures):
        own.write_text(device("one", 1.0, **figures))
        words = ("--catalogue", own, "--hardware", "one", "--max-devices", 1, "--no-pairs")
        return planned("--export", path, *words, "--rate", 0.001)["chosen"]["mean_s"]

    [other] = set(twice) - {binding}
    usual = mean_s()
    assert mean_s(**{binding: twice[binding]}) < 0.65 * usual
    assert mean_s(**{other: twice[other]}) > 0.9 * usual


@pytest.mark.parametrize(
    ("target_ms", "prefill", "decode"),
    [(110, "hp", "hp"), (125, "hp", "co"), (200, "co", "co")],
)
def test_g3_the_worked_example_prefills_on_hp_and_decodes_on_co(
    tmp_path, target_ms, prefill, decode
):
    """Repeat Table 3 of the paper, with 200 calls a second.

    1000 tokens take 80 ms on HP and 130 on CO, 500 of an answer 25 and 30, and the cache between
    them takes 10. Within 120 ms HP::CO is the cheapest; here queues add up to 5 ms.
    """
    path = exported(tmp_path / "day.jsonl", [("a", "user", 1000, 500, 0)])
    own = tmp_path / "own.toml"
    own.write_text(device("hp", 10.0) + device("co", 3.85))
    hp = profile(tmp_path / "hp.toml", prefill_token_us=80, fixed_us=50)
    co = profile(tmp_path / "co.toml", prefill_token_us=130, fixed_us=60)
    kv = catalogue().model_named("llama-3-8b").kv_bytes_per_token()
    gbit = 1000 * kv * 8 / 0.010 / 1e9
    found = planned(
        "--export", path, "--catalogue", own, "--hardware", "hp,co", "--profile", f"hp={hp}",
        "--profile", f"co={co}", "--max-devices", 1, "--link-gbit", gbit, "--rate", 200,
        "--no-split", "--target", f"p95={target_ms}ms",
    )  # fmt: skip
    assert found["met"]
    by_phases = {each["phases"]: each["device"] for each in found["chosen"]["instances"]}
    whole = by_phases.get("both")
    assert (by_phases.get("prefill", whole), by_phases.get("decode", whole)) == (prefill, decode)

"""What `kairos plan` expects of a flow, beside two real vLLM that `kairos calibrate` measured."""

import json

import pytest

from tests.e2e.flow_runs import kairos_command, write_rows
from tests.support import vllm
from tests.support.flow_tables import rows

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(3600)]

ROWS, SLOTS = 120, 32
# The model is of random weights: none asks for a schema, and each call has a question of its own,
# since to much else it says the same, so that calls are merged which nobody could expect to be.
OWN = {
    "dialogue": """
  first: {kind: llm, prompt: "{{ row.text }}\n{{ row.question }}", max_tokens: 40}
  last:
    kind: llm
    messages:
      - {role: user, content: "{{ row.text }}\n{{ row.question }}"}
      - {role: assistant, content: "{{ first }}"}
      - {role: user, content: "Are you sure? Say why."}
    max_tokens: 40
""",
    "fan": """
  bull: {kind: llm, prompt: "{{ row.text }} {{ row.question }} What is good?", max_tokens: 24}
  bear: {kind: llm, prompt: "{{ row.text }} {{ row.question }} What is bad?", max_tokens: 24}
  last: {kind: llm, prompt: "{{ row.question }} {{ bull }} or {{ bear }}", max_tokens: 8}
""",
    "chain": """
  draft: {kind: llm, prompt: "Draft: {{ row.question }}", max_tokens: 64}
  better: {kind: llm, prompt: "{{ row.question }} Better: {{ draft }}", max_tokens: 64}
  last: {kind: llm, prompt: "{{ row.question }} Shorter: {{ better }}", max_tokens: 16}
""",
}
FLOW = "flow: {name}\noperators:\n  row: {{kind: input}}{operators}outputs: {{last: last}}\n"


@pytest.fixture(scope="module")
def urls(tmp_path_factory):
    with vllm.running(tmp_path_factory.mktemp("vllm"), "--max-num-seqs", SLOTS) as found:
        yield found


async def told(place, *words):
    status, said = await kairos_command(place, *words)
    assert status in (0, 3), said
    return said


async def test_h8_expected_cached_tokens_are_within_15_percent_of_real_vllm(tmp_path, urls):
    engines = [word for url in urls for word in ("--engine", url)]
    await told(
        tmp_path,
        *("calibrate", *engines, "--quick", "--name", "here"),
        *("--max-num-seqs", SLOTS, "--scheduling", "priority"),
    )
    for name, operators in OWN.items():
        (tmp_path / f"{name}.yaml").write_text(FLOW.format(name=name, operators=operators))
    flows = [tmp_path / f"{name}.yaml" for name in OWN]
    caches = {}
    for number, flow in enumerate(flows):
        # Rows of their own for each: what was asked before is in the engines' caches.
        write_rows(tmp_path / "rows.jsonl", rows(ROWS, seed=number))
        write_rows(tmp_path / "others.jsonl", rows(ROWS, seed=100 + number))
        learnt = tmp_path / f"{flow.stem}.profile.json"
        drawn = ("--inputs", "others.jsonl", "--out", learnt)
        await told(tmp_path, "profile", flow, *engines, *drawn)
        files = ("--inputs", "rows.jsonl", "--out", f"{flow.stem}.jsonl", "--dir", "kept")
        plan = ("--engine-profile", "here.toml", "--profile", learnt)
        await told(tmp_path, "run", flow, *engines, *files, *plan, "--no-cache")
        run = json.loads(await told(tmp_path, "runs", "list", "--json", "--dir", "kept"))[0]
        expected, figures = run["forecast"], run["figures"]
        off = expected["time_s"] / run["took_s"] - 1
        cached = figures.get("cached_tokens", 0) / figures["prompt_tokens"]
        caches[flow.stem] = (expected["cached_share"], cached)
        print(
            f"{flow.stem}: expected {expected['time_s']:.1f} s, took {run['took_s']:.1f} s "
            f"({off:+.0%}); cached {expected['cached_share']:.1%}, was {cached:.1%}"
        )
        assert figures["calls"] == expected["calls"]
    # Times are printed alone: they say something where the machine does nothing else.
    for expected, cached in caches.values():
        if cached > 0.1:
            assert expected == pytest.approx(cached, rel=0.15)

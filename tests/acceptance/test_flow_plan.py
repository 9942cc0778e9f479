"""What `kairos plan` expects of a flow, beside real vLLM that `kairos calibrate` measured.

Shares of cached tokens are compared on two engines. Times are compared on one: each engine has a
core, and on two cores a run takes up to 45 % of its time from two, which no forecast reckons with.
A virtual core may be 1.6 times as slow for some seconds. So the same calls are made beside each
measurement (`probe_s`), what they took says how fast the engine was then, and the median of three
runs counts.
"""

import asyncio
import json
import time
from itertools import count
from statistics import median

import aiohttp
import pytest

from tests.e2e.cli.flow_runs import kairos_command, write_rows
from tests.support import vllm
from tests.support.flow_tables import rows as table

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(3600)]

SLOTS = 32
PROBES, PROBED_TOKENS = 3, 64
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
    "classes": """
  last: {kind: llm, prompt: "{{ row.text }}\n{{ row.question }} One word.", max_tokens: 2}
""",
    "critics": """
  draft: {kind: llm, prompt: "{{ row.text }} {{ row.question }}", max_tokens: 48}
  one: {kind: llm, prompt: "{{ row.question }} What is missing? {{ draft }}", max_tokens: 32}
  two: {kind: llm, prompt: "{{ row.question }} What is wrong? {{ draft }}", max_tokens: 32}
  last: {kind: llm, prompt: "{{ row.question }} {{ draft }} {{ one }} {{ two }}", max_tokens: 48}
""",
    "answers": """
  last: {kind: llm, prompt: "{{ row.question }} At length.", max_tokens: 160}
""",
}
FLOW = (
    "flow: {name}\ndefaults: {{on_cut: keep}}\n"
    "operators:\n  row: {{kind: input}}{operators}outputs: {{last: last}}\n"
)


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """The six flows on two engines."""
    return on_engines(tmp_path_factory, 2, rows=120, times=1)


@pytest.fixture(scope="module")
def timed(tmp_path_factory):
    """The six flows on an engine that has a core for itself."""
    return on_engines(tmp_path_factory, 1, rows=240, times=3)


def on_engines(tmp_path_factory, number, **how):
    """Of each flow what was expected, and what it was, printed as it comes."""
    more = ("--max-num-seqs", SLOTS, "--count", number)
    with vllm.running(tmp_path_factory.mktemp("vllm"), *more) as urls:
        return asyncio.run(all_compared(tmp_path_factory.mktemp("plans"), urls, **how))


async def all_compared(place, urls, *, rows, times):
    engines = [word for url in urls for word in ("--engine", url)]
    limits = ("--max-num-seqs", SLOTS, "--scheduling", "priority")
    how = ("--unstreamed", "--quick", "--name", "here", *limits)
    probes = count()
    calibrating = told(place, "calibrate", *engines, *how)
    said, measured_s = await beside_probes(urls[0], probes, calibrating)
    print(said)
    header = f"{'engines':10}{'flow':10}{'expected, s':>12}{'took, s':>10}{'slower':>8}{'off':>7}"
    print(f"{header}{'cached, expected':>18}{'was':>7}")
    found = {}
    for number, (name, operators) in enumerate(OWN.items()):
        flow = place / f"{name}.yaml"
        flow.write_text(FLOW.format(name=name, operators=operators))
        # Rows of their own for each: what was asked before is in the engines' caches.
        write_rows(place / "others.jsonl", table(rows, seed=100 + number))
        learnt = place / f"{name}.profile.json"
        await told(place, "profile", flow, *engines, "--inputs", "others.jsonl", "--out", learnt)
        found[name] = []
        for again in range(times):
            write_rows(place / "rows.jsonl", table(rows, seed=number + 1000 * again))
            running = one_run(place, flow, engines, learnt, f"{name}-{again}.jsonl")
            one, probed_s = await beside_probes(urls[0], probes, running)
            slower = probed_s / measured_s
            one["off"] = off = one["expected_s"] * slower / one["took_s"] - 1
            found[name].append(one)
            print(
                f"{f'{len(urls)} x vLLM':10}{name:10}"
                f"{one['expected_s']:12.1f}{one['took_s']:10.1f}{slower:8.2f}{off:+7.0%}"
                f"{one['expected_cached']:18.1%}{one['cached']:7.1%}"
            )
    return found


async def beside_probes(url, probes, work):
    """The result of some work, and what the probe took before and after it."""
    before = [await probe_s(url, next(probes)) for _ in range(PROBES)]
    result = await work
    after = [await probe_s(url, next(probes)) for _ in range(PROBES)]
    return result, (median(before) + median(after)) / 2


async def probe_s(url, number):
    """The time of as many calls at once as the engine runs; none finds its prompt cached."""
    bodies = [
        {
            "messages": [{"role": "user", "content": f"{number} {call} " + "is it so? " * 20}],
            "max_tokens": PROBED_TOKENS,
            "ignore_eos": True,
        }
        for call in range(SLOTS)
    ]
    async with aiohttp.ClientSession(url) as session:

        async def ask(body):
            async with session.post("/v1/chat/completions", json=body) as response:
                assert response.status == 200, await response.text()
                await response.read()

        began_s = time.monotonic()
        await asyncio.gather(*map(ask, bodies))
        return time.monotonic() - began_s


async def one_run(place, flow, engines, learnt, out):
    files = ("--inputs", "rows.jsonl", "--out", out, "--dir", "kept")
    plan = ("--engine-profile", "here.toml", "--profile", learnt)
    await told(place, "run", flow, *engines, *files, *plan, "--no-cache")
    run = json.loads(await told(place, "runs", "list", "--json", "--dir", "kept"))[0]
    expected, figures = run["forecast"], run["figures"]
    return {
        "expected_s": expected["time_s"],
        "took_s": run["took_s"],
        "expected_cached": expected["cached_share"],
        "cached": figures.get("cached_tokens", 0) / figures["prompt_tokens"],
        "calls": (expected["calls"], figures["calls"]),
    }


async def told(place, *words):
    status, said = await kairos_command(place, *words)
    assert status in (0, 3), said
    return said


def test_h8_expected_cached_tokens_are_within_15_percent_of_real_vllm(compared):
    for (one,) in compared.values():
        assert one["calls"][0] == one["calls"][1]
        if one["cached"] > 0.1:
            assert one["expected_cached"] == pytest.approx(one["cached"], rel=0.15)


def test_e11_kairos_plan_is_within_25_percent_of_the_time_of_real_vllm_over_six_flows(timed):
    """In the median of the flows. In each it is within 50 %: a CPU's price of a token in KV memory
    rises with the memory in use, and that of a profile does not, so the fit is too high for flows
    of short prompts and too low for flows of long ones.

    Flows do not stream. By a profile of streams, calls that decode were expected to take half as
    long again."""
    off = {name: median(one["off"] for one in runs) for name, runs in timed.items()}
    assert abs(median(off.values())) <= 0.25, off
    assert max(map(abs, off.values())) <= 0.5, off

"""Declared workflows on two real vLLM: a thousand documents, a process that is killed up to ten
times, and what it gains that rows share a summary."""

import asyncio
import json
import random
import re
import time
import urllib.request

import pytest

from tests.e2e.cli.flow_runs import command, kairos_command, read_rows, write_rows
from tests.support.workflows.declared import read_yaml
from tests.support.workflows.naive import Naive

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(3600)]

DOCUMENTS, KILLS = 1000, 10
SHARED_ROWS, CONTEXTS = 600, 100
GAIN = 1.4
SLOTS = 16
WORDS = ["growth", "of", "revenue", "against", "cost", "in", "a", "year", "and", "trade"]
# The model is of random weights and says the same of much: ids keep calls apart.
SIX = """
flow: six
defaults: {max_tokens: 8, on_cut: keep}
operators:
  row: {kind: input}
  summary: {kind: llm, prompt: "{{ row.text }} Sum up.", max_tokens: 16}
  bull: {kind: llm, prompt: "{{ row.id }} {{ summary }} What is good?"}
  bear: {kind: llm, prompt: "{{ row.id }} {{ summary }} What is bad?"}
  risk: {kind: llm, prompt: "{{ row.id }} {{ summary }} What may happen?"}
  both: {kind: llm, prompt: "{{ row.id }} For {{ bull }} against {{ bear }}"}
  verdict: {kind: llm, prompt: "{{ row.id }} {{ both }} at {{ risk }}: decide"}
outputs: {id: row.id, summary: summary, verdict: verdict}
"""
SHARED = """
flow: shared
defaults: {on_cut: keep}
operators:
  row: {kind: input}
  summary: {kind: llm, prompt: "{{ row.text }} Sum up.", max_tokens: 48}
  answer: {kind: llm, prompt: "{{ summary }} {{ row.question }}", max_tokens: 8}
outputs: {summary: summary, answer: answer}
"""


def text(draw, words=60):
    return " ".join(draw.choice(WORDS) for _ in range(words))


def naive(flow, rows, url):
    """Each call after the one before, without Kairos."""

    def ask(messages, params):
        body = {
            "model": "tiny",
            "messages": messages,
            "temperature": 0,
            "max_tokens": params.max_tokens,
        }
        request = urllib.request.Request(
            f"{url}/v1/chat/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=120) as response:
            return json.load(response)["choices"][0]["message"]["content"]

    written = Naive(read_yaml(flow), ask).run(rows).written
    return [{"row": row, **values} for (_, row), values in sorted(written.items())]


def calls_so_far(urls):
    """As the engines count those that they answered to the end."""
    total = 0.0
    for url in urls:
        with urllib.request.urlopen(f"{url}/metrics", timeout=30) as response:
            told = response.read().decode()
        total += sum(map(float, re.findall(r"^vllm:request_success_total{.*} (\S+)$", told, re.M)))
    return total


def arguments(urls, flow, out, *more):
    engines = [word for url in urls for word in ("--engine", f"{url},max_num_seqs={SLOTS}")]
    return ("run", flow, "--inputs", "rows.jsonl", "--out", out, *engines, "--no-cache", *more)


async def killed_run(place, urls, seed):
    """To its end, killed on the way. Return how often."""
    draw, kills, state, name = random.Random(seed), 0, None, None
    while state != "done":
        words = (
            arguments(urls, "six.yaml", "out.jsonl") if name is None else ("runs", "resume", name)
        )
        async with command(place, *words) as started:
            ending = asyncio.create_task(started.end())
            if kills < KILLS:
                await asyncio.wait([ending], timeout=draw.uniform(3, 5))
                if not ending.done():
                    started.kill()
                    kills += 1
            await ending
        _, said = await kairos_command(place, "runs", "list", "--json")
        if found := json.loads(said):
            name, state = found[0]["id"], found[0]["state"]
    return kills


async def test_a_thousand_documents_come_out_as_one_call_after_the_other_gives(vllm, tmp_path):
    draw = random.Random(1)
    rows = [{"id": n, "text": text(draw)} for n in range(DOCUMENTS)]
    write_rows(tmp_path / "rows.jsonl", rows)
    (tmp_path / "six.yaml").write_text(SIX)
    before = calls_so_far(vllm)
    kills = await killed_run(tmp_path, vllm, seed=2)
    made = calls_so_far(vllm) - before
    out = read_rows(tmp_path / "out.jsonl")
    again = made - 6 * DOCUMENTS
    print(f"\n{DOCUMENTS} documents, {kills} kills: {made:.0f} calls, {again:.0f} of them again")
    assert [row["row"] for row in out] == list(range(DOCUMENTS))
    assert again >= 0
    assert again <= kills * (2 * SLOTS * len(vllm) + 256)

    expected = await asyncio.to_thread(naive, SIX, rows, vllm[0])
    different = sum(one != other for one, other in zip(out, expected, strict=True))
    if different:
        second = await asyncio.to_thread(naive, SIX, rows, vllm[-1])
        allowed = sum(one != other for one, other in zip(second, expected, strict=True))
        print(f"{different} rows differ; of two naive runs {allowed}")
        assert different <= allowed
    print(f"{DOCUMENTS - different} of {DOCUMENTS} rows are equal byte for byte")


async def test_rows_that_share_a_summary_are_done_sooner_than_without_merging(vllm, tmp_path):
    draw = random.Random(3)
    contexts = [text(draw) for _ in range(CONTEXTS)]
    rows = [
        {"text": contexts[n % CONTEXTS], "question": f"question {n}?"} for n in range(SHARED_ROWS)
    ]
    write_rows(tmp_path / "rows.jsonl", rows)
    (tmp_path / "shared.yaml").write_text(SHARED)
    took = {}
    for name, more in (("warm", ()), ("merged", ()), ("apart", ("--without", "cse"))):
        began = time.monotonic()
        status, said = await kairos_command(
            tmp_path, *arguments(vllm, "shared.yaml", f"{name}.jsonl", *more)
        )
        took[name] = time.monotonic() - began
        assert status == 0, said
    gain = took["apart"] / took["merged"]
    print(f"\n{took['apart']:.1f} s without merging, {took['merged']:.1f} s with: {gain:.2f} times")
    assert read_rows(tmp_path / "merged.jsonl") == read_rows(tmp_path / "apart.jsonl")
    assert gain >= GAIN

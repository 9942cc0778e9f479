"""Rows A4 and A5 of the design on real vLLM: prompts begin ahead, and items of a list go on."""

import time

import aiohttp
import pytest

from kairos.workflows import TouchPrefix
from tests.e2e.cli.flow_runs import Runs
from tests.e2e.cli.test_flow_decoding import is_asked_early

pytestmark = pytest.mark.vllm

BLOCK = 32  # tokens
SEARCHING = """
flow: searching
operators:
  row: {kind: input}
  found: {kind: call, function: search, purity: pure, inputs: {query: row.question}}
  answer:
    kind: llm
    prompt: "{{ row.about }}\\n\\nQuestion: {{ row.question }}\\n\\nFound: {{ found }}"
    max_tokens: 4
    on_cut: keep
outputs: {answer: answer}
"""


@pytest.fixture
def runs(tmp_path, engine, vllm):
    engine.url = vllm[0]
    return Runs(tmp_path, engine)


def rows(count, begin=0):
    """Each about something else, so that only a beginning of its own can be found."""
    return [
        {"about": " ".join(f"note{n}x{m}" for m in range(60)), "question": f"what of {n}?"}
        for n in range(begin, begin + count)
    ]


async def tokens(url, body):
    kept = ("messages", "add_generation_prompt", "continue_final_message")
    asked = {key: body[key] for key in kept}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{url}/tokenize", json=asked) as response,
    ):
        return (await response.json())["count"]


async def test_a4_of_what_is_begun_ahead_nine_tenths_are_found_cached(runs, seen, vllm):
    def search(query):
        time.sleep(2)
        return f"nothing of {query}"

    runs.functions.pure(search)
    table = rows(4)  # beginnings of more rows than that do not go ahead
    record = await runs.run(SEARCHING, table)
    ahead = [each for each in seen if isinstance(each, TouchPrefix)]
    assert len(ahead) == len(table)
    warmable = sum([await tokens(vllm[0], each.body) // BLOCK * BLOCK for each in ahead])
    assert warmable > len(table) * 5 * BLOCK
    found = record.figures["cached_tokens"]
    print(f"{found} of {warmable} tokens that were computed ahead were found")
    assert found >= 0.9 * warmable

    # And not for another reason.
    others = rows(len(table), begin=100)
    other = await runs.run(SEARCHING, others, "other.jsonl", passes={"prefill": False})
    assert other.figures.get("cached_tokens", 0) < 0.2 * warmable


async def test_a5_the_first_item_is_asked_before_the_list_has_its_last_token(runs, seen):
    assert await is_asked_early(runs, seen, "out.jsonl")
    assert not await is_asked_early(runs, seen, "without.jsonl", decoding=False)

"""Static beginnings of a served flow, kept in an engine's cache between invocations."""

import asyncio
import json
import time

import pytest
from aiohttp import web

from tests.e2e.flows import chat, invoke, kept_in, put

ROLE = "You judge reports by their figures. " * 40
FLOW = f"""
flow: judged
operators:
  row: {{kind: input}}
  verdict: {{kind: llm, system: "{ROLE}", prompt: "Judge {{{{ row.text }}}}"}}
outputs: {{verdict: verdict}}
"""
TOKENS = 400
STAYS_S, GAP_S, INVOCATIONS = 1.6, 2.2, 11


class Engine:
    """An engine that drops a beginning after some time without use."""

    def __init__(self, engine):
        self.used_at, self.touches, self.found = 0.0, [], []
        engine.answer = self.answer

    async def answer(self, request):
        body = json.loads(await request.read())
        now = time.monotonic()
        is_there = now - self.used_at < STAYS_S
        self.used_at = now
        if body.get("max_tokens") == 1:
            self.touches.append(is_there)
        else:
            self.found.append(is_there)
        said = chat("so")
        said["usage"] = {
            "prompt_tokens": TOKENS,
            "completion_tokens": 1,
            "total_tokens": TOKENS + 1,
            "prompt_tokens_details": {"cached_tokens": TOKENS if is_there else 0},
        }
        return web.json_response(said)


async def invoked(kairos, engine, directory, **settings):
    cache = Engine(engine)
    served = await kairos(engine.url, flows=kept_in(directory, **settings))
    await put(served, FLOW, "judged")
    for number in range(INVOCATIONS):
        answer = await invoke(served, {"text": f"text {number}"}, "judged")
        assert answer.json()["outputs"] == {"verdict": "so"}
        await asyncio.sleep(GAP_S)
    return cache


@pytest.mark.long
async def test_beginnings_are_found_where_gaps_are_longer_than_they_stay(kairos, engine, tmp_path):
    cache = await invoked(kairos, engine, tmp_path / "flows")
    assert not any(cache.found[:5])  # until it is known how long gaps are
    assert sum(cache.found[6:]) >= 3, (cache.found, cache.touches)
    assert sum(cache.touches) >= 4


@pytest.mark.long
async def test_the_pass_can_be_switched_off(kairos, engine, tmp_path):
    cache = await invoked(kairos, engine, tmp_path / "flows", without=("touch",))
    assert not any(cache.found)
    assert not cache.touches

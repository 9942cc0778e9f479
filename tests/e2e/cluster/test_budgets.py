"""Workflows that use more than they may."""

import asyncio
import json

import openai
import pytest

from kairos.cluster.local import local_control
from kairos.core import Arrived, Finished, FirstToken, Refuse
from tests.e2e.test_failures import CHUNK, DONE, STREAM

OF = {"x-kairos-workflow-id": "w"}
MESSAGES = [{"role": "user", "content": "Hello there"}]


def ask(served, headers=None, **fields):
    return asyncio.create_task(served.chat(headers=OF | (headers or {}), **fields))


async def counted(served, code):
    metrics = (await served.ask("GET", "/metrics")).body
    return f'kairos_errors_total{{code="{code}"}}'.encode() in metrics


async def test_of_calls_no_more_are_served_and_openais_client_does_not_try_again(kairos, standin):
    served = await kairos(standin.url, budget_calls=2)
    async with openai.AsyncOpenAI(
        base_url=f"{served.url}/v1", api_key="-", max_retries=2, default_headers=OF
    ) as client:
        asked = {"model": "tiny", "messages": MESSAGES, "max_tokens": 1}
        for _ in range(2):
            await client.chat.completions.create(**asked)
        with pytest.raises(openai.PermissionDeniedError, match="has made 2 calls, of 2") as refused:
            await client.chat.completions.create(**asked)
        await client.chat.completions.create(**asked, extra_headers={"x-kairos-workflow-id": "v"})
        ended = (await served.ask("GET", "/metrics")).body

    assert refused.value.code == "budget_calls"
    assert refused.value.response.headers["x-kairos-reason"] == "budget_calls"
    assert b'kairos_errors_total{code="budget_calls"} 1.0\n' in ended  # it asked once
    assert len(served.facts.all(Arrived)) == 3


async def test_of_tokens_as_engines_count_them(kairos, standin):
    served = await kairos(standin.url, budget_tokens=50)
    assert (await ask(served, max_tokens=50)).status == 200
    used = (await served.facts.seen(Finished)).completion_tokens
    refused = await ask(served, messages=[{"role": "user", "content": "more " * 60}])
    assert used == 50
    assert (refused.status, refused.error()["code"]) == (403, "budget_tokens")
    assert await counted(served, "budget_tokens")


async def test_a_client_may_ask_for_less(kairos, engine):
    served = await kairos(engine.url)
    less = {"x-kairos-budget-calls": "1"}
    assert (await ask(served, less)).status == 200
    assert (await ask(served)).error()["code"] == "budget_calls"
    wrong = await ask(served, {"x-kairos-budget-calls": "none"})
    assert (wrong.status, wrong.error()["code"]) == (400, "invalid_request")


async def test_when_its_time_is_up_its_calls_end_wherever_they_are(kairos, engine, monkeypatch):
    monkeypatch.setattr(local_control, "TICK_S", 0.02)
    served = await kairos(engine.url, max_num_seqs=1)
    engine.answer = engine.stream(CHUNK, DONE)
    engine.release()
    streaming = ask(served, **STREAM)
    await served.facts.seen(FirstToken)
    engine.answer = engine.when_released
    other = asyncio.create_task(served.chat())
    await served.facts.seen(Arrived, 2)

    waiting = ask(served, {"x-kairos-budget-ms": "400"})
    refused = await waiting
    said = (await streaming).body.removeprefix(CHUNK)

    assert (refused.status, refused.headers["x-kairos-reason"]) == (403, "budget_time")
    event = json.loads(said.removeprefix(b"data: ").partition(b"\n")[0])
    assert event["error"]["code"] == "budget_time"
    await engine.until(lambda: engine.lost == 1)
    assert (await ask(served)).error()["code"] == "budget_time"
    engine.release()
    assert (await other).status == 200
    commands = [each for record in served.facts.records for each in record.commands]
    given_up = [each.reason for each in commands if isinstance(each, Refuse)]
    assert given_up == ["out_of_time"] * 2

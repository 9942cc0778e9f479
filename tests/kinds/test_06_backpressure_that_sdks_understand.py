"""Kind 6: what OpenAI's client does with each refusal, with its two retries.

Anthropic's client is made by the same generator: it reads the same headers.
"""

import asyncio

import openai
import pytest

from kairos.config import QuotaSettings
from tests.e2e.batch_files import key
from tests.kinds.table import drops, never, says, whole

HELLO = [{"role": "user", "content": "Hello"}]
IN_A_MINUTE = {"Retry-After": "90"}


async def ask(served, limit_s=60, retries=2, **asked):
    async with openai.AsyncOpenAI(
        base_url=f"{served.url}/v1", api_key="acme", max_retries=retries, timeout=limit_s
    ) as client:
        return await client.chat.completions.create(**{"model": "tiny", "messages": HELLO} | asked)


# What the engine does, the error that the client raises, and how often the engine was asked.
ROWS = {
    "the call is wrong": (says(400), openai.BadRequestError, 1),
    "the call cannot be processed": (says(422), openai.UnprocessableEntityError, 1),
    "too large for the engine": (says(413), openai.APIStatusError, 1),
    "a model that is gone": (says(404), openai.NotFoundError, 1),
    "Kairos's key is refused": (says(401), openai.InternalServerError, 3),
    "asked too much": (says(429), openai.RateLimitError, 3),
    "overloaded": (says(503), openai.InternalServerError, 3),
    "fails": (says(500), openai.InternalServerError, 3),
    "cut at answer_s": (never, openai.InternalServerError, 1),
}


@pytest.mark.parametrize("row", ROWS)
async def test_a_client_asks_again_where_that_may_help(kairos, engine, row):
    answer, raised, times = ROWS[row]
    served = await kairos(engine.url, answer_s=1, longest_answer_s=1)
    engine.answer = answer
    with pytest.raises(raised):
        await ask(served)
    assert len(engine.calls) == times


@pytest.mark.parametrize(
    "fault", [says(429), says(503), says(500), drops], ids=["429", "503", "500", "drop"]
)
async def test_what_a_retry_serves_is_not_lost(kairos, engine, fault):
    served = await kairos(engine.url)
    turns = iter([fault, whole])

    async def answer(request):
        return await next(turns, whole)(request)

    engine.answer = answer
    assert (await ask(served)).object == "whole"


async def test_a_full_queue_says_when_to_come_back(kairos, engine):
    served = await kairos(engine.url, max_num_seqs=1, max_waiting=1)
    engine.answer = engine.when_released
    held = [asyncio.create_task(served.chat()) for _ in range(2)]
    await engine.called(1)
    await served.facts.until(lambda: served.balancer.waiting == 1)
    with pytest.raises(openai.RateLimitError) as refused:
        await ask(served, retries=0)
    assert int(refused.value.response.headers["retry-after"]) >= 1
    engine.release(2)
    assert {(await each).status for each in held} == {200}


async def test_a_quota_that_is_used_up_for_long_is_not_asked_for_again(kairos, engine):
    quota = QuotaSettings(tenant="acme", tokens_per_day=1)
    served = await kairos(engine.url, key=(key("acme"),), quota=(quota,))
    engine.answer = whole
    await ask(served)
    with pytest.raises(openai.RateLimitError) as refused:
        await ask(served)
    assert refused.value.response.headers["x-should-retry"] == "false"
    assert len(engine.calls) == 1

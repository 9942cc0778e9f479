"""Kind 6: what OpenAI's client, and Anthropic's, do with each refusal, with their two retries."""

import asyncio

import anthropic
import openai
import pytest

from tests.e2e.batch_files import key
from tests.kinds.table import drops, never, says, whole
from tests.support.settings.quotas import QuotaSettings

HELLO = [{"role": "user", "content": "Hello"}]
IN_A_MINUTE = {"Retry-After": "90"}


async def ask(served, limit_s=60, retries=2, sdk=openai, **asked):
    options = {"api_key": "acme", "max_retries": retries, "timeout": limit_s}
    if sdk is anthropic:
        async with anthropic.AsyncAnthropic(base_url=served.url, **options) as client:
            return await client.messages.create(model="tiny", messages=HELLO, max_tokens=9)
    async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", **options) as client:
        return await client.chat.completions.create(**{"model": "tiny", "messages": HELLO} | asked)


# What the engine does, the error that the client raises, and how often the engine was asked.
ROWS = {
    "the call is wrong": (says(400), "BadRequestError", 1),
    "the call cannot be processed": (says(422), "UnprocessableEntityError", 1),
    "too large for the engine": (says(413), "APIStatusError", 1),
    "a model that is gone": (says(404), "NotFoundError", 1),
    "Kairos's key is refused": (says(401), "InternalServerError", 3),
    "asked too much": (says(429), "RateLimitError", 3),
    "overloaded": (says(503), "InternalServerError", 3),
    "fails": (says(500), "InternalServerError", 3),
    "cut at answer_s": (never, "InternalServerError", 1),
}


@pytest.mark.parametrize("sdk", [openai, anthropic], ids=["openai", "anthropic"])
@pytest.mark.parametrize("row", ROWS)
async def test_a_client_asks_again_where_that_may_help(kairos, engine, row, sdk):
    answer, raised, times = ROWS[row]
    limits = {"answer_s": 1, "longest_answer_s": 1} if answer is never else {}
    served = await kairos(engine.url, **limits)
    engine.answer = answer
    with pytest.raises(getattr(sdk, raised)):
        await ask(served, sdk=sdk)
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

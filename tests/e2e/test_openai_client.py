"""OpenAI's own client works against Kairos with nothing but its base URL changed."""

import asyncio
from hashlib import sha256

import openai
import pytest

from kairos.core import Arrived, Failed, Finished, FirstToken
from kairos.settings import KeySettings

MESSAGES = [{"role": "user", "content": "Hello there"}]


def options(kairos, key="a-client's-key"):
    return {"base_url": f"{kairos.url}/v1", "api_key": key, "max_retries": 0}


@pytest.fixture
async def client(kairos, standin):
    async with openai.AsyncOpenAI(**options(await kairos(standin.url))) as client:
        yield client


async def test_a_chat_completion_is_answered_whole(kairos, standin):
    served = await kairos(standin.url)
    async with openai.AsyncOpenAI(**options(served)) as client:
        answer = await client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=5)

    assert len(answer.choices[0].message.content.split()) == answer.usage.completion_tokens == 5
    finished = await served.facts.seen(Finished)
    assert finished.prompt_tokens == answer.usage.prompt_tokens
    assert finished.completion_tokens == 5


async def test_a_streamed_chat_tells_kairos_its_usage_and_the_client_only_what_it_asked_for(
    kairos, standin
):
    served = await kairos(standin.url)
    async with openai.AsyncOpenAI(**options(served)) as client:
        chunks = [
            chunk
            async for chunk in await client.chat.completions.create(
                model="tiny", messages=MESSAGES, max_tokens=5, stream=True
            )
        ]

    assert [chunk.usage for chunk in chunks] == [None] * len(chunks)
    assert all(chunk.choices for chunk in chunks)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert len(text.split()) == 5
    finished = await served.facts.seen(Finished)
    assert (finished.prompt_tokens, finished.completion_tokens) == (3, 5)
    assert len(served.facts.all(FirstToken)) == 1


async def test_a_streamed_chat_gives_usage_to_the_client_that_asks(client):
    stream = await client.chat.completions.create(
        model="tiny",
        messages=MESSAGES,
        max_tokens=5,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [chunk async for chunk in stream]

    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 5


async def test_completions_work_whole_and_streamed(client):
    asked = {"model": "tiny", "prompt": "Once upon a time", "max_tokens": 4, "seed": 1}
    whole = await client.completions.create(**asked)
    stream = await client.completions.create(**asked, stream=True)

    assert "".join([chunk.choices[0].text async for chunk in stream]) == whole.choices[0].text
    assert whole.usage.completion_tokens == 4


async def test_embeddings_work_in_the_clients_default_encoding(kairos, standin):
    async with openai.AsyncOpenAI(**options(await kairos(standin.url))) as client:
        answer = await client.embeddings.create(model="tiny", input=["one", "two"])

    assert b'"base64"' in standin.received[0].body
    assert [len(each.embedding) for each in answer.data] == [64, 64]
    assert sum(x * x for x in answer.data[0].embedding) == pytest.approx(1, abs=1e-4)


async def test_responses_work_whole_and_streamed(kairos, standin):
    served = await kairos(standin.url)
    asked = {"model": "tiny", "input": "Hello there", "max_output_tokens": 4}
    async with openai.AsyncOpenAI(**options(served)) as client:
        whole = await client.responses.create(**asked)
        events = [event async for event in await client.responses.create(**asked, stream=True)]

    assert len(whole.output_text.split()) == 4
    assert events[-1].type in ("response.completed", "response.incomplete")
    assert events[-1].response.output_text == whole.output_text
    await served.facts.seen(Finished, 2)
    assert [fact.completion_tokens for fact in served.facts.all(Finished)] == [4, 4]


async def test_models_are_listed_and_looked_up(client):
    assert [model.id async for model in client.models.list()] == ["tiny"]
    assert (await client.models.retrieve("tiny")).id == "tiny"
    with pytest.raises(openai.NotFoundError, match="'huge' does not exist"):
        await client.models.retrieve("huge")


async def test_the_raw_response_names_the_request(kairos, standin):
    served = await kairos(standin.url)
    async with openai.AsyncOpenAI(**options(served)) as client:
        raw = await client.chat.completions.with_raw_response.create(
            model="tiny", messages=MESSAGES, max_tokens=1
        )
        parsed = raw.parse()

    arrived = await served.facts.seen(Arrived)
    assert raw.headers["x-request-id"] == arrived.request.id == parsed._request_id


async def test_the_blocking_client_works_from_a_thread(kairos, standin):
    served = await kairos(standin.url)

    def use():
        with openai.OpenAI(**options(served)) as client:
            asked = {"model": "tiny", "messages": MESSAGES, "max_tokens": 3}
            whole = client.chat.completions.create(**asked)
            with client.chat.completions.create(**asked, stream=True) as stream:
                text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
            vector = client.embeddings.create(model="tiny", input="one").data[0].embedding
            answer = client.responses.create(model="tiny", input="Hello", max_output_tokens=2)
            return whole.choices[0].message.content == text, len(vector), answer.status

    assert await asyncio.to_thread(use) == (True, 64, "incomplete")


async def test_an_unknown_model_is_not_found(client):
    with pytest.raises(
        openai.NotFoundError, match="'huge' does not exist here; served: tiny"
    ) as it:
        await client.chat.completions.create(model="huge", messages=MESSAGES)
    assert it.value.code == "model_not_found"
    assert it.value.type == "invalid_request_error"


async def test_what_the_engine_refuses_reaches_the_client_as_the_engine_said_it(client):
    with pytest.raises(openai.BadRequestError, match="maximum context length is 8192"):
        await client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=90_000)


async def test_a_malformed_request_is_a_bad_request(client):
    with pytest.raises(openai.BadRequestError, match="messages"):
        await client.chat.completions.create(model="tiny", messages="Hello")


async def test_a_key_that_is_not_known_is_an_authentication_error(kairos, standin):
    key = KeySettings(sha256=sha256(b"right").hexdigest(), tenant="acme")
    served = await kairos(standin.url, key=(key,))
    async with openai.AsyncOpenAI(**options(served, "wrong")) as client:
        with pytest.raises(openai.AuthenticationError):
            await client.models.list()
        with pytest.raises(openai.AuthenticationError):
            await client.chat.completions.create(model="tiny", messages=MESSAGES)
    async with openai.AsyncOpenAI(**options(served, "right")) as client:
        await client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=1)

    assert (await served.facts.seen(Arrived)).request.tenant == "acme"


async def test_no_reachable_instance_is_a_server_error_to_retry_later(kairos, standin, unused_port):
    served = await kairos(f"http://127.0.0.1:{unused_port}", joins=0)
    async with openai.AsyncOpenAI(**options(served)) as client:
        with pytest.raises(openai.InternalServerError, match="no instance") as refused:
            await client.chat.completions.create(model="tiny", messages=MESSAGES)

    assert refused.value.status_code == 503
    assert refused.value.response.headers["retry-after"] == "1"


async def test_an_error_inside_a_stream_is_raised_by_the_client(kairos, standin):
    served = await kairos(standin.url)
    async with openai.AsyncOpenAI(**options(served)) as client:
        for fail, message in (("error", "EngineCore"), ("cut", "broke off its answer")):
            stream = await client.chat.completions.create(
                model="tiny",
                messages=MESSAGES,
                max_tokens=8,
                stream=True,
                extra_body={"fail": fail},
            )
            assert (await anext(stream)).choices
            with pytest.raises(openai.APIError, match=message):
                [chunk async for chunk in stream]

    await served.facts.seen(Failed, 2)

"""OpenAI's own client works against Kairos with nothing but its base URL changed."""

import asyncio

import openai
import pytest

from kairos.core import Arrived, Failed, Finished, FirstToken
from tests.e2e.batch_files import client_of, key

MESSAGES = [{"role": "user", "content": "Hello there"}]


@pytest.fixture
async def served(kairos, standin):
    return await kairos(standin.url)


@pytest.fixture
async def client(served):
    async with client_of(served.url) as client:
        yield client


def chat(client, model="tiny", messages=MESSAGES, max_tokens=5, **given):
    return client.chat.completions.create(
        model=model, messages=messages, max_tokens=max_tokens, **given
    )


async def test_a_chat_completion_is_answered_whole(served, client):
    answer = await chat(client)

    assert len(answer.choices[0].message.content.split()) == answer.usage.completion_tokens == 5
    finished = await served.facts.seen(Finished)
    assert finished.prompt_tokens == answer.usage.prompt_tokens
    assert finished.completion_tokens == 5


async def test_a_streamed_chat_tells_kairos_its_usage_and_the_client_only_what_it_asked_for(
    served, client
):
    chunks = [chunk async for chunk in await chat(client, stream=True)]

    assert [chunk.usage for chunk in chunks] == [None] * len(chunks)
    assert all(chunk.choices for chunk in chunks)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert len(text.split()) == 5
    finished = await served.facts.seen(Finished)
    assert (finished.prompt_tokens, finished.completion_tokens) == (3, 5)
    assert len(served.facts.all(FirstToken)) == 1


async def test_a_streamed_chat_gives_usage_to_the_client_that_asks(client):
    stream = await chat(client, stream=True, stream_options={"include_usage": True})
    chunks = [chunk async for chunk in stream]

    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 5


async def test_completions_work_whole_and_streamed(client):
    asked = {"model": "tiny", "prompt": "Once upon a time", "max_tokens": 4, "seed": 1}
    whole = await client.completions.create(**asked)
    stream = await client.completions.create(**asked, stream=True)

    assert "".join([chunk.choices[0].text async for chunk in stream]) == whole.choices[0].text
    assert whole.usage.completion_tokens == 4


async def test_embeddings_work_in_the_clients_default_encoding(client, standin):
    answer = await client.embeddings.create(model="tiny", input=["one", "two"])

    assert b'"base64"' in standin.received[0].body
    assert [len(each.embedding) for each in answer.data] == [64, 64]
    assert sum(x * x for x in answer.data[0].embedding) == pytest.approx(1, abs=1e-4)


async def test_responses_work_whole_and_streamed(served, client):
    asked = {"model": "tiny", "input": "Hello there", "max_output_tokens": 4}
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


async def test_the_raw_response_names_the_request(served, client):
    raw = await client.chat.completions.with_raw_response.create(
        model="tiny", messages=MESSAGES, max_tokens=1
    )
    arrived = await served.facts.seen(Arrived)
    assert raw.headers["x-request-id"] == arrived.request.id == raw.parse()._request_id


async def test_the_blocking_client_works_from_a_thread(served):
    def use():
        with openai.OpenAI(base_url=f"{served.url}/v1", api_key="any", max_retries=0) as client:
            whole = chat(client)
            with chat(client, stream=True) as stream:
                text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
            vector = client.embeddings.create(model="tiny", input="one").data[0].embedding
            answer = client.responses.create(model="tiny", input="Hello", max_output_tokens=2)
            return whole.choices[0].message.content == text, len(vector), answer.status

    assert await asyncio.to_thread(use) == (True, 64, "incomplete")


REFUSED = {
    "an unknown model is not found": (
        {"model": "huge"},
        openai.NotFoundError,
        "'huge' does not exist here; served: tiny",
        ("model_not_found", "invalid_request_error"),
    ),
    "what the engine refuses reaches the client as the engine said it": (
        {"max_tokens": 90_000},
        openai.BadRequestError,
        "maximum context length is 8192",
        None,
    ),
    "a malformed request is a bad request": (
        {"messages": "Hello"},
        openai.BadRequestError,
        "messages",
        None,
    ),
}


@pytest.mark.parametrize("what", REFUSED)
async def test_what_is_refused_is_raised_as_an_error_of_its_kind(client, what):
    asked, kind, says, told = REFUSED[what]
    with pytest.raises(kind, match=says) as raised:
        await chat(client, **asked)
    assert told in (None, (raised.value.code, raised.value.type))


async def test_a_key_that_is_not_known_is_an_authentication_error(kairos, standin):
    served = await kairos(standin.url, key=(key("acme"),))
    async with client_of(served.url, "wrong") as client:
        with pytest.raises(openai.AuthenticationError):
            await client.models.list()
        with pytest.raises(openai.AuthenticationError):
            await chat(client)
    async with client_of(served.url, "acme") as client:
        await chat(client)

    assert (await served.facts.seen(Arrived)).request.tenant == "acme"


async def test_no_reachable_instance_is_a_server_error_to_retry_later(kairos, unused_port):
    served = await kairos(f"http://127.0.0.1:{unused_port}", joins=0)
    async with client_of(served.url) as client:
        with pytest.raises(openai.InternalServerError, match="no instance") as refused:
            await chat(client)

    assert refused.value.status_code == 503
    assert refused.value.response.headers["retry-after"] == "1"


async def test_an_error_inside_a_stream_is_raised_by_the_client(served, client):
    for fail, message in (("error", "EngineCore"), ("cut", "broke off its answer")):
        stream = await chat(client, max_tokens=8, stream=True, extra_body={"fail": fail})
        assert (await anext(stream)).choices
        with pytest.raises(openai.APIError, match=message):
            [chunk async for chunk in stream]

    await served.facts.seen(Failed, 2)

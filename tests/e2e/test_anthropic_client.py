"""Anthropic's own client works against Kairos with nothing but its base URL changed."""

import asyncio
import json

import anthropic
import pytest

from kairos.core import Arrived, Failed, Finished, FirstToken
from tests.e2e.batch_files import key
from tests.kinds.table import says
from tests.support.simulate import standin as standins
from tests.support.simulate.standin import Rule, Script, ToolUse

HELLO = [{"role": "user", "content": "Hello there"}]
ASKED = {"model": "tiny", "max_tokens": 5, "messages": HELLO}
HEAD = {"id": "m", "type": "message", "role": "assistant", "model": "tiny", "content": []} | {
    "usage": {"input_tokens": 1, "output_tokens": 0}
}
WEATHER = {"name": "weather", "description": "of a town", "input_schema": {"type": "object"}}


HALF = [
    b'event: message_start\ndata: {"type":"message_start","message":%b}\n\n'
    % json.dumps(HEAD).encode(),
    b'event: content_block_start\ndata: {"type":"content_block_start","index":0,%b}\n\n'
    % b'"content_block":{"type":"text","text":""}',
    b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,%b}\n\n'
    % b'"delta":{"type":"text_delta","text":"Half"}',
]
ENDS = (
    *(b'data: {"type":"message_stop"}\n\n', b'data: {"type":"response.completed"}\n\n'),
    b"data: [DONE]\n\n",
)


def client_of(served, **options):
    return anthropic.AsyncAnthropic(
        **{"base_url": served.url, "api_key": "a-key", "max_retries": 0, "timeout": 60} | options
    )


async def test_a_message_is_answered_whole(kairos, standin):
    served = await kairos(standin.url)
    async with client_of(served) as client:
        answer = await client.messages.create(**ASKED, system="Be brief.")
    assert len(answer.content[0].text.split()) == answer.usage.output_tokens == 5
    finished = await served.facts.seen(Finished)
    assert finished.prompt_tokens == answer.usage.input_tokens
    assert finished.completion_tokens == 5


async def test_a_stream_is_read_to_its_end_and_tells_its_usage(kairos, standin):
    served = await kairos(standin.url)
    async with (
        client_of(served) as client,
        client.messages.stream(**ASKED, system="Be brief.") as stream,
    ):
        answer = await stream.get_final_message()
    assert len(answer.content[0].text.split()) == 5
    assert answer.stop_reason in ("end_turn", "max_tokens")
    finished = await served.facts.seen(Finished)
    assert finished.completion_tokens == answer.usage.output_tokens == 5
    assert finished.prompt_tokens == answer.usage.input_tokens
    assert len(served.facts.all(FirstToken)) == 1


async def test_tokens_that_the_engine_had_cached_count_with_the_others(served, engine):
    usage = b'"input_tokens":2,"cache_read_input_tokens":48,"cache_creation_input_tokens":16'
    engine.answer = engine.stream(
        b'event: message_start\ndata: {"type":"message_start","message":{"id":"m","usage":{'
        + usage
        + b',"output_tokens":1}}}\n\n',
        b'event: message_delta\ndata: {"type":"message_delta","usage":{"output_tokens":7}}\n\n',
        b'event: message_stop\ndata: {"type":"message_stop"}\n\n',
    )
    engine.release(3)
    assert (await served.ask("POST", "/v1/messages", json=ASKED | {"stream": True})).status == 200
    finished = await served.facts.seen(Finished)
    told = finished.prompt_tokens, finished.completion_tokens, finished.cached_tokens
    assert told == (66, 7, 48)


async def test_the_result_of_a_tool_leads_back_to_the_call_that_asked_for_it(kairos):
    rules = (
        Rule(
            system="find",
            replies=["Done."],
            calls=ToolUse("weather", {"town": "Ulm, on the Danube"}),
        ),
    )
    settings = standins.StandInSettings(model="tiny")
    async with standins.serve(settings, Script(rules)) as standin:
        served = await kairos(standin.url)
        await _calls_a_tool(served)


async def _calls_a_tool(served):
    async with client_of(served) as client:
        said = {"model": "tiny", "max_tokens": 40, "tools": [WEATHER], "system": "You find things."}
        async with client.messages.stream(**said, messages=HELLO) as stream:
            first = await stream.get_final_message()
        assert first.stop_reason == "tool_use"
        result = {"type": "tool_result", "tool_use_id": first.content[0].id, "content": "rain"}
        asked = {"role": "assistant", "content": [each.to_dict() for each in first.content]}
        both = [*HELLO, asked, {"role": "user", "content": [result]}]
        await client.messages.create(**said, messages=both)
    one, two = (each.request for each in served.facts.all(Arrived))
    assert two.workflow_id == one.workflow_id
    assert two.parent_ids == (one.id,)
    assert one.agent == two.agent is not None


@pytest.mark.parametrize("header", ["x-api-key", "api-key", "x-goog-api-key", "Authorization"])
async def test_a_key_is_taken_from_the_header_that_a_client_uses(kairos, standin, header):
    served = await kairos(standin.url, key=(key("acme"),))
    shown = "beArer acme" if header == "Authorization" else "acme"
    for path in ("/v1/messages", "/v1/chat/completions"):
        answer = await served.ask("POST", path, json=ASKED, headers={header: shown})
        assert answer.status == 200, answer.body
    assert (await served.ask("GET", "/v1/models", headers={header: shown})).status == 200
    wrong = await served.ask("POST", "/v1/messages", json=ASKED, headers={header: "Bearer no"})
    assert (wrong.status, wrong.error()["type"]) == (401, "authentication_error")


@pytest.mark.parametrize(
    ("asked", "raised"),
    [
        ({"model": "another"}, anthropic.NotFoundError),
        ({"temperature": "hot"}, anthropic.BadRequestError),
        ({"messages": "none"}, anthropic.BadRequestError),
        ({"max_tokens": 0}, anthropic.BadRequestError),
    ],
)
async def test_what_is_wrong_is_refused_in_words_that_the_client_reads(
    kairos, standin, asked, raised
):
    served = await kairos(standin.url)
    async with client_of(served) as client:
        with pytest.raises(raised) as refused:
            await client.post("/v1/messages", body=ASKED | asked, cast_to=object)
    assert refused.value.body["type"] == "error"
    assert refused.value.request_id


@pytest.mark.parametrize("has_begun", [False, True])
async def test_a_stream_that_is_torn_raises_and_is_no_half_answer(served, engine, has_begun):
    sent = HALF if has_begun else []
    engine.answer = engine.stream(*sent, then=lambda transport: transport.abort())
    engine.release(1 + len(sent))
    async with client_of(served) as client:
        with pytest.raises(anthropic.APIStatusError):
            async with client.messages.stream(**ASKED) as stream:
                await stream.get_final_message()
    assert await served.facts.seen(Failed)


@pytest.mark.parametrize("route", ["/v1/messages", "/v1/chat/completions", "/v1/responses"])
@pytest.mark.parametrize("where", ["queue", "engine", "amid the stream"])
async def test_a_stream_that_is_silent_is_kept_alive_in_its_own_form(
    kairos, engine, monkeypatch, route, where
):
    monkeypatch.setattr("kairos.proxy.call.KEEP_ALIVE_S", 0.1)
    served = await kairos(engine.url, max_num_seqs=1)
    first = b'data: {"type":"x","choices":[]}\n\n'
    last = b"".join(ENDS)
    engine.answer = engine.stream(first, last)
    before = asyncio.create_task(served.chat()) if where == "queue" else None
    if before is not None:
        await engine.called(1)
    body = ASKED | {"input": "a", "stream": True}
    wire = await served.post_raw(route, body)
    if where == "amid the stream":
        engine.release(1)
    ping = b"event: ping\n" if route == "/v1/messages" else b": waiting"
    async with asyncio.timeout(60):
        await wire.reader.readuntil(ping)
    engine.release(4)
    async with asyncio.timeout(60):
        await wire.reader.readuntil(b"message_stop")
    if before is not None:
        await before


async def test_an_error_after_pings_is_an_event_that_the_client_raises(kairos, engine, monkeypatch):
    monkeypatch.setattr("kairos.proxy.call.KEEP_ALIVE_S", 0.1)
    served = await kairos(engine.url)
    turn = asyncio.Event()

    async def answer(request):
        await turn.wait()
        return await says(400)(request)

    engine.answer = answer
    async with client_of(served) as client:
        stream = await client.messages.create(**ASKED, stream=True)  # a ping has come
        turn.set()
        with pytest.raises(anthropic.APIStatusError, match="mine"):
            _ = [each async for each in stream]

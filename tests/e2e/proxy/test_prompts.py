"""What is known of a prompt when its call arrives, and of its answer while it comes; what an engine
is told of the call's turn."""

import json

import pytest
from aiohttp import web

from kairos.core import Arrived, Finished, FirstToken, Progressed
from tests.e2e.deciding import deciding

USAGE = {"prompt_tokens": 300, "completion_tokens": 3}
CHUNK = b'data: {"choices":[{"index":0,"delta":{"content":"x"}}]}\n\n'
DONE = b"data: [DONE]\n\n"


def answering(**answer):
    async def answer_it(_):
        return web.json_response(answer)

    return answer_it


async def arrived(served, number=1):
    return (await served.facts.seen(Arrived, number)).request


async def test_what_an_engine_counts_corrects_the_next_estimate_of_that_agent(served, engine):
    engine.answer = answering(usage=USAGE)
    writer, reader = {"X-Kairos-Agent": "writer"}, {"X-Kairos-Agent": "reader"}
    for headers in (writer, writer, reader):
        await served.chat(headers)
    engine.answer = answering(usage=USAGE | {"prompt_tokens": 30})
    for headers in (reader, reader, writer):
        await served.chat(headers)

    told = [fact.request.prompt_tokens for fact in served.facts.all(Arrived)]
    prompt = json.dumps([{"role": "user", "content": "Hello"}])[:-1]
    assert told[0] == len(prompt) // 4
    assert told[1:4] == [300, 300, 300]  # the reader's is its model's, the second time its own
    assert 30 < told[4] < 300
    assert told[5] == 300


async def test_the_usage_at_a_streams_end_corrects_too(served, engine):
    usage = b'data: {"choices":[],"usage":%s}\n\n' % json.dumps(USAGE).encode()
    engine.answer = engine.stream(CHUNK, usage, DONE)
    engine.release(6)
    for _ in range(2):
        assert (await served.chat(stream=True)).body == CHUNK + DONE

    assert (await arrived(served, 2)).prompt_tokens == 300


async def test_calls_of_one_conversation_are_known_by_what_they_begin_with(served):
    asked = [{"role": "user", "content": "a long question " * 100}]
    await served.chat(messages=asked)
    await served.chat(messages=[*asked, {"role": "assistant", "content": "Yes."}], max_tokens=7)
    first, second = await arrived(served), await arrived(served, 2)

    assert len(first.prefix) > 4
    assert second.prefix[: len(first.prefix)] == first.prefix
    assert second.prefix_units > first.prefix_units == len(json.dumps(asked)[:-1]) // 4
    assert (first.completion_limit, second.completion_limit) == (None, 7)


async def test_a_body_that_is_no_json_has_nothing_to_share(served):
    await served.ask("POST", "/v1/audio/transcriptions", data=b"RIFF" * 1000)

    request = await arrived(served)
    assert (request.prefix, request.prefix_units, request.prompt_tokens) == ((), 0, 1000)


@pytest.mark.parametrize("priority", [-(2**31), 0, 12])
async def test_the_engine_is_told_the_priority_that_was_decided_and_no_other(
    served, engine, priority
):
    deciding(served, lambda _: priority)
    await served.chat({"X-Vllm-Priority": "-99"}, priority=-99)

    [call] = engine.calls
    assert call.headers["x-vllm-priority"] == str(priority)
    # What a caller says of its priority does not reach an engine, however it is said.
    assert "priority" not in json.loads(call.body)


async def test_where_none_was_decided_none_is_told(served, engine):
    deciding(served, lambda _: None)
    await served.chat({"X-Vllm-Priority": "-99"})

    assert "x-vllm-priority" not in engine.calls[0].headers


async def test_how_far_streamed_answers_are_is_told_until_they_end(kairos, engine, monkeypatch):
    monkeypatch.setattr("kairos.proxy.engine.PROGRESS_S", 0.01)
    served = await kairos(engine.url)
    engine.answer = engine.stream(CHUNK, CHUNK * 2, DONE)
    engine.release()
    async with served._session.post(
        f"{served.url}/v1/chat/completions",
        json={"model": "tiny", "messages": [], "stream": True},
        headers={"X-Request-Id": "one"},
    ) as response:
        for number in (1, 3):
            assert await told_of(served, number) == Progressed({"one": number})
            engine.release()
        await response.read()
    await served.facts.seen(Finished)

    counts = [fact.completion_tokens["one"] for fact in served.facts.all(Progressed)]
    assert counts == sorted(counts)
    order = [type(record.event) for record in served.facts.records]
    assert order.index(FirstToken) < order.index(Progressed)
    assert Progressed not in order[order.index(Finished) :]
    assert served.service.brain.runtime._engine.streams == {}


async def told_of(served, tokens):
    """The first fact that tells of so many."""

    def found():
        facts = served.facts.all(Progressed)
        return next((f for f in facts if tokens in f.completion_tokens.values()), None)

    await served.facts.until(lambda: found() is not None)
    return found()

"""G12: calls of a prefill::decode pair, over real sockets, with OpenAI's client and stand-ins that
speak vLLM's interface of disaggregated prefill. A stand-in refuses a cache that is not there."""

import asyncio
import json
from contextlib import AsyncExitStack

import openai
import pytest
from aiohttp import web

from kairos.core import Bounced, Cancelled, Failed, Finished, InstanceLeft, PrefillFailed
from kairos.settings import EngineSettings
from tests.e2e.batch_files import client_of
from tests.support.engines.probes import probe_every
from tests.support.simulate import standin as standins

MESSAGES = [{"role": "user", "content": "What would it cost to compute this prompt twice?"}]
WANTED = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}


@pytest.fixture(autouse=True)
def seldom(monkeypatch):
    """Engines are looked at once, so that only calls meet what is wrong with them."""
    probe_every(monkeypatch)


@pytest.fixture
async def pair_of():
    """`await pair_of(prefill=..., decode=...)` starts stand-ins, each with a connector."""
    async with AsyncExitStack() as stack:

        async def start(**changes):
            return [
                await stack.enter_async_context(
                    standins.serve(
                        standins.StandInSettings(
                            model="tiny", kv_transfer=True, **changes.get(phase, {})
                        )
                    )
                )
                for phase in ("prefill", "decode")
            ]

        yield start


def settings(engine, phase):
    return EngineSettings(url=engine.url, phase=phase)


async def before(kairos, prefill, decode, **given):
    return await kairos(settings(prefill, "prefill"), settings(decode, "decode"), **given)


@pytest.fixture
async def split(kairos, pair_of):
    """A Kairos before a pair, a client of it, and the two instances."""
    prefill, decode = await pair_of()
    served = await before(kairos, prefill, decode)
    async with client_of(served.url) as client:
        yield served, client, prefill, decode


def bodies(engine):
    return [json.loads(each.body) for each in engine.received]


async def test_g12_the_prompt_goes_to_the_prefill_instance_and_its_cache_to_the_decode_instance(
    split,
):
    served, client, prefill, decode = split
    answer = await client.chat.completions.create(
        model="tiny", messages=MESSAGES, max_tokens=7, extra_headers={"x-request-id": "mine"}
    )

    assert answer.usage.completion_tokens == 7
    [first], [second] = bodies(prefill), bodies(decode)
    assert first == {
        "model": "tiny",
        "messages": MESSAGES,
        "max_tokens": 1,
        "stream": False,
        "kv_transfer_params": WANTED,
    }
    params = second.pop("kv_transfer_params")
    assert params["do_remote_prefill"]
    assert f"{params['remote_host']}:{params['remote_port']}" == prefill.url[len("http://") :]
    assert params["remote_block_ids"]
    assert second == {"model": "tiny", "messages": MESSAGES, "max_tokens": 7}
    ids = [each.headers["x-request-id"] for engine in (prefill, decode) for each in engine.received]
    assert ids == ["mine", "mine"]
    assert prefill.finished == decode.finished == 1
    assert (await served.facts.seen(Finished)).completion_tokens == 7


@pytest.mark.parametrize("route", ["chat", "completion"])
async def test_g12_streams_are_streamed_by_the_decode_instance(split, route):
    _, client, prefill, decode = split
    asked = {"model": "tiny", "stream": True, "max_tokens": 5,
             "stream_options": {"include_usage": True}}  # fmt: skip
    if route == "chat":
        stream = await client.chat.completions.create(
            messages=MESSAGES, max_completion_tokens=5, **asked
        )
    else:
        stream = await client.completions.create(prompt="Once upon a time", **asked)
    chunks = [chunk async for chunk in stream]

    assert chunks[-1].usage.completion_tokens == 5
    [first] = bodies(prefill)
    assert first["max_tokens"] == first.get("max_completion_tokens", 1) == 1
    assert "stream_options" not in first
    assert bodies(decode)[0]["stream"]


async def test_g12_many_calls_at_once_each_get_their_own_cache(split):
    served, client, prefill, decode = split
    await asyncio.gather(
        *(
            client.completions.create(model="tiny", prompt=f"story {n} " * n, max_tokens=3)
            for n in range(1, 41)
        )
    )

    assert prefill.finished == decode.finished == 40
    assert all("kv_transfer_params" in body for body in bodies(decode))
    await served.settled()


async def test_g12_what_has_no_two_halves_goes_to_the_decode_instance_alone(split):
    _, client, prefill, decode = split
    await client.embeddings.create(model="tiny", input="a")
    await client.responses.create(model="tiny", input="Hello")

    assert not prefill.received
    assert len(decode.received) == 2


async def test_without_phases_each_engine_serves_whole_calls(kairos, pair_of):
    one, other = await pair_of()
    served = await kairos(one.url, other.url)
    async with client_of(served.url) as client:
        await client.chat.completions.create(model="tiny", messages=MESSAGES)

    [body] = bodies(one) + bodies(other)
    assert body == {"model": "tiny", "messages": MESSAGES}


async def broken(request):
    return web.json_response({"error": {"message": "mine"}}, status=500)


async def without_params(request):
    return web.json_response({"object": "chat.completion", "choices": []})


async def no_json(request):
    return web.Response(text="<html>")


async def too_long(request):
    return web.Response(text=json.dumps({"kv_transfer_params": {"a": "b" * (2 << 20)}}))


async def cut(request):
    request.transport.abort()
    await asyncio.sleep(3600)


async def silent(request):
    await asyncio.sleep(3600)


@pytest.mark.parametrize("wrong", [broken, without_params, no_json, too_long, cut, silent])
async def test_g12_where_the_first_half_fails_the_decode_instance_serves_the_whole_call(
    kairos, engines, pair_of, wrong
):
    prefill, (_, decode) = await engines(), await pair_of()
    prefill.answer = wrong
    served = await before(kairos, prefill, decode, stall_s=1 if wrong is silent else 60)
    async with client_of(served.url) as client:
        answer = await client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=4)

    assert answer.usage.completion_tokens == 4
    assert bodies(decode) == [{"model": "tiny", "messages": MESSAGES, "max_tokens": 4}]
    assert len(served.facts.all(Finished)) == 1
    assert served.facts.all(Bounced, Failed) == []
    await served.settled()


async def test_g12_a_prefill_instance_that_fails_is_left_aside(kairos, engines, pair_of):
    prefill, (_, decode) = await engines(), await pair_of()
    prefill.answer = broken
    served = await before(kairos, prefill, decode)
    async with client_of(served.url) as client:
        for n in range(5):
            await client.completions.create(model="tiny", prompt=f"{n}", max_tokens=3)

    assert decode.finished == 5
    assert len(prefill.calls) == len(served.facts.all(PrefillFailed)) < 5
    assert served.facts.all(PrefillFailed)[0].body is not None
    await served.settled()


async def test_g12_a_prefill_instance_that_died_is_asked_no_more(kairos, engines, pair_of):
    prefill, (_, decode) = await engines(), await pair_of()
    served = await before(kairos, prefill, decode)
    await prefill.stop()
    async with client_of(served.url) as client:
        await client.chat.completions.create(model="tiny", messages=MESSAGES)
        await served.facts.seen(InstanceLeft)
        await client.chat.completions.create(model="tiny", messages=MESSAGES)

    assert decode.finished == 2
    await served.settled()


async def test_g12_where_the_cache_is_gone_the_call_goes_to_another_instance(kairos, pair_of):
    """The decode instance says that it cannot load it: as any answer that an instance fails."""
    prefill, decode = await pair_of()
    other = (await pair_of())[1]
    both = settings(prefill, "prefill"), settings(decode, "decode")
    served = await kairos(*both, EngineSettings(url=other.url, usd_per_hour=0.0))
    for each in (decode, other):
        forget_caches(prefill, each)
    async with client_of(served.url) as client:
        answers = await asyncio.gather(
            *(
                client.completions.create(model="tiny", prompt=f"{n}", max_tokens=3)
                for n in range(8)
            )
        )

    assert all(each.usage.completion_tokens == 3 for each in answers)
    await served.settled()


def forget_caches(prefill, decode):
    """Those that the prefill instance keeps are gone when the decode instance is asked."""
    decode._caches.fetch_cache, fetch = None, decode._caches.fetch_cache

    async def too_late(params, prompt):
        prefill._caches.kept.clear()
        await fetch(params, prompt)

    decode._caches.fetch_cache = too_late


async def test_g12_a_decode_instance_that_dies_under_a_call_loses_nothing(kairos, engines, pair_of):
    prefill, other = await pair_of()
    decode = await engines()
    decode.answer = broken
    served = await kairos(
        settings(prefill, "prefill"),
        EngineSettings(url=decode.url, phase="decode", usd_per_hour=1.0, kv_tokens=65_536),
        EngineSettings(url=other.url, phase="decode", usd_per_hour=2.0),
    )
    async with client_of(served.url) as client:
        for n in range(6):
            await client.completions.create(model="tiny", prompt=f"{n}", max_tokens=3)

    assert decode.calls
    assert len(served.facts.all(Bounced)) == len(decode.calls)
    assert other.finished == 6
    await served.settled()


async def test_g12_a_client_that_leaves_ends_its_call_on_the_prefill_instance(split):
    served, client, prefill, decode = split
    prefill.batch.pause()
    asking = asyncio.create_task(client.chat.completions.create(model="tiny", messages=MESSAGES))
    await prefill.until(lambda engine: engine.received)
    asking.cancel()
    await served.facts.seen(Cancelled)
    await prefill.until(lambda engine: engine.aborted)

    assert not decode.received
    await served.settled()


async def test_g12_a_prompt_that_is_refused_is_refused_by_the_decode_instance_too(kairos, pair_of):
    prefill, decode = await pair_of(prefill={"max_model_len": 64}, decode={"max_model_len": 64})
    served = await before(kairos, prefill, decode)
    async with client_of(served.url) as client:
        with pytest.raises(openai.BadRequestError, match="maximum context length"):
            await client.completions.create(model="tiny", prompt="word " * 200)

    assert served.facts.all(Bounced) == []


@pytest.mark.parametrize("fails", [None, "unavailable"])
async def test_a_client_cannot_say_where_its_cache_is_fetched_from(kairos, pair_of, fails):
    prefill, decode = await pair_of(prefill={"fail": fails})
    served = await before(kairos, prefill, decode)
    evil = {"do_remote_prefill": True, "remote_host": "192.0.2.1", "remote_port": 1}
    async with client_of(served.url) as client:
        await client.chat.completions.create(
            model="tiny", messages=MESSAGES, extra_body={"kv_transfer_params": evil}
        )

    assert bodies(prefill)[0]["kv_transfer_params"] == WANTED
    asked = bodies(decode)[0].get("kv_transfer_params")
    assert asked is None if fails else asked["remote_host"] == "127.0.0.1"


async def test_nor_can_it_where_the_call_is_not_split(kairos, pair_of):
    """An instance for prompts is alone; however the name is spelt."""
    prefill, _ = await pair_of()
    served = await kairos(settings(prefill, "prefill"))
    evil = {"do_remote_prefill": True, "remote_host": "192.0.2.1", "remote_port": 1}
    escaped = json.dumps({"model": "tiny", "messages": MESSAGES, "kv_transfer_params": evil})
    escaped = escaped.replace("kv_transfer", "kv\\u005ftransfer")
    async with client_of(served.url) as client:
        await client.chat.completions.create(
            model="tiny", messages=MESSAGES, extra_body={"kv_transfer_params": evil}
        )
    headers = {"content-type": "application/json"}
    path = "/v1/chat/completions"
    assert (await served.ask("POST", path, data=escaped, headers=headers)).status == 200

    assert len(bodies(prefill)) == 2
    assert not any("kv_transfer_params" in body for body in bodies(prefill))

"""One caller uses as much as one may; another is served."""

import asyncio
from contextlib import asynccontextmanager
from functools import partial

import aiohttp
from aiohttp import web

from kairos.core import Arrived
from tests.e2e.batch_files import key
from tests.e2e.client import Answer

BODY = 2_000  # bytes of a prompt
ONE, OTHER = "127.0.0.1", "127.0.0.2"


@asynccontextmanager
async def calling_from(served, host):
    """`await ask()`, from that address."""
    connector = aiohttp.TCPConnector(limit=0, local_addr=(host, 0))
    async with aiohttp.ClientSession(connector=connector) as session:

        async def ask(content="Hello", **options):
            body = {"model": "tiny", "messages": [{"role": "user", "content": content}]}
            url = served.url + "/v1/chat/completions"
            async with session.post(url, json=body, **options) as response:
                return Answer(response.status, response.headers, await response.read())

        yield ask


def assert_is_refused(answer, words):
    assert (answer.status, answer.headers["x-kairos-reason"]) == (429, "caller_share")
    assert answer.headers["retry-after"] == "1"
    assert words in answer.error()["message"]


async def served_at_once(request):
    return web.json_response({"object": "made up"})


async def one_is_refused_and_another_served(served, engine, ask, ask_other, held, words):
    """`held`: the calls that one may have under way."""
    engine.answer = engine.when_released
    calls = [asyncio.create_task(ask()) for _ in range(held)]
    await served.facts.seen(Arrived, held)
    assert_is_refused(await ask(), words)
    calls.append(asyncio.create_task(ask_other()))
    await served.facts.seen(Arrived, held + 1)
    engine.release(held + 1)
    assert {(await each).status for each in calls} == {200}


KEYS = key("greedy"), key("other")
OF_KEYS = [{"headers": {"authorization": f"Bearer {each.tenant}"}} for each in KEYS]


async def test_a_key_whose_calls_hold_its_share_is_refused_while_another_is_served(kairos, engine):
    served = await kairos(engine.url, key=KEYS, max_held_bytes=10 * BODY, max_body_bytes=BODY * 2)
    async with calling_from(served, ONE) as ask:
        asks = [partial(ask, "x" * BODY, **each) for each in OF_KEYS]
        await one_is_refused_and_another_served(served, engine, *asks, 8, "bodies in flight")
    metrics = (await served.ask("GET", "/metrics")).body
    assert b'kairos_errors_total{code="caller_share"} 1.0\n' in metrics


async def test_without_keys_a_caller_is_an_address(kairos, engine):
    served = await kairos(engine.url, max_held_bytes=10 * BODY, max_body_bytes=BODY * 2)
    async with calling_from(served, ONE) as ask, calling_from(served, OTHER) as ask_other:
        asks = [partial(each, "x" * BODY) for each in (ask, ask_other)]
        await one_is_refused_and_another_served(served, engine, *asks, 8, "bodies in flight")


async def test_an_address_at_its_bound_of_connections_is_refused_while_another_is_served(
    kairos, engine
):
    served = await kairos(engine.url, max_connections=20)
    async with calling_from(served, ONE) as ask, calling_from(served, OTHER) as ask_other:
        await one_is_refused_and_another_served(
            served, engine, ask, ask_other, 18, "has 18 connections"
        )
        engine.answer = served_at_once
        async with calling_from(served, ONE) as ask_anew:  # those that idle now make room
            assert [(await ask_anew()).status for _ in range(3)] == [200] * 3


async def test_a_key_whose_calls_wait_in_its_share_of_places_is_refused_and_another_waits(
    kairos, engine
):
    served = await kairos(engine.url, key=KEYS, max_num_seqs=1, max_waiting=20)
    async with calling_from(served, ONE) as ask:
        asks = [partial(ask, **each) for each in OF_KEYS]
        words = "has 18 requests that wait"  # and one that runs
        await one_is_refused_and_another_served(served, engine, *asks, 19, words)

"""One caller uses as much as one may; another is served."""

import asyncio
from contextlib import asynccontextmanager

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


async def test_a_key_whose_calls_hold_its_share_is_refused_while_another_is_served(kairos, engine):
    keys = tuple(map(key, ("greedy", "other")))
    served = await kairos(engine.url, key=keys, max_held_bytes=10 * BODY, max_body_bytes=BODY * 2)
    engine.answer = engine.when_released
    async with calling_from(served, ONE) as ask:

        def call(tenant):
            headers = {"authorization": f"Bearer {tenant}"}
            return asyncio.create_task(ask("x" * BODY, headers=headers))

        held = [call("greedy") for _ in range(8)]
        await served.facts.seen(Arrived, 8)
        assert_is_refused(await call("greedy"), "bodies in flight")
        others = call("other")
        await served.facts.seen(Arrived, 9)
        engine.release(9)
        assert [(await each).status for each in (*held, others)] == [200] * 9
    metrics = (await served.ask("GET", "/metrics")).body
    assert b'kairos_errors_total{code="caller_share"} 1.0\n' in metrics


async def test_without_keys_a_caller_is_an_address(kairos, engine):
    served = await kairos(engine.url, max_held_bytes=10 * BODY, max_body_bytes=BODY * 2)
    engine.answer = engine.when_released
    async with calling_from(served, ONE) as ask, calling_from(served, OTHER) as ask_other:
        held = [asyncio.create_task(ask("x" * BODY)) for _ in range(8)]
        await served.facts.seen(Arrived, 8)
        assert_is_refused(await ask("x" * BODY), "bodies in flight")
        others = asyncio.create_task(ask_other("x" * BODY))
        await served.facts.seen(Arrived, 9)
        engine.release(9)
        assert [(await each).status for each in (*held, others)] == [200] * 9


async def test_an_address_at_its_bound_of_connections_is_refused_while_another_is_served(
    kairos, engine
):
    served = await kairos(engine.url, max_connections=20)
    engine.answer = engine.when_released
    async with calling_from(served, ONE) as ask, calling_from(served, OTHER) as ask_other:
        held = [asyncio.create_task(ask()) for _ in range(18)]
        await served.facts.seen(Arrived, 18)
        assert_is_refused(await ask(), "has 18 connections")
        others = asyncio.create_task(ask_other())
        await served.facts.seen(Arrived, 19)
        engine.release(19)
        assert [(await each).status for each in (*held, others)] == [200] * 19
        engine.answer = served_at_once
        async with calling_from(served, ONE) as ask_anew:  # those that idle now make room
            assert [(await ask_anew()).status for _ in range(3)] == [200] * 3


async def test_a_key_whose_calls_wait_in_its_share_of_places_is_refused_and_another_waits(
    kairos, engine
):
    keys = tuple(map(key, ("greedy", "other")))
    served = await kairos(engine.url, key=keys, max_num_seqs=1, max_waiting=20)
    engine.answer = engine.when_released
    async with calling_from(served, ONE) as ask:

        def call(tenant):
            headers = {"authorization": f"Bearer {tenant}"}
            return asyncio.create_task(ask(headers=headers))

        held = [call("greedy") for _ in range(19)]  # of which one runs
        await served.facts.seen(Arrived, 19)
        assert_is_refused(await call("greedy"), "has 18 requests that wait")
        others = call("other")
        await served.facts.seen(Arrived, 20)
        engine.release(20)
        assert [(await each).status for each in (*held, others)] == [200] * 20

"""When all clients have left, a service equals a new one: a count that is not taken back would
refuse later clients."""

import asyncio
import gc
import gzip
import json
from collections import Counter

from aiohttp import web

from tests.e2e.client import LIMIT_S
from tests.e2e.conftest import engines, kairos  # noqa: F401 - fixtures
from tests.support.pristine import differences, state_of

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}]}
EVENT = b'data: {"choices": [{"delta": {"content": "a"}}]}\n\n'
ROOMS = ("kairos.gateway.api", "kairos.proxy", "kairos.request")
KEPT = {
    *("Replies._by_id", "Replies._of_workflow"),  # what calls may go on from
    "Connections._idle",  # to engines, for the next calls
    "Connections._sweep",  # a timer, while one of these is kept
    "ConnectionLimits._looks",  # while a timer runs
}


class Engine:
    """Answers by what is asked of it: whole, in a stream, with an error, or by closing."""

    def __init__(self, engine):
        self.engine = engine
        engine.answer = self.answer

    async def answer(self, request):
        body = json.loads(await request.read())
        match body["messages"][0]["content"]:
            case "fail":
                return web.json_response({"error": "made up"}, status=500)
            case "refuse":
                return web.json_response({"error": "made up"}, status=400)
            case "wait":
                await asyncio.Event().wait()
        if not body.get("stream"):
            return web.json_response({"choices": [], "usage": {"prompt_tokens": 3}})
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(EVENT)
        if body["messages"][0]["content"] == "hang":
            await asyncio.Event().wait()
        await response.write(b"data: [DONE]\n\n")
        return response


async def round_of_clients(live, engine):
    """Clients of all fates, until all have left."""
    calls = len(engine.calls)

    async def asks(*headers, content="Hello", body=None, **fields):
        wire = await live.connect()
        asked = CHAT | {"messages": [{"role": "user", "content": content}]} | fields
        await wire.post("/v1/chat/completions", asked if body is None else body, *headers)
        return wire

    answered = [
        await asks(),
        await asks(stream=True),
        await asks(content="fail"),
        await asks(content="refuse"),
        await asks(model="unknown"),
        await asks(body=b"{"),
        await asks("Content-Encoding: gzip", body=gzip.compress(json.dumps(CHAT).encode())),
        await asks("Content-Encoding: unknown", body=b"{}"),
    ]
    for wire in answered:
        await wire.answer()
    for _ in range(2):  # again, on a connection that is kept
        await answered[0].post("/v1/chat/completions", CHAT)
        await answered[0].answer()
    leaving = [await asks(content="wait"), await asks(content="hang", stream=True)]
    await leaving[1].head()
    await engine.until(lambda: sum(b"wait" in each.body for each in engine.calls[calls:]) == 1)
    unfinished = await live.connect()
    await unfinished.send(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n")
    half = await live.connect()
    await half.send(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"
    )
    for wire in (*answered, *leaving, unfinished, half):
        await wire.close()
    await live.settled()


def objects(others=()):
    """Return the live objects of the running service."""
    gc.collect()
    known = {id(each) for each in others}
    return [
        each
        for each in gc.get_objects()
        if str(type(each).__module__).startswith(ROOMS) and id(each) not in known
    ]


def counted(found):
    """Connections to engines are kept for a while."""
    return Counter(each for each in map(kind, found) if each != "EngineLink")


def kind(each):
    return type(each).__name__


async def test_many_clients_leave_a_service_as_a_few_left_it(kairos, engines):  # noqa: F811
    others = objects()
    engine = await engines()
    Engine(engine)
    live = await kairos(engine.url)
    found = [each for each in objects(others) if kind(each) != "EngineLink"]

    def state():
        return state_of(found, ignoring=KEPT, sizes_only=True, within=ROOMS)

    async def clients_come_and_go():
        await round_of_clients(live, engine)
        async with asyncio.timeout(LIMIT_S):
            while counted(objects(others)) != counted(found):  # the server has yet to see it
                await asyncio.sleep(0.02)

    await clients_come_and_go()
    first = state()
    for _ in range(2):
        await clients_come_and_go()
    assert differences(first, state()) == []

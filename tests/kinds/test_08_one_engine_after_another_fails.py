"""All kinds together: one engine fails in each way in turn, under steady load; another is well.

Nobody waits for a time to pass while the other has room, and a call fails only where its
client had a part of the answer. Both are stand-ins: what a step costs is modelled, KV blocks are
not.
"""

import asyncio
import itertools
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random

import aiohttp
import pytest
from aiohttp import web

from tests.kinds.table import CHAT, COMPLETIONS, EMBEDDINGS, NEVER_S, body, says
from tests.support.simulate import standin as standins
from tests.support.simulate.standin import Timing

CALLS_PER_S = 40
TIMING = Timing(step_s=0.005, step_per_seq_s=0.0001)
NEITHER = {"host", "transfer-encoding", "content-length"}


class FailingEngine:
    """A stand-in, and before it what can go wrong with one."""

    def __init__(self, engine, standin, session):
        self._engine, self._standin, self._session = engine, standin, session
        engine.probe = engine.answer = self._forward
        self.url, self._dice = engine.url, Random(3)

    async def _forward(self, request):
        headers = {k: v for k, v in request.headers.items() if k.lower() not in NEITHER}
        url, data = self._standin.url + request.raw_path, await request.read()
        async with self._session.request(request.method, url, headers=headers, data=data) as told:
            headers = {k: v for k, v in told.headers.items() if k.lower() not in NEITHER}
            answer = web.StreamResponse(status=told.status, headers=headers)
            await answer.prepare(request)
            async for part in told.content.iter_any():
                await answer.write(part)
            await answer.write_eof()
            return answer

    @asynccontextmanager
    async def failing(self, how, engines):
        """Fail so until the block ends."""
        engine, port = self._engine, int(self.url.rpartition(":")[2])
        if how == "killed":
            await engine.stop()
            yield
            again = await engines(port)
            again.probe = again.answer = self._forward
            self._engine = again
        elif how == "stalled":
            self._standin.batch.pause()
            yield
            self._standin.batch.resume()
        else:
            status, share = {"busy": (429, 1), "errors": (500, 0.1), "key": (401, 1)}.get(
                how, (404, 1)
            )
            refuses = says(status)

            async def answer(request):
                refused = self._dice.random() < share
                return await (refuses(request) if refused else self._forward(request))

            engine.answer = answer
            yield
            engine.answer = self._forward


async def _call(served, number, ends):
    """Make one call, and note its status and whether its answer was whole."""
    route = (CHAT, CHAT, COMPLETIONS, EMBEDDINGS)[number % 4]
    streams = number % 4 in (1, 2)
    asked = body(route, f"question {number}", **({} if route == EMBEDDINGS else {"max_tokens": 8}))
    answer = await served.ask("POST", route, json=asked | ({"stream": True} if streams else {}))
    said = answer.body.decode()
    is_whole = answer.status == 200 and (not streams or "[DONE]" in said) and '"error"' not in said
    had_begun = streams and '"choices"' in said
    ends.append((answer.status, is_whole, had_begun, said[-200:]))


async def _scenario(kairos, engines, phase_s):
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(aiohttp.ClientSession())
        both = [FailingEngine(await engines(), await _standin(stack), session) for _ in range(2)]
        served = await kairos(*(each.url for each in both), suspicion_s=NEVER_S)
        ends, calls = [], []
        numbers = itertools.count()

        async def load(seconds):
            for _ in range(int(seconds * CALLS_PER_S)):
                calls.append(asyncio.create_task(_call(served, next(numbers), ends)))
                await asyncio.sleep(1 / CALLS_PER_S)

        await load(0.5)
        for how in ("killed", "busy", "errors", "stalled", "key", "unloaded"):
            async with both[0].failing(how, engines):
                await load(phase_s)
        await load(0.5)
        await asyncio.gather(*calls)
    failed = [each for each in ends if not each[1] and not each[2]]
    assert len(ends) == next(numbers)
    assert failed == []


async def _standin(stack):
    settings = standins.StandInSettings(model="tiny", max_num_seqs=64, timing=TIMING)
    return await stack.enter_async_context(standins.serve(settings))


async def test_nobody_waits_long_and_no_call_fails_that_the_other_would_have_served(
    kairos, engines
):
    await _scenario(kairos, engines, phase_s=0.8)


@pytest.mark.long
async def test_the_same_for_a_minute(kairos, engines):
    await _scenario(kairos, engines, phase_s=10)

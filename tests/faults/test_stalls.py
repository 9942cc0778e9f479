"""A call that its instance has forgotten goes elsewhere long before `stall_s`."""

import asyncio
import re
from contextlib import AsyncExitStack, asynccontextmanager

import aiohttp
import pytest

from kairos.core import Bounced
from tests.e2e.client import Answer
from tests.e2e.gateway.test_serve_command import spawn
from tests.e2e.served import serving
from tests.faults.faults import Delay, Stall
from tests.faults.proxy import Proxy
from tests.support.simulate import standin as standins
from tests.support.simulate.standin import Timing

TOKENS = 10
CALLERS = 16  # at a time: both engines together have room for as many, so each has its half
KNOWN = 200  # calls, after which it is known how long silences are
NEVER_S = 3_600  # the limit that is set: only what is known of silences ends one in this time


@asynccontextmanager
async def engines(number=2, step_s=0.005):
    """The proxies before so many."""
    timing = Timing(step_s=step_s, step_per_seq_s=0.0)
    settings = standins.StandInSettings(model="tiny", max_num_seqs=16, timing=timing)
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        served = [await enter(standins.serve(settings)) for _ in range(number)]
        yield [await enter(Proxy(each.url)) for each in served]


@asynccontextmanager
async def pool(number=2, step_s=0.005):
    """A Kairos before so many engines, and the proxies before these."""
    async with (
        engines(number, step_s) as proxies,
        serving(
            *(each.url for each in proxies), max_num_seqs=CALLERS // 2, stall_s=NEVER_S
        ) as served,
    ):
        yield served, proxies


async def call(served, *, stream):
    body = {"max_tokens": TOKENS, "min_tokens": TOKENS, "stream": stream}
    return (await served.chat(**body)).status


async def play(served, *, calls, stream, callers=CALLERS):
    """What became of so many calls, each of which follows another's end."""
    left = iter(range(calls))

    async def caller():
        return [await call(served, stream=stream) for _ in left]

    return [
        each for made in await asyncio.gather(*(caller() for _ in range(callers))) for each in made
    ]


@pytest.mark.parametrize("stream", [True, False], ids=["streams", "whole answers"])
async def test_what_hangs_is_answered_by_another_instance_in_seconds(stream):
    async with pool() as (served, proxies):
        await play(served, calls=KNOWN, stream=stream)
        proxies[0].hurt(Stall(), times=4)
        made = await play(served, calls=100, stream=stream)

        bounced = served.facts.all(Bounced)
        assert [each.reason for each in bounced] == ["stalled"] * 4
        assert set(made) == {200}
        await served.settled()


async def test_an_instance_that_hangs_as_a_whole_loses_all_that_has_not_begun():
    async with pool() as (served, proxies):
        await play(served, calls=KNOWN, stream=True)
        proxies[0].hurt(Stall(), times=None)
        made = await play(served, calls=100, stream=True)

        assert {each.reason for each in served.facts.all(Bounced)} == {"stalled"}
        assert set(made) == {200}
        await served.settled()


@pytest.mark.parametrize("stream", [True, False], ids=["streams", "whole answers"])
async def test_slow_and_steady_engines_keep_their_calls(stream):
    async with pool(step_s=0.3) as (served, proxies):
        for proxy in proxies:
            proxy.hurt(Delay(2), times=None)
        made = await play(served, calls=CALLERS, stream=stream)

        assert set(made) == {200}
        assert served.facts.all(Bounced) == []


async def test_where_there_is_no_other_instance_a_call_waits_on():
    async with pool(1) as (served, proxies):
        await play(served, calls=KNOWN, stream=True)
        proxies[0].hurt(Stall(), times=1)
        waiting = asyncio.create_task(call(served, stream=True))
        await play(served, calls=80, stream=True, callers=1)

        assert not waiting.done()
        assert served.facts.all(Bounced) == []
        waiting.cancel()
        await asyncio.wait({waiting})


class Workers:
    """`kairos serve --workers 2`, asked as `served.Kairos` is."""

    def __init__(self, url, session):
        self._url, self._session = url, session

    async def chat(self, **fields):
        body = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}]} | fields
        url = f"{self._url}/v1/chat/completions"
        async with asyncio.timeout(60), self._session.post(url, json=body) as response:
            return Answer(response.status, response.headers, await response.read())


async def test_a_process_that_only_performs_calls_notices_it_too():
    async with engines() as proxies, AsyncExitStack() as stack:
        names = [f"--engine={each.url},max_num_seqs={CALLERS // 2}" for each in proxies]
        ports = "--port", "0", "--admin-port", "0"
        process = await spawn(*ports, "--workers", "2", *names, KAIROS_STALL_S=str(NEVER_S))
        stack.push_async_callback(process.communicate)
        stack.callback(process.terminate)
        said = (await process.stdout.readline()).decode()
        url = re.search(r"http://[0-9.]+:[0-9]+", said)[0]
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        session = await stack.enter_async_context(aiohttp.ClientSession(connector=connector))
        served = Workers(url, session)
        async with asyncio.timeout(60):
            while (await served.chat()).status != 200:
                await asyncio.sleep(0.1)
        await play(served, calls=KNOWN, stream=True)
        proxies[0].hurt(Stall(), times=2)
        made = await play(served, calls=100, stream=True)

        assert proxies[0].hurts["Stall"] == 2
        assert set(made) == {200}

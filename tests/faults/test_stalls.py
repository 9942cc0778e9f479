"""A call that its instance has forgotten goes elsewhere long before `stall_s`."""

import asyncio
import time
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from kairos.events import Bounced
from kairos.standin import server as standins
from kairos.standin.batch import Timing
from tests.e2e.served import serving
from tests.faults.faults import Delay, Stall
from tests.faults.proxy import Proxy

SOON_S = 10.0
TOKENS = 10


@asynccontextmanager
async def pool(*, engines=2, step_s=0.005):
    """A Kairos before so many engines, and the proxies before these."""
    timing = Timing(step_s=step_s, step_per_seq_s=0.0)
    settings = standins.StandInSettings(model="tiny", max_num_seqs=16, timing=timing)
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        served = [await enter(standins.serve(settings)) for _ in range(engines)]
        proxies = [await enter(Proxy(each.url)) for each in served]
        yield await enter(serving(*(each.url for each in proxies), max_num_seqs=16)), proxies


async def call(served, *, stream, tokens=TOKENS):
    body = {"max_tokens": tokens, "min_tokens": tokens, "stream": stream}
    began = time.monotonic()
    answer = await served.chat(**body)
    return answer.status, time.monotonic() - began


async def play(served, *, seconds, stream, callers=16, tokens=TOKENS):
    """What became of calls that follow each other."""
    until = time.monotonic() + seconds

    async def caller():
        made = []
        while time.monotonic() < until:
            made.append(await call(served, stream=stream, tokens=tokens))
        return made

    return [
        each for made in await asyncio.gather(*(caller() for _ in range(callers))) for each in made
    ]


@pytest.mark.parametrize("stream", [True, False], ids=["streams", "whole answers"])
async def test_what_hangs_is_answered_by_another_instance_in_seconds(stream):
    async with pool() as (served, proxies):
        await play(served, seconds=4, stream=stream)
        proxies[0].hurt(Stall(), times=4)
        made = await play(served, seconds=2, stream=stream)

        bounced = served.facts.all(Bounced)
        assert [each.reason for each in bounced] == ["stalled"] * 4
        assert {status for status, _ in made} == {200}
        assert max(took for _, took in made) < SOON_S
        await served.settled()


async def test_an_instance_that_hangs_as_a_whole_loses_all_that_has_not_begun():
    async with pool() as (served, proxies):
        await play(served, seconds=4, stream=True)
        proxies[0].hurt(Stall(), times=None)
        made = await play(served, seconds=2, stream=True)

        assert {each.reason for each in served.facts.all(Bounced)} == {"stalled"}
        assert {status for status, _ in made} == {200}
        assert max(took for _, took in made) < SOON_S
        await served.settled()


@pytest.mark.parametrize("stream", [True, False], ids=["streams", "whole answers"])
async def test_slow_and_steady_engines_keep_their_calls(stream):
    async with pool(step_s=0.3) as (served, proxies):
        for proxy in proxies:
            proxy.hurt(Delay(2), times=None)
        made = await play(served, seconds=8, stream=stream)

        assert {status for status, _ in made} == {200}
        assert served.facts.all(Bounced) == []


async def test_where_there_is_no_other_instance_a_call_waits_on():
    async with pool(engines=1) as (served, proxies):
        await play(served, seconds=4, stream=True)
        proxies[0].hurt(Stall(), times=1)
        waiting = asyncio.create_task(call(served, stream=True))
        await play(served, seconds=7, stream=True, callers=1)

        assert not waiting.done()
        assert served.facts.all(Bounced) == []
        waiting.cancel()
        await asyncio.wait({waiting})

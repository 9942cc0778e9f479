"""When everything that came has left, a thing is like a new one.

A row gives what makes one, what comes and leaves, and what may differ. Each is used twice, so that
what is made at its first use is there both times.
"""

import asyncio
import gzip
from types import SimpleNamespace

import pytest

from kairos.core import KairosError, ShareUsed
from kairos.proxy import CallsInFlight
from kairos.request import Bodies, ClientResponse
from kairos.workflows.retrieve.engine_pool import EnginePool
from tests.laws.cluster.shares import Trials, custody, new_share, trials
from tests.laws.gateway.clients import clients, new_limits, new_watch, old_heads, viewers
from tests.support.pristine import differences, state_of
from tests.unit.request.test_bodies import PACKED, Source, Taker


async def bodies(held):
    """Bodies as they are, packed, too large, of several callers, given back twice."""
    packed = gzip.compress(b"x" * 100)
    for caller, content, headers in [
        ("a", b"x" * 100, {}),
        ("b", packed, PACKED),
        ("a", b"x" * 2000, {}),
        ("b", gzip.compress(b"x" * 2000), PACKED),
        ("c", b"no gzip", PACKED),
    ]:
        response, taker = ClientResponse("r", None), Taker()
        response.caller = caller
        try:
            held.read_body(headers, Source(content), response, taker)
            await asyncio.wait_for(taker.end, 60)
        except KairosError:
            pass
        held.release_bytes(response)
        held.release_bytes(response)


async def turns(calls):
    """Calls that go, that wait and leave, that are declined, and some that were never there."""
    told = SimpleNamespace(go=lambda _: None, give_up=lambda *_, **__: None)
    for number in range(3):
        calls.expect(f"r{number}", told)
        calls.streams[f"r{number}"] = None
    for number in (0, 2):
        calls.dispatch(SimpleNamespace(request_id=f"r{number}", instance_id="a"))
        calls.dispatch(SimpleNamespace(request_id=f"r{number}", instance_id="b"))
    calls.decline("r1", ShareUsed("has much"))
    for number in (0, 1, 2, 2, 3):
        calls.forget(f"r{number}")


async def items(pool):
    assert await pool.results((1,), 0, range(20)) == [2 * each for each in range(20)]
    for _ in range(9):
        await asyncio.sleep(0)


async def double(_engine, numbers):
    return [2 * each for each in numbers]


EVERYTHING = {
    "connections": (new_limits, clients, {"ConnectionLimits._looks"}),
    "heads that are awaited": (
        new_limits,
        old_heads,
        {"ConnectionLimits._looks"},
    ),
    "bodies": (lambda: Bodies(1000, 10_000), bodies, set()),
    "a share of a topic": (
        new_share,
        custody,
        {"Watermark._next", "Watermark._end", "Share._is_claimed"},
    ),
    "trials of suspects": (Trials, trials, set()),
    "calls in flight": (CallsInFlight, turns, set()),
    "viewers of the page": (new_watch, viewers, set()),
    "work over several engines": (
        lambda: EnginePool(("a", "b"), double, 4),
        items,
        {"EngineLoad.given", "EngineLoad.sound", "BatchQueue._next_id"},
    ),
}


@pytest.mark.parametrize("what", EVERYTHING)
async def test_what_everything_has_left_is_like_new(what):
    new, comes_and_leaves, ignoring = EVERYTHING[what]
    made = new()
    before = state_of(made, ignoring=ignoring)
    await comes_and_leaves(made)
    assert differences(before, state_of(made, ignoring=ignoring)) == []
    await comes_and_leaves(made)
    assert differences(before, state_of(made, ignoring=ignoring)) == []

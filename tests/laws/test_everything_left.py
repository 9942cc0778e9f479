"""When everything that came has left, a thing is like a new one.

A row gives what makes one, what comes and leaves, and what may differ. Each is used twice, so that
what is made at its first use is there both times.
"""

import asyncio
import gzip
from types import SimpleNamespace

import pytest

from kairos.cluster import ReceivedMessage
from kairos.cluster.kafka.items import Assigned, Passed
from kairos.cluster.kafka.share import Share
from kairos.cluster.kafka.trials import Trials
from kairos.core import KairosError, ShareUsed
from kairos.gateway.page.watch import Watch
from kairos.gateway.server import connection_limits
from kairos.gateway.server.connection_limits import ConnectionLimits
from kairos.proxy import CallsInFlight
from kairos.request import Bodies, ClientResponse
from kairos.workflows.retrieve.engine_pool import EnginePool
from tests.support.pristine import differences, state_of
from tests.unit.gateway.server.test_connection_limits import Client
from tests.unit.request.test_bodies import PACKED, Source, Taker


class Late(Client):
    """A client whose connection ends as soon as its head is late."""

    def __init__(self, limits, *arguments, **fields):
        self.limits = limits
        super().__init__(limits, *arguments, **fields)

    def head_is_late(self):
        self.late = True
        self.limits.left(self, self.peer)


async def clients(limits):
    """Clients with and without heads, idle ones that make room, ones that are turned away."""
    at = asyncio.get_running_loop().time()
    came = [Late(limits, is_idle=number == 2) for number in range(10)]
    stay = [each for each in came if each.stays and not each.closed]
    for each in came:
        if not each.stays and hasattr(each.transport, "protocol"):
            each.transport.protocol.connection_lost(None)
    limits.has_head(stay[0], stay[0].peer)
    limits.has_head(stay[0], stay[0].peer)
    for each in stay[:2]:
        limits.left(each, each.peer)
        limits.left(each, each.peer)
    for name in stay[2].peer.unfinished:
        stay[2].peer.unfinished[name] = at - connection_limits.HEAD_S - 1
    limits._look()
    assert all(each.late for each in stay[2:])
    assert not limits._peers


async def old_heads(limits):
    """Enough connections await a request head that the oldest is evicted."""
    came = []
    for _ in range(4):
        came.append(Late(limits))
        if came[-1].stays:
            for each in came[-1].peer.unfinished:
                came[-1].peer.unfinished[each] -= 2
    assert any(each.late for each in came)
    for each in came:
        if each.stays:
            limits.left(each, each.peer)


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
            held.read(headers, Source(content), response, taker)
            await asyncio.wait_for(taker.end, 60)
        except KairosError:
            pass
        held.end(response)
        held.end(response)


async def custody(share):
    """A member that claims a share, works it off and leaves in order."""
    share.is_open = True
    share.claim("me")
    began = share.watermark.state()[0]
    for offset in range(began, began + 3):
        share.add(ReceivedMessage("t", 0, offset, 0, "k", b"v", {}))
    share.add(Passed("t", 0, began + 5))
    done = list(share.begin())
    assert len(done) == 1
    while (following := share.next_of("k")) is not None:
        share.finish(done.pop())
        done.append(following)
    share.finish(done.pop())
    list(share.begin())
    share.leave()
    share.is_open = False


async def trials(court):
    """A suspect is tried while something else is in hand, and acquitted."""
    share = Share(Assigned("t", 0, 0, "held:a deaths:2 suspects:AQI="))
    share.claim("me")
    court.ask()
    court.begin()
    court.answer(share)

    async def secure():
        return

    async def suspect():
        court.begin()
        async with court.trial(share, 0, secure):
            share.custody.done(0)
            share.custody.done(2)
        court.end()

    task = asyncio.create_task(suspect())
    await asyncio.sleep(0)
    court.end()
    await asyncio.wait_for(task, 60)
    court.review()


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


async def viewers(watch):
    """Two viewers; the last one closes the page."""
    task = asyncio.create_task(watch.run())
    pages = [watch.pictures(), watch.pictures()]
    for each in pages:
        assert await asyncio.wait_for(anext(each), 60) == b"picture"
    for each in pages:
        await each.aclose()
    watch._is_over = False
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    watch._is_over = False


async def items(pool):
    assert await pool.results((1,), 0, range(20)) == [2 * each for each in range(20)]
    for _ in range(9):
        await asyncio.sleep(0)


async def double(_engine, numbers):
    return [2 * each for each in numbers]


EVERYTHING = {
    "connections": (lambda: ConnectionLimits(8, share=1), clients, {"ConnectionLimits._looks"}),
    "heads that are awaited": (
        lambda: ConnectionLimits(8, share=1),
        old_heads,
        {"ConnectionLimits._looks"},
    ),
    "bodies": (lambda: Bodies(1000, 10_000), bodies, set()),
    "a share of a topic": (
        lambda: Share(Assigned("t", 0, 0, "")),
        custody,
        {"Watermark._next", "Watermark._end", "Share._is_claimed"},
    ),
    "trials of suspects": (Trials, trials, set()),
    "calls in flight": (CallsInFlight, turns, set()),
    "viewers of the page": (lambda: Watch(lambda: b"picture"), viewers, set()),
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

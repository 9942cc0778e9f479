"""Clients that come and leave, and viewers of the page."""

import asyncio

from kairos.gateway.page.pages import Watch
from kairos.gateway.server import connection_limits
from kairos.gateway.server.connection_limits import ConnectionLimits
from tests.unit.gateway.server.test_connection_limits import Client


def new_limits():
    return ConnectionLimits(8, share=1)


def new_watch():
    return Watch(lambda: b"picture")


class Late(Client):
    """A client whose connection ends as soon as its head is late."""

    def __init__(self, limits, *arguments, **fields):
        self.limits = limits
        super().__init__(limits, *arguments, **fields)

    def head_is_late(self):
        self.late = True
        self.limits.forget_connection(self, self.peer)


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
        limits.forget_connection(each, each.peer)
        limits.forget_connection(each, each.peer)
    for name in stay[2].peer.unfinished:
        stay[2].peer.unfinished[name] = at - connection_limits.HEAD_S - 1
    limits._end_late_heads()
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
            limits.forget_connection(each, each.peer)


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

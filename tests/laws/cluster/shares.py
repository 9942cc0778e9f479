"""Members of a consumer group, and what they do with a share."""

import asyncio

from kairos.cluster import ReceivedMessage
from kairos.cluster.kafka.items import Assigned, Passed
from kairos.cluster.kafka.share import Share
from kairos.cluster.kafka.trials import Trials

__all__ = ["Trials", "custody", "new_share", "trials"]


def new_share():
    return Share(Assigned("t", 0, 0, ""))


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

"""Trials of suspects: one at a time in a process, alone, and not for ever."""

import asyncio

import pytest

from kairos.cluster import ReceivedMessage
from kairos.cluster.kafka import trials as module
from kairos.cluster.kafka.items import Assigned, Passed
from kairos.cluster.kafka.share import Share
from kairos.cluster.kafka.trials import Trials

TEXT = "held:a deaths:2 suspects:AQI="  # of the offsets 0 and 2


def share_with_suspects(partition=0):
    share = Share(Assigned("t", partition, 0, TEXT))
    share.claim("me")
    share.is_open = True
    return share


def clean_share():
    share = Share(Assigned("t", 9, 0, ""))
    share.claim("me")
    return share


class Court:
    """Trials, what was committed of each share when it was secured, and who was told to go on."""

    def __init__(self):
        self.trials = Trials()
        self.told = 0
        self.secured = []
        self.may_secure = asyncio.Event()
        self.may_secure.set()
        self.trials.listeners.add(self.tell)

    def tell(self):
        self.told += 1

    def hold(self, share):
        self.trials.ask()
        self.trials.answer(share)

    def handle(self, share, offset, end):
        async def secure():
            await self.may_secure.wait()
            self.secured.append((offset, share.custody.alone))

        async def handle():
            async with self.trials.trial(share, offset, secure):
                await end.wait()
                share.custody.done(offset)

        self.trials.begin()
        task = asyncio.create_task(handle())
        task.add_done_callback(lambda _: self.trials.end())
        return task


@pytest.fixture
async def court():
    return Court()


async def test_each_death_doubles_the_time_that_trials_may_take():
    share = share_with_suspects()
    limits = []
    for deaths in (2, 3, 5, 1_000):
        share.custody.deaths = deaths
        limits.append(module._limit_s(share) / module._LIMIT_S)
    assert limits == [1, 2, 8, 2**module._DOUBLINGS]


async def test_suspects_that_are_not_there_any_more_hold_up_nobody(court):
    share, other = share_with_suspects(), clean_share()
    court.hold(share)
    share.add(ReceivedMessage("t", 0, 1, 0, "k", b"", {}))
    assert [each.offset for each in share.begin()] == [1]
    assert share.custody.suspects == {2}
    share.add(Passed("t", 0, 7))
    assert list(share.begin()) == []
    court.trials.review()
    assert court.trials.may_begin(other, 0)
    assert share.state() == (1, "held:me")

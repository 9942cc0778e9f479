"""Trials of suspects: one at a time in a process, alone, and not for ever."""

import asyncio

import pytest

from kairos.live.kafka import trials as module
from kairos.live.kafka.items import Assigned, Passed, ReceivedMessage
from kairos.live.kafka.share import Share
from kairos.live.kafka.trials import Trials

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


async def turns(count=20):
    for _ in range(count):
        await asyncio.sleep(0)


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


async def test_suspects_are_tried_one_after_another_and_others_wait(court):
    share, other, end = share_with_suspects(), clean_share(), asyncio.Event()
    assert court.trials.may_begin(other, 5)
    court.hold(share)
    assert not court.trials.may_begin(other, 5)
    assert not court.trials.may_begin(share, 1)
    assert court.trials.may_begin(share, 0)
    tried = [court.handle(share, 0, end)]
    await turns()
    tried.append(court.handle(share, 2, end))
    await turns()
    assert court.secured == [(0, 0)]
    end.set()
    await asyncio.gather(*tried)
    await turns()
    assert court.secured == [(0, 0), (0, None), (2, 2), (2, None)]
    assert court.trials.may_begin(other, 5)
    assert court.told


async def test_what_is_in_hand_already_ends_before_a_trial_begins(court):
    share, end = share_with_suspects(), asyncio.Event()
    court.trials.begin()  # of another partition, since before
    court.hold(share)
    trial = court.handle(share, 0, end)
    await turns()
    assert court.secured == []
    court.trials.end()
    await turns()
    assert court.secured == [(0, 0)]
    trial.cancel()
    await asyncio.gather(trial, return_exceptions=True)


async def test_a_trial_is_over_when_what_came_of_it_is_safe(court):
    share, end = share_with_suspects(), asyncio.Event()
    share.custody.done(2)
    court.hold(share)
    court.handle(share, 0, end)
    await turns()
    court.may_secure.clear()
    end.set()
    await turns()
    court.trials.review()
    assert not share.custody.suspects
    assert not court.trials.may_begin(share, 1)
    court.may_secure.set()
    await turns()
    assert court.trials.may_begin(share, 1)


async def test_suspects_of_several_shares_are_tried_one_at_a_time(court):
    end = asyncio.Event()
    shares = [share_with_suspects(n) for n in range(3)]
    for share in shares:
        court.hold(share)
    tried = [court.handle(share, 0, end) for share in shares]
    await turns()
    assert len(court.secured) == 1
    assert [share.custody.alone for share in shares].count(0) == 1
    for each in tried:
        each.cancel()
    await asyncio.gather(*tried, return_exceptions=True)


async def test_a_suspect_that_takes_too_long_is_alone_no_more_and_all_go_on(court, monkeypatch):
    monkeypatch.setattr(module, "_LIMIT_S", 0.01)
    share, end = share_with_suspects(), asyncio.Event()
    court.hold(share)
    tried = [court.handle(share, 0, end)]
    await turns()
    tried.append(court.handle(share, 2, end))
    court.may_secure.clear()
    await asyncio.sleep(0.03)
    assert not court.trials.may_begin(share, 1)  # while it is noted as alone
    court.may_secure.set()
    await turns()
    assert court.secured == [(0, 0), (0, None), (2, None)]
    assert court.trials.may_begin(share, 1)
    assert court.told
    assert share.custody.begun == {0, 2}
    end.set()
    await asyncio.gather(*tried)


async def test_each_death_doubles_the_time_that_trials_may_take():
    share = share_with_suspects()
    limits = []
    for deaths in (2, 3, 5, 1_000):
        share.custody.deaths = deaths
        limits.append(module._limit_s(share) / module._LIMIT_S)
    assert limits == [1, 2, 8, 2**module._DOUBLINGS]


async def test_a_share_that_is_lost_holds_up_nobody(court):
    share, other = share_with_suspects(), clean_share()
    court.hold(share)
    share.is_lost = True
    court.trials.review()
    assert court.trials.may_begin(other, 0)
    assert court.told


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


async def test_nothing_begins_before_it_is_known_whether_somebody_died(court):
    other = clean_share()
    court.trials.ask()
    assert not court.trials.may_begin(other, 0)
    court.trials.answer(other)
    assert court.trials.may_begin(other, 0)
    assert court.told == 1

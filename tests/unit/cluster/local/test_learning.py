"""How often a live service learns."""

import asyncio
from types import SimpleNamespace

import pytest

from kairos.cluster.local import learning
from kairos.core import Learner, Orchestrator


async def waits(monkeypatch, *took_s):
    """How long nothing is learnt before each time that takes so long, and after the last."""
    now, found, left = [0.0], [], [*took_s]

    async def sleep(seconds):
        found.append(round(seconds, 6))
        if len(found) > len(took_s):
            raise asyncio.CancelledError

    async def learn_once(learner):
        now[0] += left.pop(0)

    loop = SimpleNamespace(time=lambda: now[0])
    fake = SimpleNamespace(sleep=sleep, get_running_loop=lambda: loop)
    monkeypatch.setattr(learning, "asyncio", fake)
    monkeypatch.setattr(learning, "learn_once", learn_once)
    runtime = SimpleNamespace(now=lambda: 0)
    with pytest.raises(asyncio.CancelledError):
        await learning.learn(runtime, Learner(Orchestrator()))
    return found


async def test_what_learns_quickly_learns_once_a_second(monkeypatch):
    assert await waits(monkeypatch, 0.01, 0.1, 0.1) == [1.0] * 4


async def test_what_takes_long_is_done_so_seldom_that_it_takes_a_tenth_of_the_time(monkeypatch):
    assert await waits(monkeypatch, 0.2, 0.3, 0.4) == [1.0, 1.0, 1.8, 2.7]


async def test_what_took_long_once_is_no_reason_to_wait(monkeypatch):
    assert await waits(monkeypatch, 5.0, 0.01, 5.0, 0.01) == [1.0] * 5


async def test_so_it_is_where_learning_fails(monkeypatch):
    found = []

    async def fails(learner):
        found.append(learner)
        raise RuntimeError

    async def sleep(seconds):
        if len(found) == 3:
            raise asyncio.CancelledError

    loop = SimpleNamespace(time=lambda: 0.0)
    fake = SimpleNamespace(sleep=sleep, get_running_loop=lambda: loop)
    monkeypatch.setattr(learning, "asyncio", fake)
    monkeypatch.setattr(learning, "learn_once", fails)
    with pytest.raises(asyncio.CancelledError):
        await learning.learn(SimpleNamespace(now=lambda: 0), Learner(Orchestrator()))
    assert len(found) == 3

"""How far streamed answers are is told once a second."""

import asyncio

import pytest

from kairos.cluster import ClusterControl
from kairos.core import Progressed
from kairos.proxy import CallsInFlight, SseReader, tell_progress
from kairos.proxy import engine as module
from kairos.proxy.engine import progress


def stream(tokens):
    reader = SseReader(drop_usage_chunk=False)
    for _ in range(tokens):
        reader.feed(b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n')
    return reader


@pytest.fixture
def calls():
    calls = CallsInFlight()
    calls.streams = {f"r{tokens}": stream(tokens) for tokens in (3, 0, 5)}
    return calls


def test_answers_that_have_begun_are_told_in_one_fact(calls):
    assert progress(calls) == Progressed({"r3": 3, "r5": 5})


def test_where_none_has_begun_nothing_is_told():
    calls = CallsInFlight()
    assert progress(calls) is None
    calls.streams["r"] = stream(0)
    assert progress(calls) is None


def test_no_more_than_a_bound_is_told(calls, monkeypatch):
    monkeypatch.setattr(module, "CALLS_TOLD", 1)

    assert progress(calls) == Progressed({"r3": 3})


def test_what_has_ended_is_not_told_of(calls):
    calls.forget("r3")

    assert progress(calls) == Progressed({"r5": 5})


async def test_it_is_told_again_and_again(calls, monkeypatch):
    monkeypatch.setattr(module, "PROGRESS_S", 0)
    told = asyncio.Queue()
    telling = asyncio.create_task(tell_progress(calls, told.put_nowait))

    assert await told.get() == Progressed({"r3": 3, "r5": 5})
    calls.streams["r5"].feed(b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n')
    while (fact := await told.get()).completion_tokens["r5"] == 5:
        pass
    assert fact == Progressed({"r3": 3, "r5": 6})
    telling.cancel()
    await asyncio.wait([telling])


class InAPool:
    """A performer that keeps what it is told, and a member that waits."""

    def __init__(self):
        self.told = asyncio.Queue()
        self.feed = self.told.put_nowait

    async def run(self):
        await asyncio.Event().wait()


async def test_a_process_of_a_pool_tells_it_to_whoever_decides(calls, monkeypatch):
    monkeypatch.setattr(module, "PROGRESS_S", 0)
    process = InAPool()
    running = [
        asyncio.create_task(each) for each in ClusterControl(calls, process, process).background()
    ]

    async with asyncio.timeout(60):
        assert await process.told.get() == Progressed({"r3": 3, "r5": 5})
    for each in running:
        each.cancel()
    await asyncio.wait(running)

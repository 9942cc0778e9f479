"""Forged and foreign records of each topic of the bus: they do nothing, and are counted."""

import asyncio
from collections import Counter

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from kairos.agents import runtime as agent
from kairos.agents.bus_llm import BusLLM
from kairos.cluster import (
    DEAD_TOPIC,
    POOL_HEADER,
    TYPE_HEADER,
    KafkaCluster,
    MemoryBus,
    ReceivedMessage,
)
from kairos.cluster.kafka.profiles_topic import _News
from kairos.cluster.kafka.topic_setup import TABLE
from kairos.cluster.orchestrate.follower import Ends
from kairos.cluster.orchestrate.following import Records
from kairos.cluster.pool.member import Recall
from kairos.cluster.pool.messages import EPOCH, PERFORMER
from kairos.core import Message, Topic
from kairos.observe import bus_figures
from kairos.observe import left_out as module
from kairos.observe.left_out import buried, left_out
from tests.support.cluster.pool_world import POOL as NAME
from tests.support.cluster.pool_world import World

NONSENSE = b'{"kairos": ["\xff'


@pytest.fixture(autouse=True)
def counts(monkeypatch):
    monkeypatch.setattr(module, "_left_out", Counter())
    monkeypatch.setattr(module, "_buried", Counter())


def received(topic, headers):
    return ReceivedMessage(topic, 0, 7, 0, NAME, NONSENSE, headers)


@pytest.fixture
def world():
    with World() as world:
        yield world
        assert world.problems == []


async def test_in_an_inbox_it_becomes_a_dead_letter():
    app, bus = agent.Application("a", entry="b"), MemoryBus()
    handled = []

    @app.agent("b")
    async def work(task):
        handled.append(task)

    await bus.publish(app.inbox("b"), Message(key="k", value=NONSENSE))
    running = asyncio.create_task(agent.run([app], bus, None))
    async with asyncio.timeout(60):
        while not buried():
            await asyncio.sleep(0.01)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert handled == []
    assert buried() == {f"{Topic.AGENTS}*": 1}


@pytest.mark.parametrize("kind", ["told", "alive", "call", "forged"])
def test_among_requests_it_becomes_a_dead_letter(world, kind):
    process = world.process()
    world.assign(process)
    world.flow()
    before = len(world.records())
    world.append(Topic.REQUESTS, NAME, NONSENSE, {TYPE_HEADER: kind})
    world.flow()
    assert len(world.records()) == before
    assert [each.value for each in world.logs[Topic.DEAD_LETTERS]] == [NONSENSE]
    assert buried() == {Topic.REQUESTS: 1}


def test_among_orders_it_is_left_out(world):
    process = world.process()
    world.flow()
    headers = {EPOCH: "99", PERFORMER: process.performer.id}
    process.performer._read(received(Topic.DISPATCHES, headers))
    assert left_out() == {Topic.DISPATCHES: 1}


def test_among_replies_it_is_left_out():
    llm = BusLLM(KafkaCluster(servers="127.0.0.1:1"), name="here")
    llm._take(Message(key="k", value=NONSENSE))
    assert left_out() == {"kairos.replies.*": 1}


def test_among_events_it_is_left_out_by_whoever_takes_over_and_by_whoever_follows():
    forged = received(Topic.EVENTS, {POOL_HEADER: NAME, EPOCH: "1"})
    assert Recall(None, NAME, until=99).read(forged)
    assert left_out() == {Topic.EVENTS: 1}
    assert Records({}).read(forged) is None
    assert left_out() == {Topic.EVENTS: 2}


async def test_among_profiles_it_is_left_out():
    news = _News(1_000)
    news.take(received(Topic.PROFILES, {}))
    learnt = await news.merged()
    assert not learnt.profiles
    assert left_out() == {Topic.PROFILES: 1}


async def test_among_results_it_is_left_out():
    ends = Ends(MemoryBus(), (NAME,))
    assert await ends._ended(Message(key="k", value=NONSENSE)) == ()
    assert ends.told == 0
    assert left_out() == {Topic.RESULTS: 1}


async def test_among_dead_letters_it_is_nobodys_result(caplog):
    """Said in the log: agents, who read them, have no other face."""
    app = agent.Application("a", entry="b")
    app.agent("b")(None)
    letter = Message(key="k", value=NONSENSE, headers={DEAD_TOPIC: app.inbox("b")})
    assert await agent._report_failure(app, letter) == ()
    assert "a dead letter cannot be assigned to a workflow" in caplog.text


def test_no_topic_is_forgotten():
    tested = {
        Topic.AGENTS,
        Topic.REQUESTS,
        Topic.DISPATCHES,
        Topic.REPLIES,
        Topic.EVENTS,
        Topic.PROFILES,
        Topic.RESULTS,
    }
    assert {each.name for each in TABLE} == tested | {Topic.DEAD_LETTERS}


def test_counts_are_shown_by_topic():
    class Shown:
        def collect(self):
            return bus_figures()

    module.count_left_out("kairos.replies.a")
    module.count_left_out("kairos.replies.b")
    module.count_buried(Topic.REQUESTS)
    registry = CollectorRegistry()
    registry.register(Shown())
    shown = generate_latest(registry).decode()
    assert 'kairos_bus_left_out_total{topic="kairos.replies.*"} 2.0' in shown
    assert 'kairos_bus_dead_letters_total{topic="kairos.requests"} 1.0' in shown

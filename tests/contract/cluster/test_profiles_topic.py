"""What was learnt, over a real Kafka: what one process publishes, another knows."""

import logging
from contextlib import AsyncExitStack, aclosing

import msgspec
import pytest

from kairos.cluster import Producer, ensure_topics
from kairos.cluster.kafka.cluster import parse_bus
from kairos.cluster.kafka.profiles_topic import follow, publish
from kairos.core import POOLED_AGENT, SECOND, AgentRank, ProfilesLearnt, Topic
from tests.property.core.test_balancer_machine import remaining_model
from tests.support.core import learnt

pytestmark = pytest.mark.kafka


class Published:
    """The topic, with nothing on it yet that this test would see."""

    def __init__(self, connection, producer, stack):
        self.connection, self.producer, self._stack = connection, producer, stack

    async def learn(self, **parts):
        await publish(self.producer, ProfilesLearnt(**parts))

    async def follow(self, **limits):
        return await self._stack.enter_async_context(aclosing(follow(self.connection, **limits)))


@pytest.fixture
async def published(broker):
    connection = parse_bus(broker.url)
    async with AsyncExitStack() as stack:
        await ensure_topics(connection, [Topic.PROFILES])
        producer = await stack.enter_async_context(Producer(connection))
        async with aclosing(follow(connection)) as before:
            known = await anext(before)
        forgotten = [p.key for p in known.profiles] + [r.key for r in known.ranks]
        forgotten += [(m.tenant, m.app, POOLED_AGENT) for m in known.models]
        await publish(producer, ProfilesLearnt(forgotten=tuple(forgotten)))
        yield Published(connection, producer, stack)


async def news(reader, count):
    """So many new parts, as one fact: what is published together may come as several."""
    parts = []
    while sum(len(p.profiles) + len(p.ranks) + len(p.forgotten) for p in parts) < count or (
        all(p.kendall_tau is None for p in parts)
    ):
        parts.append(await anext(reader))
    return ProfilesLearnt(
        profiles=tuple(each for part in parts for each in part.profiles),
        ranks=tuple(each for part in parts for each in part.ranks),
        forgotten=tuple(each for part in parts for each in part.forgotten),
        kendall_tau=next(p.kendall_tau for p in reversed(parts) if p.kendall_tau is not None),
    )


def profile(agent, seconds=1):
    return learnt.profile(agent, [seconds * SECOND])


def rank(agent, number):
    return AgentRank("t", "app", agent, number)


async def test_a_reader_knows_all_there_is_at_once_and_then_what_is_new(published):
    model = remaining_model("t", "app", "x", 3)
    await published.learn(profiles=(profile("x"), profile("y")), models=(model,))
    await published.learn(profiles=(profile("x", 5),), ranks=(rank("x", 2.0),), kendall_tau=0.5)

    reader = await published.follow()
    first = await anext(reader)
    await published.learn(ranks=(rank("x", 3.0), rank("y", 1.0)), kendall_tau=0.7)
    second = await news(reader, 2)

    assert sorted(first.profiles, key=lambda p: p.key) == [profile("x", 5), profile("y")]
    assert (first.models, first.ranks, first.kendall_tau) == ((model,), (rank("x", 2.0),), 0.5)
    assert second.profiles == ()
    assert sorted(second.ranks, key=lambda r: r.key) == [rank("x", 3.0), rank("y", 1.0)]
    assert second.kendall_tau == 0.7


async def test_of_a_topic_with_nothing_on_it_a_reader_knows_nothing(published):
    reader = await published.follow()
    first = await anext(reader)

    assert (first.profiles, first.models, first.ranks) == ((), (), ())


async def test_what_is_forgotten_is_forgotten_by_those_who_read_on_and_unknown_to_those_who_begin(
    published,
):
    everything = learnt.profile(POOLED_AGENT, [SECOND])
    model = remaining_model("t", "app", "x", 3)
    await published.learn(
        profiles=(profile("x"), everything), models=(model,), ranks=(rank("x", 2.0),)
    )
    reader = await published.follow()
    await anext(reader)

    await published.learn(
        forgotten=(("t", "app", "x"), ("t", "app", POOLED_AGENT)), kendall_tau=0.1
    )
    told = await news(reader, 2)
    known = await anext(await published.follow())

    assert set(told.forgotten) == {("t", "app", "x"), ("t", "app", POOLED_AGENT)}
    assert (known.profiles, known.models, known.ranks) == ((), (), ())


async def test_what_is_no_use_is_left_out_and_said(published, caplog):
    part = ProfilesLearnt(profiles=(profile("x"),))
    short = msgspec.structs.replace(
        profile("short"), call_us=learnt.Distribution(mean=1.0, quantiles=(1.0,))
    )
    hostile = {
        "no json": b"{}",
        '["profile","t","app","y"]': msgspec.json.encode(part),  # of another agent
        '["profile","t","app","z"]': b"[" * 10_000,
        '["profile","t","app","short"]': msgspec.json.encode(ProfilesLearnt(profiles=(short,))),
        '["kendall_tau"]': b'{"type":"ProfilesLearnt","kendall_tau":NaN}',
        '["rank","t"]': None,
        "": None,
    }
    with caplog.at_level(logging.WARNING):
        for key, value in hostile.items():
            await published.producer.send(Topic.PROFILES, key, value)
        await published.learn(profiles=(profile("x"),))
        known = await anext(await published.follow())

    assert known.profiles == (profile("x"),)
    assert known.ranks == ()
    assert caplog.text.count("is left out") >= 5
    for key in hostile:
        await published.producer.send(Topic.PROFILES, key, None)


async def test_a_reader_that_cannot_hold_it_all_knows_the_newest(published):
    for number in range(20):
        await published.learn(profiles=(profile(f"agent-{number}"),))
    size = len(msgspec.json.encode(ProfilesLearnt(profiles=(profile("agent-10"),))))

    known = await anext(await published.follow(limit_bytes=size * 6))

    agents = [each.agent for each in known.profiles]
    assert agents[-1] == "agent-19"
    assert 4 <= len(agents) <= 6

"""What a bus on a real Kafka promises beyond any other: crashes of consumers and of the cluster
lose nothing, and the consequences of each message are there once.
"""

import asyncio
import contextlib
import functools
import random
import secrets
from collections import Counter

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, OffsetSpec

from kairos.cluster import KafkaBus
from kairos.cluster.kafka import kafka_bus, producer, transactions
from kairos.cluster.kafka.items import Assigned, Revoked
from kairos.cluster.kafka.subscription import Subscription
from kairos.cluster.kafka.transactions import NotSent, Transactions
from kairos.core import Message, Topic, TopicMissing
from tests.support.buses import TIMEOUT_S, Seen, consuming, text
from tests.support.cluster.kafka_cluster import Cluster, publish, values_of
from tests.support.cluster.kafka_worker import SESSION_S

OPEN_S = 2  # of a transaction, where a test makes it short

pytestmark = pytest.mark.kafka


@pytest.fixture
async def cluster(kafka):
    return await Cluster(kafka).prepare()


@pytest.mark.smoke
async def test_consumers_that_are_killed_at_any_moment_have_their_consequences_once(cluster):
    values = [str(n) for n in range(4_000)]
    async with KafkaBus(cluster.connection) as bus:
        for asked in (values[:2_000], values[2_000:]):
            publishing = asyncio.create_task(publish(bus, cluster, asked))
            # Not a third time in a row: what is in hand each time may be held for the cause of it.
            for _ in range(2):
                await killed_amid_its_work(cluster)
            await publishing
            async with cluster.worker() as worker:
                came = await cluster.sunk(asked)
                worker.terminate()  # in order: killed, it would be one more death in the row
                await worker.wait()
    assert came == Counter(values)


async def killed_amid_its_work(cluster):
    async with cluster.worker():
        await some_sunk(cluster, start="end")
        # Something of it is there, and more is under way: now it dies.
        await asyncio.sleep(random.uniform(0, 0.3))


async def some_sunk(cluster, *, start):
    async with (
        asyncio.timeout(TIMEOUT_S),
        Subscription(cluster.connection, [cluster.sink], start=start) as sink,
    ):
        while not values_of(await sink.batch()):
            pass


async def test_what_was_done_beyond_a_message_in_hand_is_not_done_again_after_a_crash(cluster):
    others = [str(n) for n in range(200)]
    seen = Seen()
    async with KafkaBus(cluster.connection) as bus:
        await bus.publish(cluster.source, Message(key="hang", value=b"hang"))
        async with cluster.worker() as worker:
            async with asyncio.timeout(TIMEOUT_S):
                await worker.stdout.readline()
            await publish(bus, cluster, others)
            assert await cluster.sunk(others) == Counter(others)
        async with cluster.consuming(bus, seen):
            await seen.until("hang")
            await bus.publish(cluster.source, Message(key="hang", value=b"last"))
            await seen.until("last")
    assert seen.values == ["hang", "last"]


async def test_consumers_that_come_and_go_under_load_lose_and_double_nothing(cluster):
    have_all_come = asyncio.Event()
    published = []

    async def publish_meanwhile(bus):
        while not have_all_come.is_set():
            published.append(str(len(published)))
            await publish(bus, cluster, published[-1:], pause_s=0.001)

    async with contextlib.AsyncExitStack() as stack:
        buses = [await stack.enter_async_context(KafkaBus(cluster.connection)) for _ in range(3)]
        publishing = asyncio.create_task(publish_meanwhile(buses[0]))
        first, second, third = (Seen(cluster.relay) for _ in range(3))
        async with cluster.consuming(buses[0], first), cluster.consuming(buses[1], second):
            await first.until_called()
            await second.until_called()
            async with cluster.consuming(buses[2], third):
                await third.until_called()
        again, too = Seen(cluster.relay), Seen(cluster.relay)
        async with cluster.consuming(buses[1], again), cluster.consuming(buses[2], too):
            await again.until_called()
            await too.until_called()
            have_all_come.set()
            await publishing
            came = await cluster.sunk(published)
    assert came == Counter(published)


@pytest.mark.smoke
async def test_a_cluster_that_crashes_under_load_and_comes_back_loses_and_doubles_nothing(broker):
    values = [str(n) for n in range(2_000)]
    cluster = await Cluster(broker.url).prepare()
    async with KafkaBus(cluster.connection) as bus, cluster.consuming(bus) as consumer:
        publishing = asyncio.create_task(publish(bus, cluster, values, pause_s=0.002))
        await some_sunk(cluster, start="beginning")
        broker.kill()
        await asyncio.to_thread(broker.start)
        async with asyncio.timeout(TIMEOUT_S):
            await publishing
        came = await cluster.sunk(values)
        assert not consumer.done()
    assert came == Counter(values)


async def test_a_cluster_that_is_away_for_longer_than_a_transaction_may_last(broker, monkeypatch):
    monkeypatch.setattr(transactions, "_OPEN_MS", 1_000 * OPEN_S)
    values = [str(n) for n in range(500)]
    cluster = await Cluster(broker.url).prepare()
    gate = asyncio.Event()

    async def wait(message: Message):
        await gate.wait()
        return await cluster.relay(message)

    async with KafkaBus(cluster.connection) as bus, cluster.consuming(bus, wait) as consumer:
        await publish(bus, cluster, values)
        broker.kill()
        gate.set()  # handlers end, and nothing can go out
        await asyncio.sleep(2 * OPEN_S)
        await asyncio.to_thread(broker.start)
        came = await cluster.sunk(values)
        assert not consumer.done()
    assert came == Counter(values)


async def test_a_consumer_that_ends_in_order_leaves_nothing_to_do_again(cluster, monkeypatch):
    # It leaves the group: if the next had to wait for its death, it would for longer than a test.
    long = functools.partial(Subscription, session_s=200)
    monkeypatch.setattr(kafka_bus, "Subscription", long)
    first, second = Seen(), Seen()
    sent = [str(n) for n in range(100)]
    async with KafkaBus(cluster.connection) as bus:
        async with cluster.consuming(bus, first):
            await publish(bus, cluster, sent)
            await first.until(*sent)
        async with cluster.consuming(bus, second):
            await bus.publish(cluster.source, Message(key="k", value=b"more"))
            await second.until("more")
    assert second.values == ["more"]


async def test_a_handler_that_takes_longer_than_a_session_is_not_taken_for_dead(
    cluster, monkeypatch
):
    short = functools.partial(Subscription, session_s=SESSION_S)
    monkeypatch.setattr(kafka_bus, "Subscription", short)

    async def be_slow(message: Message) -> None:
        if text(message) == "slow":
            await asyncio.sleep(2 * SESSION_S)

    seen = Seen(be_slow)
    async with KafkaBus(cluster.connection) as bus, cluster.consuming(bus, seen):
        await bus.publish(cluster.source, Message(key="k", value=b"slow"))
        await bus.publish(cluster.source, Message(key="k", value=b"next"))
        await seen.until("next")
    assert seen.values == ["slow", "next"]


async def test_topics_that_do_not_exist_are_said_to_be_missing(cluster, monkeypatch):
    monkeypatch.setattr(producer, "_VISIBLE_S", 0.5)  # they may be new; nobody makes these
    async with KafkaBus(cluster.connection) as bus:
        for _ in range(2):  # then it is known to the client
            with pytest.raises(TopicMissing, match="'nowhere' cannot be used"):
                await bus.publish("nowhere", Message(key="k", value=b""))
        with pytest.raises(TopicMissing, match="nowhere"):
            await bus.consume("nowhere", "g", Seen())
        with pytest.raises(TopicMissing, match="no/name"):
            await bus.consume("no/name", "g", Seen())


async def test_a_message_whose_consequence_has_no_topic_is_dead(cluster):
    async def send_away(message: Message):
        return [("no/name", message)]

    dead = Seen()
    key = secrets.token_hex(4)

    async def ours(message: Message) -> None:
        if message.key == key:
            await dead(message)

    async with (
        KafkaBus(cluster.connection) as bus,
        cluster.consuming(bus, send_away),
        consuming(bus, ours, topic=Topic.DEAD_LETTERS, group=cluster.source),
    ):
        await bus.publish(cluster.source, Message(key=key, value=b"a"))
        await dead.until("a")
    assert dead.messages[0].headers["kairos-dead-reason"].startswith("TopicMissing: the topic")


async def test_all_that_is_done_is_committed_to_the_end_of_the_topic(cluster):
    sent = [str(n) for n in range(20)]
    async with KafkaBus(cluster.connection) as bus:
        async with cluster.consuming(bus):
            await publish(bus, cluster, sent)
            await cluster.sunk(sent)
        seen = Seen()
        async with consuming(bus, seen, topic=cluster.sink, group=cluster.sink):
            await seen.until(*sent)  # whose log has a mark after each transaction
            async with asyncio.timeout(TIMEOUT_S):
                while await asyncio.to_thread(lag, cluster, cluster.sink):
                    await asyncio.sleep(0.1)


def lag(cluster, topic):
    """How far the group named as the topic is behind."""
    client = AdminClient({"bootstrap.servers": cluster.connection.servers})
    partitions = [confluent_kafka.TopicPartition(topic, n) for n in range(8)]
    asked = confluent_kafka.ConsumerGroupTopicPartitions(topic, partitions)
    [known] = client.list_consumer_group_offsets([asked]).values()
    committed = {p.partition: max(p.offset, 0) for p in known.result().topic_partitions}
    ends = client.list_offsets({p: OffsetSpec.latest() for p in partitions})
    return sum(end.result().offset - committed[p.partition] for p, end in ends.items())


async def test_metadata_of_others_is_left_out_with_a_warning(cluster, caplog):
    seen = Seen()
    async with KafkaBus(cluster.connection) as bus:
        await bus.publish(cluster.source, Message(key="k", value=b"a"))
        async with Subscription(cluster.connection, [cluster.source], cluster.source) as others:
            async with asyncio.timeout(TIMEOUT_S):
                partitions = []
                while len(partitions) < 8:
                    partitions += [i for i in await others.batch() if isinstance(i, Assigned)]
                await others.commit({(cluster.source, p.partition): (0, "?") for p in partitions})
        async with cluster.consuming(bus, seen):
            await seen.until("a")
    assert "the metadata of a committed offset is not that of a Kairos bus" in caplog.text


async def test_what_a_member_of_before_the_last_rebalance_sends_does_not_go_out(cluster):
    own = (cluster.connection, [cluster.source], cluster.source)
    async with (
        Subscription(*own, session_s=SESSION_S) as first,
        Transactions(cluster.connection) as transactions,
        asyncio.timeout(TIMEOUT_S),
    ):
        await first.batch()
        old = first.group_metadata()
        async with Subscription(*own, session_s=SESSION_S):
            while not any(isinstance(item, Revoked) for item in await first.batch()):
                pass
            outgoing = [(cluster.sink, Message(key="k", value=b"late"))]
            offsets = {(cluster.source, 0): (1, "")}
            with pytest.raises(NotSent):
                await transactions.perform(outgoing, offsets, old)
            await transactions.perform(
                [(cluster.sink, Message(key="k", value=b"new"))], {}, first.group_metadata()
            )
    assert await cluster.sunk(["new"]) == Counter(["new"])

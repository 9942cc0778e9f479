"""A producer on librdkafka's mock cluster."""

import asyncio
import secrets

import pytest

from kairos.cluster import KafkaCluster, Producer, ReceivedMessage
from kairos.cluster.kafka import producer as module
from kairos.cluster.kafka.subscription import Subscription
from kairos.core import MessageTooLarge, Unavailable
from tests.support.buses import TIMEOUT_S, until_logged
from tests.support.kafka_mock import MockCluster


@pytest.fixture
def cluster():
    cluster = MockCluster()
    cluster.create("t", partitions=1)
    return cluster


@pytest.fixture
def connection(cluster):
    return KafkaCluster(servers=cluster.servers, message_bytes=1_000)


async def test_a_message_is_safe_at_the_offset_that_is_told(connection):
    async with Producer(connection) as producer:
        sent = [producer.send("t", f"{n}", b"", {"h": "é"}) for n in range(500)]
        assert await asyncio.gather(*sent) == list(range(500))


async def test_messages_wait_for_a_cluster_that_is_away_and_keep_their_order(
    cluster, connection, caplog
):
    cluster.go_down()
    async with Producer(connection) as producer:
        sent = [producer.send("t", f"{n}", b"") for n in range(100)]
        await until_logged(caplog, "cannot be reached")
        assert not any(each.done() for each in sent)
        cluster.come_up()
        async with asyncio.timeout(TIMEOUT_S):
            assert await asyncio.gather(*sent) == list(range(100))
    keys = []
    async with asyncio.timeout(TIMEOUT_S), Subscription(connection, ["t"]) as subscription:
        while len(keys) < 100:
            keys += [i.key for i in await subscription.batch() if isinstance(i, ReceivedMessage)]
    assert keys == [f"{n}" for n in range(100)]


async def test_what_could_not_be_sent_until_the_end_has_failed(cluster, connection, monkeypatch):
    monkeypatch.setattr(module, "_CLOSE_S", 0.2)
    cluster.go_down()
    async with Producer(connection) as producer:
        sent = producer.send("t", "k", b"")
    with pytest.raises(Unavailable, match="did not take a message for t"):
        await sent


async def test_a_sender_that_gives_up_disturbs_nobody(cluster, connection):
    async with Producer(connection) as producer:
        cluster.go_down()
        given_up, other = producer.send("t", "1", b""), producer.send("t", "2", b"")
        given_up.cancel()
        cluster.come_up()
        async with asyncio.timeout(TIMEOUT_S):
            assert await other == 1


async def test_a_message_over_the_limit_is_refused_with_its_headers_counted(connection):
    async with Producer(connection) as producer:
        await producer.send("t", "k", b"x" * 990, {"name": "12345"})
        with pytest.raises(MessageTooLarge, match="a message of 1001 bytes for t"):
            producer.send("t", "k", b"x" * 990, {"name": "1234é"})


async def test_partitions_are_counted_once_the_cluster_answers(cluster, connection, caplog):
    name = f"p{secrets.token_hex(4)}"
    cluster.create(name, partitions=3)
    async with Producer(connection) as producer:
        cluster.go_down()
        asked = asyncio.create_task(producer.partitions(name))
        await until_logged(caplog, "cannot be reached")
        assert not asked.done()
        cluster.come_up()
        async with asyncio.timeout(TIMEOUT_S):
            assert await asked == 3

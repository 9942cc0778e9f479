"""What is sent to a topic once its tail is entered is read, and nothing from before."""

import asyncio
import secrets

import pytest
from confluent_kafka import admin

from kairos.cluster import KafkaCluster, Producer, Tail
from kairos.cluster.kafka.cluster import parse_bus

LIMIT_S = 60


@pytest.fixture(params=["mock", pytest.param("kafka", marks=pytest.mark.kafka)])
def place(request):
    """A cluster, and a topic of four partitions on it."""
    topic = f"test.tail.{secrets.token_hex(4)}"
    if request.param == "mock":
        cluster = request.getfixturevalue("mock_kafka")
        cluster.create(topic, partitions=4)
        return KafkaCluster(servers=cluster.servers, options={"log_level": "0"}), topic
    connection = parse_bus(request.getfixturevalue("kafka"))
    client = admin.AdminClient(connection.client())
    client.create_topics([admin.NewTopic(topic, 4)])[topic].result(LIMIT_S)
    return connection, topic


async def test_the_first_message_after_it_is_entered_is_read_whatever_its_partition(place):
    connection, topic = place
    async with Producer(connection) as producer:
        for number in range(8):
            keys = [f"{number}-{n}" for n in range(8)]  # they spread over all partitions
            async with Tail(connection, topic) as tail:
                sent = [producer.send(topic, key, b"v", {"h": key}) for key in keys]
                read = []
                async with asyncio.timeout(LIMIT_S):
                    while len(read) < len(keys):
                        read += await tail.batch()
                await asyncio.gather(*sent)
            assert sorted((each.key, each.headers["h"]) for each in read) == [
                (key, key) for key in sorted(keys)
            ]

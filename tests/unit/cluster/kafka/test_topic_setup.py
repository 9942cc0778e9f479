"""The table of topics, and where a key of a topic goes."""

from pathlib import Path

import pytest
from confluent_kafka import Producer
from hypothesis import given
from hypothesis import strategies as st

from kairos.cluster import KafkaCluster
from kairos.cluster.kafka import topic_setup
from kairos.cluster.kafka.topic_setup import partition_of
from kairos.core import Topic, inbox_topic
from scripts import topics

DOCUMENT = Path(__file__).parents[4] / "deploy" / "topics.md"
COMMAND = "python -m scripts.topics > deploy/topics.md"


def test_the_document_is_the_table():
    assert DOCUMENT.read_text("utf-8") == topics.markdown(), f"run {COMMAND}"


def test_every_name_of_a_topic_is_in_the_table():
    names = {
        value for name, value in vars(Topic).items() if name.isupper() and isinstance(value, str)
    }

    assert names == {topic.name for topic in topic_setup.TABLE}


def test_a_family_is_known_by_how_its_names_begin():
    assert topic_setup.describe(inbox_topic("qa", "router")).name == Topic.AGENTS
    assert topic_setup.describe(Topic.REPLIES + "host").name == Topic.REPLIES
    assert topic_setup.describe(Topic.EVENTS).name == Topic.EVENTS


@pytest.mark.parametrize("name", ["other", Topic.EVENTS + ".x", "kairos.repliesx"])
def test_a_topic_that_is_none_of_ours_is_a_mistake_of_ours(name):
    with pytest.raises(AssertionError, match="not one of Kairos's topics"):
        topic_setup.describe(name)


def test_a_topic_takes_what_the_clients_may_send():
    connection = KafkaCluster(servers="h:1", message_bytes=5_000_000)
    sent = connection.client()["message.max.bytes"]

    for topic in topic_setup.TABLE:
        assert int(topic.settings(connection)["max.message.bytes"]) >= sent > 5_000_000


def test_only_what_is_learnt_is_compacted_and_the_rest_is_kept_for_a_time():
    compacted = [topic.name for topic in topic_setup.TABLE if topic.retention_ms is None]

    assert compacted == [Topic.PROFILES]


@pytest.mark.parametrize(
    ("key", "number"),  # as Kafka's own tests have it: UtilsTest.testMurmur2, of 32 bits
    [
        ("21", -973932308),
        ("foobar", -790332482),
        ("a-little-bit-long-string", -985981536),
        ("a-little-bit-longer-string", -1486304829),
        ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        ("abc", 479470107),
    ],
)
def test_the_hash_is_javas(key, number):
    assert partition_of(key, 2**31) == number & 0x7FFFFFFF


@given(st.text(), st.integers(1, 1000))
def test_every_key_has_a_partition(key, partitions):
    assert 0 <= partition_of(key, partitions) < partitions


def test_a_key_is_where_the_producer_puts_it():
    producer = Producer(
        {"test.mock.num.brokers": 1, "partitioner": "murmur2_random", "log_level": 0}
    )
    partitions = len(producer.list_topics("t", timeout=60).topics["t"].partitions)
    keys = ["", "a", "ab", "abc", "abcd", "default", "pool-2", "é", "日本語", "🦊" * 40]
    put = {}
    for key in keys:
        producer.produce(
            "t",
            b"",
            key,
            on_delivery=lambda _, message: put.update({message.key(): message.partition()}),
        )
    assert producer.flush(60) == 0

    assert partitions > 1
    assert put == {key.encode(): partition_of(key, partitions) for key in keys}

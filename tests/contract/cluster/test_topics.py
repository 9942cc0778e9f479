"""Topics on a real Kafka: made where they are missing, checked where they are there."""

import asyncio
import re
from concurrent.futures import Future
from contextlib import suppress
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
)

from kairos.cluster import KafkaCluster
from kairos.cluster.kafka import topic_setup
from kairos.cluster.kafka.topic_setup import describe
from kairos.core import SetupError, Topic, inbox_topic
from tests.support.ports import free_ports


@pytest.fixture
def unused_port():
    """Where nothing listens."""
    return free_ports(1)[0]


@pytest.fixture
def connection(broker):
    return KafkaCluster(servers=broker.servers)


@pytest.fixture
def admin(broker):
    return AdminClient({"bootstrap.servers": broker.servers})


def create(admin, name, partitions=1, **settings):
    config = {setting.replace("_", "."): value for setting, value in settings.items()}
    new = NewTopic(name, partitions, config=config)
    admin.create_topics([new])[name].result(60)


def settings_of(admin, name):
    resource = ConfigResource(ConfigResource.Type.TOPIC, name)
    entries = admin.describe_configs([resource])[resource].result(60)
    return {entry.name: entry.value for entry in entries.values()}


def partitions_of(admin, name):
    return len(admin.list_topics(timeout=60).topics[name].partitions)


async def remove(admin, *names_there):
    """Topics that a test before may have left."""
    for answer in admin.delete_topics([*names_there]).values():
        with suppress(KafkaException):
            answer.result(60)
    async with asyncio.timeout(60):
        while set(names_there) & set(admin.list_topics(timeout=60).topics):
            await asyncio.sleep(0.05)


async def problem(connection, *wanted):
    with pytest.raises(SetupError) as refused:
        await topic_setup.ensure_topics(connection, wanted)
    return str(refused.value)


@pytest.mark.kafka
async def test_what_is_missing_is_made_as_the_table_says(connection, admin):
    wanted = [inbox_topic("made", "a"), Topic.PROFILES, Topic.REQUESTS]
    await remove(admin, *wanted)

    await topic_setup.ensure_topics(connection, wanted)

    for name in wanted:
        topic = describe(name)
        assert partitions_of(admin, name) == topic.partitions
        assert settings_of(admin, name).items() >= topic.settings(connection).items()


@pytest.mark.kafka
async def test_processes_that_start_at_once_agree(connection, admin, caplog):
    wanted = [inbox_topic("raced", f"agent-{number}") for number in range(5)]

    async with asyncio.timeout(60), asyncio.TaskGroup() as starting:
        for _ in range(5):
            starting.create_task(topic_setup.ensure_topics(connection, wanted))

    assert {partitions_of(admin, name) for name in wanted} == {8}
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


@pytest.mark.kafka
async def test_what_keeps_more_or_is_spread_wider_is_left_alone(connection, admin):
    create(
        admin,
        inbox_topic("wide", "a"),
        partitions=20,
        retention_ms="-1",
        max_message_bytes="99999999",
        message_timestamp_type="LogAppendTime",
    )

    await topic_setup.ensure_topics(connection, [inbox_topic("wide", "a")])

    assert partitions_of(admin, inbox_topic("wide", "a")) == 20


@pytest.mark.kafka
async def test_every_wrong_setting_is_listed_and_the_command_given_makes_it_right(
    connection, admin
):
    name = inbox_topic("wrong", "a")
    create(
        admin,
        name,
        cleanup_policy="compact",
        retention_ms="1000",
        retention_bytes="5",
        max_message_bytes="900",
    )

    said = await problem(connection, name)

    assert said.startswith("Kafka does not keep these topics as it must:\n")
    for part in (
        "cleanup.policy is compact, must be delete",
        "retention.ms is 1000, must be at least 604800000",
        "retention.bytes is 5, must be -1",
        f"max.message.bytes is 900, must be at least {connection.batch_bytes}",
        "message.timestamp.type is CreateTime, must be LogAppendTime",
    ):
        assert part in said
    command = re.search(
        rf"kafka-configs.sh --bootstrap-server {connection.servers} --alter --entity-type topics "
        rf"--entity-name {name} --add-config (.*)$",
        said,
    )
    entries = [
        ConfigEntry(*setting.split("="), incremental_operation=AlterConfigOpType.SET)
        for setting in command[1].split(",")
    ]
    resource = ConfigResource(ConfigResource.Type.TOPIC, name, incremental_configs=entries)
    admin.incremental_alter_configs([resource])[resource].result(60)
    await topic_setup.ensure_topics(connection, [name])


@pytest.mark.kafka
async def test_what_orders_everything_must_be_in_one_partition(connection, admin):
    await topic_setup.ensure_topics(connection, [Topic.EVENTS, Topic.RESULTS])
    admin.create_partitions([NewPartitions(Topic.EVENTS, 2)])[Topic.EVENTS].result(60)

    said = await problem(connection, Topic.EVENTS, Topic.RESULTS)
    await remove(admin, Topic.EVENTS)

    assert "kairos.events: 2 partitions, must be 1" in said
    assert f"--bootstrap-server {connection.servers} --delete --topic kairos.events" in said
    assert Topic.RESULTS not in said


@pytest.mark.kafka
async def test_a_cluster_that_comes_late_is_waited_for_and_said_once(broker, monkeypatch):
    said, missed = [], asyncio.Event()

    def warn(*words):
        said.append(words[0] % words[1:])
        missed.set()

    monkeypatch.setattr(topic_setup.logger, "warning", warn)
    monkeypatch.setattr(topic_setup, "_ANSWER_S", 1.0)
    monkeypatch.setattr(topic_setup, "PATIENCE_S", 100.0)  # on a busy machine it begins slowly
    broker.kill()
    wanted = [inbox_topic("late", "a")]
    ensuring = asyncio.create_task(
        topic_setup.ensure_topics(KafkaCluster(servers=broker.servers), wanted)
    )
    try:
        async with asyncio.timeout(100):
            await missed.wait()
            await asyncio.to_thread(broker.start)
            await ensuring
    finally:
        ensuring.cancel()

    assert len(said) == 1
    assert said[0].startswith(f"Kafka at {broker.servers} cannot be used yet: ")


async def test_a_cluster_that_stays_away_is_named_with_the_cause(monkeypatch, unused_port):
    monkeypatch.setattr(topic_setup, "PATIENCE_S", 0.5)
    servers = f"127.0.0.1:{unused_port}"

    said = await problem(KafkaCluster(servers=servers), Topic.EVENTS)

    assert said.startswith(f"Kafka at {servers} cannot be used: ")
    assert "Connection refused" in said


class Refusing:
    """Lets nobody create a topic."""

    def __init__(self, options):
        pass

    def list_topics(self, timeout):
        return SimpleNamespace(topics={})

    def create_topics(self, new, operation_timeout):
        answer = Future()
        answer.set_exception(KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)))
        return {each.topic: answer for each in new}


async def test_who_may_not_create_a_topic_is_told_the_command(monkeypatch):
    monkeypatch.setattr(topic_setup, "AdminClient", Refusing)

    said = await problem(KafkaCluster(servers="h:1"), Topic.DISPATCHES)

    assert "kairos.dispatches is missing: Broker: Topic authorization failed. Create it: " in said
    assert (
        "kafka-topics.sh --bootstrap-server h:1 --create --topic kairos.dispatches --partitions 1 "
        "--config cleanup.policy=delete --config retention.ms=3600000"
    ) in said

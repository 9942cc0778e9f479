"""Required settings of each Kafka topic, which are created and checked before anything is sent.

`scripts/topics.py` prints them: `deploy/topics.md`.
"""

import asyncio
import logging
import struct
import time
from collections.abc import Iterable, Mapping
from typing import Any

import confluent_kafka as kafka
import msgspec
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic  # type: ignore[attr-defined]

from kairos.cluster.kafka.cluster import KafkaCluster
from kairos.core import SetupError, Topic

logger = logging.getLogger(__name__)

PATIENCE_S = 30.0  # with a cluster that does not answer
_ANSWER_S = 5.0
_AGAIN_S = 1.0
_GLANCE_S = 0.05

_AT_LEAST = {"retention.ms", "max.message.bytes"}
_AT_MOST = {"segment.bytes", "segment.ms"}
_REFUSALS = {
    kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED,
    kafka.KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    kafka.KafkaError.POLICY_VIOLATION,
}

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


class TopicSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Required settings of a topic. Replicas are the cluster's default.

    A name that ends in a dot is a prefix of several topics. The number of partitions may be
    changed by an operator, unless `is_single`: then one partition orders all that the topic holds.
    """

    name: str
    partitions: int
    is_single: bool = False
    retention_ms: int | None  # None: compacted, the latest of each key is kept for ever
    timestamps: str = "LogAppendTime"  # so that no sender's clock decides how long it is kept
    others: Mapping[str, str] = {}

    def settings(self, cluster: KafkaCluster) -> dict[str, str]:
        kept = {"cleanup.policy": "compact"}
        if self.retention_ms is not None:
            kept = {
                "cleanup.policy": "delete",
                "retention.ms": str(self.retention_ms),
                "retention.bytes": "-1",
            }
        limit = {"max.message.bytes": str(cluster.batch_bytes)}
        return kept | limit | {"message.timestamp.type": self.timestamps} | dict(self.others)


TABLE = (
    TopicSettings(name=Topic.AGENTS, partitions=8, retention_ms=7 * DAY_MS),
    TopicSettings(
        name=Topic.REQUESTS, partitions=1, retention_ms=7 * DAY_MS, timestamps="CreateTime"
    ),
    TopicSettings(name=Topic.DISPATCHES, partitions=1, retention_ms=HOUR_MS),
    TopicSettings(name=Topic.REPLIES, partitions=1, retention_ms=HOUR_MS),
    TopicSettings(name=Topic.EVENTS, partitions=1, is_single=True, retention_ms=7 * DAY_MS),
    TopicSettings(
        name=Topic.PROFILES,
        partitions=1,
        is_single=True,
        retention_ms=None,
        # Only closed segments are compacted, and a balancer that starts reads all there is.
        others={"segment.bytes": str(16 << 20), "segment.ms": str(HOUR_MS)},
    ),
    TopicSettings(name=Topic.RESULTS, partitions=8, retention_ms=7 * DAY_MS),
    TopicSettings(name=Topic.DEAD_LETTERS, partitions=1, retention_ms=30 * DAY_MS),
)


def describe(name: str) -> TopicSettings:
    for topic in TABLE:
        if name == topic.name or (topic.name.endswith(".") and name.startswith(topic.name)):
            return topic
    raise AssertionError(f"{name} is not one of Kairos's topics")


async def ensure_topics(cluster: KafkaCluster, names: Iterable[str]) -> None:
    """Create missing topics, and check the settings of existing ones.

    Several processes may do this concurrently. An unreachable cluster is retried for
    `PATIENCE_S`.

    Raises:
        SetupError: The cluster cannot be used, or a topic has wrong settings; the message says
            what to change and how.
    """
    wanted = sorted(set(names))
    said: list[str] = []  # by the client, of its connections

    def hear(error: Any) -> None:
        if error.code() != kafka.KafkaError._ALL_BROKERS_DOWN:  # which says nothing of why
            said.append(error.str())

    options: Any = cluster.client(error_cb=hear, log_level=0)
    client = AdminClient(options)
    until = time.monotonic() + PATIENCE_S
    is_told = False
    while True:
        try:
            problems = await _ensure(client, cluster, wanted)
            break
        except (kafka.KafkaException, TimeoutError) as error:
            client.poll(0)
            why = said[-1] if said else _reason(error)
            said.clear()
            if time.monotonic() > until:
                raise SetupError(f"Kafka at {cluster.servers} cannot be used: {why}") from None
            if not is_told:
                logger.warning("Kafka at %s cannot be used yet: %s", cluster.servers, why)
            is_told = True
            await asyncio.sleep(_AGAIN_S)
    if problems:
        raise SetupError("\n".join(["Kafka does not keep these topics as it must:", *problems]))


async def _ensure(client: Any, cluster: KafkaCluster, names: list[str]) -> list[str]:
    """Return the problems that only an operator can solve. Transient ones are raised."""
    there = await _listed(client)
    refused = await _create(client, cluster, [name for name in names if name not in there])
    if refused:
        return refused
    async with asyncio.timeout(_ANSWER_S):
        while not all(_is_led(there.get(name)) for name in names):
            await asyncio.sleep(_GLANCE_S)
            there = await _listed(client)
    resources = [ConfigResource(ConfigResource.Type.TOPIC, name) for name in names]
    problems = []
    for resource, answer in client.describe_configs(resources, request_timeout=_ANSWER_S).items():
        settings = {
            entry.name: entry.value for entry in (await asyncio.wrap_future(answer)).values()
        }
        partitions = len(there[resource.name].partitions)
        problems += _problems(cluster, resource.name, partitions, settings)
    return problems


async def _listed(client: Any) -> Any:
    # All of them: to ask for one by name can create it, with the cluster's settings.
    return (await asyncio.to_thread(client.list_topics, timeout=_ANSWER_S)).topics


def _is_led(topic: Any) -> bool:
    return topic is not None and all(each.leader >= 0 for each in topic.partitions.values())


async def _create(client: Any, cluster: KafkaCluster, names: list[str]) -> list[str]:
    if not names:
        return []
    new = []
    for name in names:
        topic = describe(name)
        new.append(NewTopic(name, topic.partitions, config=topic.settings(cluster)))
    refused = []
    for name, answer in client.create_topics(new, operation_timeout=_ANSWER_S).items():
        try:
            await asyncio.wrap_future(answer)
            logger.info("the topic %s has been created", name)
        except kafka.KafkaException as error:
            if (code := error.args[0].code()) in _REFUSALS:
                command = _creation(cluster, name)
                refused.append(f"{name} is missing: {_reason(error)}. Create it: {command}")
            elif code != kafka.KafkaError.TOPIC_ALREADY_EXISTS:
                raise
    return refused


def _problems(
    cluster: KafkaCluster, name: str, partitions: int, settings: Mapping[str, str]
) -> list[str]:
    topic = describe(name)
    problems = []
    if topic.is_single and partitions != 1:
        command = f"kafka-topics.sh --bootstrap-server {cluster.servers} --delete --topic {name}"
        problems.append(
            f"{name}: {partitions} partitions, must be 1. Delete it, with what it holds, and start "
            f"again: {command}"
        )
    wrong = {
        setting: (settings.get(setting), wanted)
        for setting, wanted in topic.settings(cluster).items()
        if not _is_kept(setting, settings.get(setting), wanted)
    }
    if wrong:
        found = ", ".join(
            f"{setting} is {there}, must be {_must_be(setting, wanted)}"
            for setting, (there, wanted) in wrong.items()
        )
        change = ",".join(f"{setting}={wanted}" for setting, (_, wanted) in wrong.items())
        problems.append(
            f"{name}: {found}. Change it: kafka-configs.sh --bootstrap-server {cluster.servers} "
            f"--alter --entity-type topics --entity-name {name} --add-config {change}"
        )
    return problems


def _is_kept(setting: str, there: str | None, wanted: str) -> bool:
    if there is None or setting not in _AT_LEAST | _AT_MOST:
        return there == wanted
    if setting in _AT_LEAST:
        return int(there) >= int(wanted) or (setting == "retention.ms" and there == "-1")
    return int(there) <= int(wanted)


def _must_be(setting: str, wanted: str) -> str:
    bound = "at least " if setting in _AT_LEAST else "at most " if setting in _AT_MOST else ""
    return bound + wanted


def _creation(cluster: KafkaCluster, name: str) -> str:
    topic = describe(name)
    settings = topic.settings(cluster).items()
    return (
        f"kafka-topics.sh --bootstrap-server {cluster.servers} --create --topic {name} "
        f"--partitions {topic.partitions}"
        + "".join(f" --config {setting}={wanted}" for setting, wanted in settings)
    )


def _reason(error: Exception) -> str:
    return error.args[0].str() if isinstance(error, kafka.KafkaException) else "no answer in time"


def partition_of(key: str, partitions: int) -> int:
    """Return the partition that producers choose for a key (`murmur2_random`, as in Java).

    murmur2 as in Kafka's `org.apache.kafka.common.utils.Utils`, on bytes read little-endian.
    """
    data, mask, m = key.encode(), 0xFFFFFFFF, 0x5BD1E995
    whole = len(data) & ~3
    h = 0x9747B28C ^ len(data)
    for (word,) in struct.iter_unpack("<I", data[:whole]):
        k = word * m & mask
        h = (h * m ^ (k ^ k >> 24) * m) & mask
    if rest := data[whole:]:
        h = (h ^ int.from_bytes(rest, "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return ((h ^ h >> 15) & 0x7FFFFFFF) % partitions

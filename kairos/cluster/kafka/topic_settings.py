"""Required settings of each Kafka topic; `scripts/topics.py` prints them: `deploy/topics.md`."""

from collections.abc import Mapping

import msgspec

from kairos.cluster.kafka.cluster import KafkaCluster
from kairos.core import Topic

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
    TopicSettings(
        name=Topic.AGENTS,
        partitions=8,
        retention_ms=7 * DAY_MS,
    ),
    TopicSettings(
        name=Topic.REQUESTS,
        partitions=1,
        retention_ms=7 * DAY_MS,
        timestamps="CreateTime",
    ),
    TopicSettings(
        name=Topic.DISPATCHES,
        partitions=1,
        retention_ms=HOUR_MS,
    ),
    TopicSettings(
        name=Topic.REPLIES,
        partitions=1,
        retention_ms=HOUR_MS,
    ),
    TopicSettings(
        name=Topic.EVENTS,
        partitions=1,
        is_single=True,
        retention_ms=7 * DAY_MS,
    ),
    TopicSettings(
        name=Topic.PROFILES,
        partitions=1,
        is_single=True,
        retention_ms=None,
        # Only closed segments are compacted, and a balancer that starts reads all there is.
        others={"segment.bytes": str(16 << 20), "segment.ms": str(HOUR_MS)},
    ),
    TopicSettings(
        name=Topic.RESULTS,
        partitions=8,
        retention_ms=7 * DAY_MS,
    ),
    TopicSettings(
        name=Topic.DEAD_LETTERS,
        partitions=1,
        retention_ms=30 * DAY_MS,
    ),
)


def describe(name: str) -> TopicSettings:
    for topic in TABLE:
        if name == topic.name or (topic.name.endswith(".") and name.startswith(topic.name)):
            return topic
    raise AssertionError(f"{name} is not one of Kairos's topics")

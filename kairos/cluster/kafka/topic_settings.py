"""Required settings of each Kafka topic; `scripts/topics.py` prints them: `deploy/topics.md`."""

from collections.abc import Mapping

import msgspec

from kairos.cluster.kafka.cluster import KafkaCluster
from kairos.core import Topic

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


class TopicSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Purpose and required settings of a topic. Replicas are the cluster's default.

    A name that ends in a dot is a prefix of several topics. The number of partitions may be
    changed by an operator, unless `is_single`: then one partition orders all that the topic holds.
    """

    name: str
    carries: str
    key: str
    partitions: int
    is_single: bool = False
    retention_ms: int | None  # None: compacted, the latest of each key is kept for ever
    timestamps: str = "LogAppendTime"  # so that no sender's clock decides how long it is kept
    others: Mapping[str, str] = {}
    why: str

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
        carries="an agent's inbox: tasks and messages to it; one topic per agent, `app.agent`",
        key="msg_id",
        partitions=8,
        retention_ms=7 * DAY_MS,
        why="at most as many processes share an agent as there are partitions",
    ),
    TopicSettings(
        name=Topic.REQUESTS,
        carries="LLM calls over the bus, and what those who perform calls tell the balancer",
        key="pool",
        partitions=1,
        retention_ms=7 * DAY_MS,
        timestamps="CreateTime",
        why="a pool is in one partition, whose reader decides; more only spread several pools",
    ),
    TopicSettings(
        name=Topic.DISPATCHES,
        carries="what the balancer tells those who perform calls",
        key="pool",
        partitions=1,
        retention_ms=HOUR_MS,
        why="read as it comes; what is old concerns nobody",
    ),
    TopicSettings(
        name=Topic.REPLIES,
        carries="answers to LLM calls over the bus; one topic per host that asks",
        key="msg_id",
        partitions=1,
        retention_ms=HOUR_MS,
        why="read as it comes; who lost a reply asks again",
    ),
    TopicSettings(
        name=Topic.EVENTS,
        carries="facts, with what the balancer decided on each",
        key="msg_id",
        partitions=1,
        is_single=True,
        retention_ms=7 * DAY_MS,
        why="takeover and learning rest on the order of all facts",
    ),
    TopicSettings(
        name=Topic.PROFILES,
        carries="what was learnt of each agent and application",
        key="what it is about",
        partitions=1,
        is_single=True,
        retention_ms=None,
        # Only closed segments are compacted, and a balancer that starts reads all there is.
        others={"segment.bytes": str(16 << 20), "segment.ms": str(HOUR_MS)},
        why="a balancer that starts reads all of it",
    ),
    TopicSettings(
        name=Topic.RESULTS,
        carries="how workflows ended",
        key="msg_id",
        partitions=8,
        retention_ms=7 * DAY_MS,
        why="as for inboxes: those who submit tasks read it",
    ),
    TopicSettings(
        name=Topic.DEAD_LETTERS,
        carries="messages that nobody could handle, and why",
        key="that of the message",
        partitions=1,
        retention_ms=30 * DAY_MS,
        why="few, and read by people",
    ),
)


def describe(name: str) -> TopicSettings:
    """Return the settings of the topic with that name."""
    for topic in TABLE:
        if name == topic.name or (topic.name.endswith(".") and name.startswith(topic.name)):
            return topic
    raise AssertionError(f"{name} is not one of Kairos's topics")

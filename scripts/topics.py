"""`python -m scripts.topics` prints what each topic of Kafka needs: `deploy/topics.md`."""

from kairos.cluster.kafka.cluster import KafkaCluster
from kairos.cluster.kafka.topic_settings import HOUR_MS, TABLE, TopicSettings

_INTRODUCTION = """\
# Topics

Made by `python -m scripts.topics > deploy/topics.md`.

Every Kairos process creates the topics it needs where they are missing, and refuses to start
where one is kept in another way than this, with the command that changes it. `retention.ms` and
`max.message.bytes` may be larger, `segment.*` smaller, and the number of partitions is free but
where it says *exactly*. Raise the partitions of an agent's inbox to let more processes share the
agent, while nothing is in it: keys move to other partitions then, and the order of a workflow's
messages holds within a partition. Change the partitions of `kairos.requests` and
`kairos.dispatches`, or delete `kairos.events`, only while all gateways and balancers are stopped.

Replicas are the cluster's defaults. What a broker acknowledges survives the loss of one where
`default.replication.factor` is 3 and `min.insync.replicas` is 2.

"""


def _kept(topic: TopicSettings) -> str:
    if topic.retention_ms is None:
        return "compacted: the latest of each key"
    days, hours = divmod(topic.retention_ms // HOUR_MS, 24)
    return f"{days} d" if days else f"{hours} h"


def markdown() -> str:
    """Return the table as Markdown."""
    rows = [
        "| topic | what it carries | key | partitions | kept | settings | why |",
        "|---|---|---|---|---|---|---|",
    ]
    settings_of = KafkaCluster(servers="")
    for topic in TABLE:
        name = topic.name + ("*" if topic.name.endswith(".") else "")
        number = f"{topic.partitions}, exactly" if topic.is_single else f"{topic.partitions}"
        settings = ", ".join(
            f"`{setting}={wanted}`" for setting, wanted in topic.settings(settings_of).items()
        )
        rows.append(
            f"| `{name}` | {topic.carries} | {topic.key} | {number} | {_kept(topic)} "
            f"| {settings} | {topic.why} |"
        )
    return _INTRODUCTION + "\n".join(rows) + "\n"


if __name__ == "__main__":
    print(markdown(), end="")

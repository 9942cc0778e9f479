"""`python -m scripts.topics` prints what each topic of Kafka needs: `deploy/topics.md`."""

from kairos.cluster.kafka.cluster import KafkaCluster
from kairos.cluster.kafka.topic_setup import HOUR_MS, TABLE, TopicSettings
from kairos.core import Topic

# What each carries, its key, and why it is kept so.
_TEXTS = {
    Topic.AGENTS: (
        "an agent's inbox: tasks and messages to it; one topic per agent, `app.agent`",
        "msg_id",
        "at most as many processes share an agent as there are partitions",
    ),
    Topic.REQUESTS: (
        "LLM calls over the bus, and what those who perform calls tell the balancer",
        "pool",
        "a pool is in one partition, whose reader decides; more only spread several pools",
    ),
    Topic.DISPATCHES: (
        "what the balancer tells those who perform calls",
        "pool",
        "read as it comes; what is old concerns nobody",
    ),
    Topic.REPLIES: (
        "answers to LLM calls over the bus; one topic per host that asks",
        "msg_id",
        "read as it comes; who lost a reply asks again",
    ),
    Topic.EVENTS: (
        "facts, with what the balancer decided on each",
        "msg_id",
        "takeover and learning rest on the order of all facts",
    ),
    Topic.PROFILES: (
        "what was learnt of each agent and application",
        "what it is about",
        "a balancer that starts reads all of it",
    ),
    Topic.RESULTS: (
        "how workflows ended",
        "msg_id",
        "as for inboxes: those who submit tasks read it",
    ),
    Topic.DEAD_LETTERS: (
        "messages that nobody could handle, and why",
        "that of the message",
        "few, and read by people",
    ),
}

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
        carries, key, why = _TEXTS[topic.name]
        rows.append(
            f"| `{name}` | {carries} | {key} | {number} | {_kept(topic)} | {settings} | {why} |"
        )
    return _INTRODUCTION + "\n".join(rows) + "\n"


if __name__ == "__main__":
    print(markdown(), end="")

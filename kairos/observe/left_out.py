"""Counts, by topic, of bus messages that this process ignored or moved to dead letters.

Anybody may be able to write to a topic; an unusable message has no effect and is counted. The
counts are global, since a process has one Prometheus endpoint.
"""

import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from prometheus_client.core import Metric

from kairos.core import InvalidRequest, Topic
from kairos.observe.families import counter

logger = logging.getLogger(__name__)

# Errors raised by reading a malformed message.
UNREADABLE = (InvalidRequest, ValueError, msgspec.MsgspecError, RecursionError)
_REASON = 300  # characters in the log
_left_out: Counter[str] = Counter()
_buried: Counter[str] = Counter()


def count_left_out(topic: str) -> None:
    _left_out[_family(topic)] += 1


def leave_out(message: Any, reason: object) -> None:
    """Count a message of the bus that is ignored, and log its position and the reason.

    An exception that is not among UNREADABLE is a bug of Kairos: its traceback is logged.
    """
    where = (message.topic, message.partition, message.offset)
    error = reason if isinstance(reason, Exception) else None
    said = str(reason) if error is None else f"{type(error).__name__}: {error}"
    ours = None if isinstance(error, UNREADABLE) else error
    level = logging.WARNING if ours is None else logging.ERROR
    logger.log(level, "%s/%d at %d is ignored: %s", *where, said[:_REASON], exc_info=ours)
    count_left_out(message.topic)


def count_buried(topic: str) -> None:
    """Count a message of the topic that became a dead letter."""
    _buried[_family(topic)] += 1


def left_out() -> Mapping[str, int]:
    return _left_out


def buried() -> Mapping[str, int]:
    return _buried


def bus_figures() -> Iterator[Metric]:
    for name, counts, documentation in (
        ("kairos_bus_left_out", _left_out, "Malformed Kafka messages ignored"),
        ("kairos_bus_dead_letters", _buried, "Kafka messages moved to dead letters"),
    ):
        yield counter(name, documentation, dict(sorted(counts.items())), "topic")


def _family(topic: str) -> str:
    """Return a label of bounded number: inboxes and replies have one per kind, not per topic."""
    for prefix in (Topic.AGENTS, Topic.REPLIES):
        if topic.startswith(prefix):
            return f"{prefix}*"
    return topic

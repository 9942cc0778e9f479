"""How many messages of the bus this process could make nothing of, and how many it buried: by
topic, since it began. Who may write to a topic may be anybody; what is no use there does nothing,
and is counted. One count per process, as a process has one face to Prometheus.
"""

import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Protocol

import msgspec
from prometheus_client.core import CounterMetricFamily, Metric

from kairos.core.errors import InvalidRequest
from kairos.core.topics import Topic

logger = logging.getLogger(__name__)

# What reading a message raises that makes no sense.
UNREADABLE = (InvalidRequest, ValueError, msgspec.MsgspecError, RecursionError)
_REASON = 300  # characters in the log
_left_out: Counter[str] = Counter()
_buried: Counter[str] = Counter()


class BusRecord(Protocol):
    """A message, and where it is."""

    @property
    def topic(self) -> str: ...

    @property
    def partition(self) -> int: ...

    @property
    def offset(self) -> int: ...


def count_left_out(topic: str) -> None:
    _left_out[_family(topic)] += 1


def leave_out(message: BusRecord, reason: object) -> None:
    """Count a message that does nothing, and say where it is and why.

    An exception that is not among UNREADABLE is a fault of ours: its trace is logged.
    """
    where = (message.topic, message.partition, message.offset)
    error = reason if isinstance(reason, Exception) else None
    said = str(reason) if error is None else f"{type(error).__name__}: {error}"
    ours = None if isinstance(error, UNREADABLE) else error
    level = logging.WARNING if ours is None else logging.ERROR
    logger.log(level, "%s/%d at %d is left out: %s", *where, said[:_REASON], exc_info=ours)
    count_left_out(message.topic)


def count_buried(topic: str) -> None:
    """A message of that topic has become a dead letter."""
    _buried[_family(topic)] += 1


def left_out() -> Mapping[str, int]:
    return _left_out


def buried() -> Mapping[str, int]:
    return _buried


def bus_figures() -> Iterator[Metric]:
    for name, counts, documentation in (
        ("kairos_bus_left_out", _left_out, "Messages of the bus that made no sense"),
        ("kairos_bus_dead_letters", _buried, "Messages of the bus that became dead letters"),
    ):
        family = CounterMetricFamily(name, documentation, labels=["topic"])
        for topic, count in sorted(counts.items()):
            family.add_metric([topic], count)
        yield family


def _family(topic: str) -> str:
    """Of inboxes and of replies there are as many as anybody likes."""
    for prefix in (Topic.AGENTS, Topic.REPLIES):
        if topic.startswith(prefix):
            return f"{prefix}*"
    return topic

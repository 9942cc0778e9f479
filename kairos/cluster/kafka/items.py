"""Items that a subscription yields: messages, and changes of a partition's state."""

import logging
import operator
from collections.abc import Mapping
from typing import Any

import msgspec

from kairos.observe import count_left_out

logger = logging.getLogger(__name__)

# Where a header's name is not UTF-8, confluent-kafka 2.16 returns a broken list with an exception
# pending. This call always notices; the interpreter's own, once it is optimised, crashes.
_headers_of = operator.methodcaller("headers")


class ReceivedMessage(msgspec.Struct, frozen=True):
    """A received message.

    `at` is the timestamp by Kafka or its sender, in µs since the epoch. Bytes of a key or a header
    that are not UTF-8 become replacement characters.
    """

    topic: str
    partition: int
    offset: int
    at: int
    key: str
    value: bytes | None  # None: a tombstone
    headers: Mapping[str, str]


class Assigned(msgspec.Struct, frozen=True):
    """A partition was assigned to this member.

    It is read from `offset`, the committed one; -1001 where the group has committed none and reads
    from the beginning.
    """

    topic: str
    partition: int
    offset: int
    metadata: str  # that was committed with it


class Revoked(msgspec.Struct, frozen=True):
    """A partition was revoked from this member."""

    topic: str
    partition: int


class CaughtUp(msgspec.Struct, frozen=True):
    """All messages that a partition held when reading began have been read."""

    topic: str
    partition: int


class Passed(msgspec.Struct, frozen=True):
    """The end of a partition was reached: its next message has `offset` or a higher one."""

    topic: str
    partition: int
    offset: int


Item = ReceivedMessage | Assigned | Revoked | CaughtUp | Passed


def convert_message(record: Any) -> ReceivedMessage | None:
    """Convert librdkafka's message; return None if it cannot be read."""
    try:
        headers = {
            name: (value or b"").decode(errors="replace")
            for name, value in _headers_of(record) or ()
        }
    except (UnicodeDecodeError, SystemError) as error:  # a header's name is not UTF-8
        where = (record.topic(), record.partition(), record.offset())
        logger.warning("left out the message %s/%s at %s: %s", *where, error)
        count_left_out(record.topic())
        return None
    return ReceivedMessage(
        record.topic(),
        record.partition(),
        record.offset(),
        record.timestamp()[1] * 1000,
        (record.key() or b"").decode(errors="replace"),
        record.value(),
        headers,
    )

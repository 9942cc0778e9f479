"""What a subscription tells."""

import logging
import operator
from collections.abc import Mapping
from typing import Any

import msgspec

from kairos.observe.left_out import count_left_out

logger = logging.getLogger(__name__)

# Where a header's name is no text, confluent-kafka 2.16 returns a broken list with an exception
# pending. This call always notices; the interpreter's own, once it is optimised, crashes.
_headers_of = operator.methodcaller("headers")


class ReceivedMessage(msgspec.Struct, frozen=True):
    """A message, as it came. `at`: when Kafka or its sender stamped it, µs since the epoch.

    What is not UTF-8 in a key or a header is there as replacement characters.
    """

    topic: str
    partition: int
    offset: int
    at: int
    key: str
    value: bytes | None  # None: a tombstone
    headers: Mapping[str, str]


class Assigned(msgspec.Struct, frozen=True):
    """A partition is this member's from now on. It is read from `offset`, the committed one; -1001
    where the group has committed none and reads from the beginning."""

    topic: str
    partition: int
    offset: int
    metadata: str  # that was committed with it


class Revoked(msgspec.Struct, frozen=True):
    """A partition is another member's from now on."""

    topic: str
    partition: int


class CaughtUp(msgspec.Struct, frozen=True):
    """All there was in a partition, at some moment, has been read."""

    topic: str
    partition: int


class Passed(msgspec.Struct, frozen=True):
    """Whatever comes of a partition comes at `offset` or later: it ends there at the moment."""

    topic: str
    partition: int
    offset: int


Item = ReceivedMessage | Assigned | Revoked | CaughtUp | Passed


def received(record: Any) -> ReceivedMessage | None:
    """librdkafka's message as ours; None: it cannot be read."""
    try:
        headers = {
            name: (value or b"").decode(errors="replace")
            for name, value in _headers_of(record) or ()
        }
    except (UnicodeDecodeError, SystemError) as error:  # the name of a header is no text
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

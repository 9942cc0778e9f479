"""Delivery of a message to a consumer group: retries, then the dead-letter topic.

Both buses (in memory and on Kafka) use it.
"""

import asyncio
import logging
from collections.abc import Sequence

import msgspec

from kairos.cluster.bus.envelope import ATTEMPT, DEAD_GROUP, DEAD_REASON, DEAD_TOPIC
from kairos.core import Handler, Message, Outgoing
from kairos.observe import count_buried

_ATTEMPTS = 3
_REASON_LIMIT = 500  # characters of an error's text that a dead letter carries

log = logging.getLogger(__name__)


class Undeliverable(Exception):
    """All delivery attempts of a message failed; the text gives the last error."""


class Delivery:
    """A message and the number of its next delivery attempt."""

    __slots__ = ("attempt", "message")

    def __init__(self, message: Message) -> None:
        self.message = message
        self.attempt = 1

    async def perform(self, handler: Handler) -> Sequence[Outgoing]:
        """Call the handler until it returns, at most three times.

        Raises:
            Undeliverable: Every attempt raised.
        """
        while True:
            headers = {**self.message.headers, ATTEMPT: str(self.attempt)}
            try:
                return await handler(msgspec.structs.replace(self.message, headers=headers)) or ()
            except asyncio.CancelledError as error:
                # The consumer is being cancelled, or only something that the handler awaited was.
                if _is_being_cancelled():
                    raise
                reason = _reason(error)
            # `SystemExit`, too: `sys.exit` in a handler would end this process, and every process
            # that the message is redelivered to.
            except (Exception, SystemExit) as error:
                if _is_being_cancelled():  # the handler turned the cancellation into another error
                    raise asyncio.CancelledError from error
                reason = _reason(error)
            if self.attempt == _ATTEMPTS:
                raise Undeliverable(reason)
            self.attempt += 1


def dead_letter(topic: str, group: str, message: Message, reason: str) -> Message:
    """Return the message as a dead letter, with its source and the reason in its headers."""
    log.warning("%s: a message of %.100r is dead: %s", group, message.key, reason)
    count_buried(topic)
    why = {DEAD_TOPIC: topic, DEAD_GROUP: group, DEAD_REASON: reason[:_REASON_LIMIT]}
    return msgspec.structs.replace(message, headers={**message.headers, **why})


def _reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:_REASON_LIMIT]


def _is_being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0

"""Sends messages to Kafka, and tells when they are safe.

librdkafka's synchronous producer with a thread that polls it: an acknowledgement costs one wake-up
of the loop, and many that come together cost one.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Mapping
from types import MappingProxyType, TracebackType
from typing import Any, Self

import confluent_kafka as kafka

from kairos.errors import MessageTooLarge, Unavailable
from kairos.live.kafka.connection import Connection

_POLL_S = 0.1
_CLOSE_S = 10.0  # for what has not been acknowledged yet
_NOTHING: Mapping[str, str] = MappingProxyType({})


class Producer:
    """An async context manager; leaving it waits for what is on its way.

    A message is sent again until the cluster has it, however long that takes, in the order of
    `send` within a partition. Messages that wait are bounded by librdkafka (100,000, 1 GiB).
    """

    def __init__(self, connection: Connection) -> None:
        self._limit = connection.message_bytes
        self._settings = connection.client(
            enable_idempotence=True,
            acks="all",
            linger_ms=0,
            message_timeout_ms=0,
            partitioner="murmur2_random",  # as Java's clients do
        )
        self._stopping = threading.Event()
        self._acknowledged: deque[tuple[asyncio.Future[int], Any, Any]] = deque()
        self._is_woken = False

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._producer = kafka.Producer(self._settings)
        self._thread = threading.Thread(target=self._poll, name="kafka-producer", daemon=True)
        self._thread.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await asyncio.to_thread(self._producer.flush, _CLOSE_S)
        self._stopping.set()
        await asyncio.to_thread(self._thread.join)
        self._settle()

    def send(
        self, topic: str, key: str, value: bytes | None, headers: Mapping[str, str] = _NOTHING
    ) -> asyncio.Future[int]:
        """Send a message; the future is its offset, once the cluster has it. None: a tombstone.

        Raises:
            MessageTooLarge: it is over the connection's limit.
            Unavailable: so much waits to be sent that no more is taken.
        """
        size = message_bytes(key, value, headers)
        if size > self._limit:
            raise MessageTooLarge(topic, size, self._limit)
        future: asyncio.Future[int] = self._loop.create_future()

        def acknowledge(error: Any, message: Any) -> None:
            self._acknowledged.append((future, error, message.offset()))
            if not self._is_woken:
                self._is_woken = True
                self._loop.call_soon_threadsafe(self._settle)

        try:
            self._producer.produce(
                topic, value, key, on_delivery=acknowledge, headers=list(headers.items())
            )
        except BufferError:
            raise Unavailable("the bus takes nothing, and too much waits for it already") from None
        return future

    def _poll(self) -> None:
        while not self._stopping.is_set():
            self._producer.poll(_POLL_S)

    def _settle(self) -> None:
        self._is_woken = False
        while self._acknowledged:
            future, error, offset = self._acknowledged.popleft()
            if future.done():
                continue
            if error is None:
                future.set_result(offset)
            else:
                future.set_exception(Unavailable(f"the bus did not take a message: {error}"))


def message_bytes(key: str, value: bytes | None, headers: Mapping[str, str]) -> int:
    """The size of a message, as limits count it."""
    named = sum(len(name) + len(text.encode()) for name, text in headers.items())
    return len(key.encode()) + len(value or b"") + named

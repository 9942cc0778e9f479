"""Consume as a process of its own, to be killed: `python -m tests.support.cluster.kafka_worker URL
IN OUT SECONDS`.

What comes on IN goes to OUT; a message "hang" is never done with, a message "die" ends the process,
and one that begins with "slow" is printed and takes SECONDS.
"""

import asyncio
import contextlib
import functools
import logging
import os
import random
import signal
import sys

from kairos.cluster import KafkaBus
from kairos.cluster.kafka import kafka_bus, transactions
from kairos.cluster.kafka.cluster import parse_bus
from kairos.cluster.kafka.subscription import Subscription
from kairos.core import Message

# Whoever comes after its death waits until Kafka knows of it, and ends what it left open.
SESSION_S = 2.0
OPEN_MS = 3_000


async def main(url: str, source: str, sink: str, slow_s: str) -> None:
    async def relay(message: Message):
        if message.value == b"hang":
            print("hanging", flush=True)
            await asyncio.Event().wait()
        await asyncio.sleep(random.uniform(0, 0.01))
        if message.value.startswith(b"die"):
            os._exit(9)  # as if by SIGKILL: nothing more is said
        if message.value.startswith(b"slow"):
            print(message.value.decode(), flush=True)
            await asyncio.sleep(float(slow_s))
        return [(sink, Message(key=message.key, value=message.value))]

    async with KafkaBus(parse_bus(url)) as bus:
        consumer = asyncio.ensure_future(bus.consume(source, source, relay, concurrency=8))
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, consumer.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await consumer


if __name__ == "__main__":
    kafka_bus.Subscription = functools.partial(Subscription, session_s=SESSION_S)
    transactions._OPEN_MS = OPEN_MS
    logging.basicConfig(level=logging.INFO, format="%(relativeCreated)d %(process)d %(message)s")
    asyncio.run(main(*sys.argv[1:]))

"""What a consumer does with what it reads, without a Kafka."""

import asyncio

from kairos.live.kafka.consumption import Consumption
from kairos.live.kafka.items import Assigned, Received

MESSAGES = 2_000
LIMIT_S = 20


class Read:
    """A subscription that has read all of a partition at once."""

    def __init__(self):
        self._batches = [
            [Assigned("t", 0, -1001, "")]
            + [Received("t", 0, n, 0, str(n), b"x", {}) for n in range(MESSAGES)]
        ]

    async def batch(self):
        if not self._batches:
            await asyncio.Event().wait()
        return self._batches.pop()

    def hold(self, held):
        pass

    def group_metadata(self):
        return None

    async def commit(self, offsets):
        pass


class Slow:
    """Transactions that take a while, so that what is finished gathers."""

    def __init__(self):
        self.published = []
        self.all_there = asyncio.Event()

    async def perform(self, outgoing, offsets, group_metadata):
        await asyncio.sleep(0.02)
        self.published += [message.key for _, message in outgoing]
        if len(self.published) >= MESSAGES:
            self.all_there.set()


async def test_a_partition_that_was_full_goes_on_when_what_is_finished_has_been_sent():
    transactions = Slow()

    async def hand_on(message):
        return [("next", message)]

    consuming = asyncio.create_task(Consumption(Read(), transactions, "g", hand_on, 64).run())
    try:
        async with asyncio.timeout(LIMIT_S):
            await transactions.all_there.wait()
    finally:
        consuming.cancel()
        await asyncio.gather(consuming, return_exceptions=True)
    assert sorted(map(int, transactions.published)) == list(range(MESSAGES))

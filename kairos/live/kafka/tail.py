"""What comes on a topic from now on."""

from collections.abc import Iterable
from contextlib import AsyncExitStack
from typing import Self

from kairos.live.kafka.cluster import KafkaCluster
from kairos.live.kafka.producer import Producer
from kairos.live.kafka.subscription import CaughtUp, Item, ReceivedMessage, Subscription
from kairos.ports import Message


class Tail:
    """An async context manager: once it is entered, whatever is sent to the topic is read here,
    beside what anybody else reads."""

    def __init__(self, cluster: KafkaCluster, topic: str) -> None:
        self._cluster = cluster
        self._topic = topic
        self._subscription = Subscription(cluster, [topic], start="end")
        self._early: list[Message] = []  # came while we were finding our place

    async def __aenter__(self) -> Self:
        async with Producer(self._cluster) as asking:
            partitions = await asking.partitions(self._topic)
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._subscription)
            placed = 0
            while placed < partitions:
                for item in await self._subscription.batch():
                    placed += isinstance(item, CaughtUp)
                    self._early += _messages([item])
            stack.pop_all()
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self._subscription.__aexit__(*raised)

    async def batch(self) -> list[Message]:
        """What has come since the last time, in order within a partition; at least one message.

        Raises:
            Unavailable: this cannot be read, and trying again would not help.
        """
        messages, self._early = self._early, []
        while not messages:
            messages = _messages(await self._subscription.batch())
        return messages


def _messages(items: Iterable[Item]) -> list[Message]:
    return [
        Message(key=each.key, value=each.value or b"", headers=each.headers)
        for each in items
        if isinstance(each, ReceivedMessage)
    ]

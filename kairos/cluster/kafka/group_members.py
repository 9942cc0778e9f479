"""Queries about a consumer group: is a member still in it, and where does a partition end.

They use a client of their own: the consumer's connections are busy with long polls.
"""

import asyncio
import logging
from typing import Any

import confluent_kafka as kafka
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from kairos.cluster.kafka.cluster import KafkaCluster
from kairos.cluster.kafka.consumer_commands import Where
from kairos.cluster.kafka.custody import holder_mark
from kairos.core import Unavailable

logger = logging.getLogger(__name__)

_ANSWER_S = 5.0


class GroupMembers:
    """Queries about one consumer group.

    The client is created on first use, which is after a death or a rebalance.
    """

    def __init__(self, cluster: KafkaCluster, group: str) -> None:
        self._cluster = cluster
        self._group = group
        self._client: Any = None

    async def has(self, holder: str) -> bool:
        """Return whether the member with that mark (`custody.py`) is in the group.

        Raises:
            Unavailable: The cluster did not answer.
        """
        asked = self._asking().describe_consumer_groups([self._group], request_timeout=_ANSWER_S)
        try:
            described = await asyncio.wrap_future(asked[self._group])
        except kafka.KafkaException as error:
            raise Unavailable(f"the members of {self._group} are not known: {error}") from None
        return holder in {holder_mark(each.member_id) for each in described.members}

    async def end(self, where: Where) -> int:
        """Return the offset that the next message of a partition gets.

        Raises:
            Unavailable: The cluster did not answer.
        """
        partition = kafka.TopicPartition(*where)
        latest = {partition: OffsetSpec.latest()}  # type: ignore[no-untyped-call]
        asked = self._asking().list_offsets(latest, request_timeout=_ANSWER_S)
        try:
            return int((await asyncio.wrap_future(asked[partition])).offset)
        except kafka.KafkaException as error:
            raise Unavailable(f"cannot find the end of {where}: {error}") from None

    def _asking(self) -> Any:
        if self._client is None:
            options: Any = self._cluster.client(log_level=0)
            self._client = AdminClient(options)
        return self._client

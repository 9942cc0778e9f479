"""Subscription to Kafka topics: one ordered stream of what a consumer's poll thread reads.

Read-ahead is bounded. Beyond the bound the partitions are paused while the thread keeps polling,
so the group never takes a slow reader for a dead member.
"""

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Literal, Self

import confluent_kafka as kafka
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from kairos.cluster.kafka.cluster import KafkaCluster
from kairos.cluster.kafka.connectivity import Connectivity, Contact
from kairos.cluster.kafka.consumer_commands import Offsets, Where
from kairos.cluster.kafka.custody import holder_mark
from kairos.cluster.kafka.items import Item, ReceivedMessage
from kairos.cluster.kafka.poll import Membership, PollThread
from kairos.core import Unavailable

SESSION_S = 6.0
_LEAVE_S = 5.0
_AHEAD = 1_000  # messages read ahead of the loop
_AHEAD_BYTES = 16 << 20
_ANSWER_S = 2.0
_MEMBERS_S = 5.0  # for an answer about the group

Start = Literal["beginning", "end"] | int  # an instant, µs: from the first message since


class GroupMembers:
    """Queries about one consumer group: is a member still in it, and where does a partition end.

    They use a client of their own, since the consumer's connections are busy with long polls. It is
    created on first use, which is after a death or a rebalance.
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
        asked = self._asking().describe_consumer_groups([self._group], request_timeout=_MEMBERS_S)
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
        asked = self._asking().list_offsets(latest, request_timeout=_MEMBERS_S)
        try:
            return int((await asyncio.wrap_future(asked[partition])).offset)
        except kafka.KafkaException as error:
            raise Unavailable(f"cannot find the end of {where}: {error}") from None

    def _asking(self) -> Any:
        if self._client is None:
            options: Any = self._cluster.client(log_level=0)
            self._client = AdminClient(options)
        return self._client


class Subscription:
    """Async context manager that reads topics.

    With a group: this member's partitions, from the committed offsets. Without: all of each topic,
    from `start`, and nothing is committed. The reader commits (`commit`) and sees only committed
    transactions. While the cluster cannot be reached, nothing arrives.
    """

    def __init__(
        self,
        cluster: KafkaCluster,
        topics: Sequence[str],
        group: str | None = None,
        *,
        start: Start = "beginning",
        session_s: float = SESSION_S,
        tells_ends: bool = False,
        reach: Connectivity | None = None,
    ) -> None:
        """Create the subscription.

        With `tells_ends`, a `Passed` is yielded whenever a partition has been read to its end.
        `reach` is shared with other clients of the cluster.
        """
        contact = Contact(reach or Connectivity(cluster.servers))
        name = group or "kairos.readers"  # unused: without a group nothing is committed
        self.members = GroupMembers(cluster, name)
        settings = cluster.client(
            group_id=name,
            enable_auto_commit=False,
            enable_partition_eof=True,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            partition_assignment_strategy="cooperative-sticky",
            session_timeout_ms=int(session_s * 1000),
            heartbeat_interval_ms=int(session_s * 1000 / 6),
            queued_max_messages_kbytes=16_384,
            fetch_queue_backoff_ms=20,
            fetch_wait_max_ms=100,
            topic_metadata_refresh_interval_ms=10_000,
        )
        self._poll = PollThread(
            settings | contact.settings(),
            topics,
            contact=contact,
            first=None if group is not None else _first(start),
            tells_ends=tells_ends,
            put=self._put,
            is_full=self._is_full,
        )
        self._ahead: deque[Item | Membership | Exception] = deque()
        self._bytes_put = 0  # counted by the thread
        self._bytes_taken = 0  # counted by the loop
        self._is_held = False
        self._is_woken = False
        self._ready = asyncio.Event()
        self._member = Membership(None, {}, "")
        self._marks: set[str] = set()  # all marks that this member has had in its group

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._poll.start()
        return self

    async def __aexit__(self, *_raised: object) -> None:
        self._poll.stop()
        # If the cluster is unreachable, the last commit may block for more than a minute.
        await asyncio.wait({asyncio.wrap_future(self._poll.ended)}, timeout=_LEAVE_S)

    async def batch(self) -> list[Item]:
        """Return items received since the last call, in order; at least one.

        Raises:
            TopicMissing: One of the topics does not exist.
            Unavailable: The topics cannot be read, and retrying would not help.
        """
        items: list[Item] = []
        while not items:
            while not self._ahead:
                self._ready.clear()
                await self._ready.wait()
            while self._ahead:
                item = self._ahead[0]
                if isinstance(item, Exception):
                    if items:
                        break
                    raise item  # and again at the next call
                self._ahead.popleft()
                if isinstance(item, Membership):
                    self._member = item
                    self._marks.add(self.holder)
                    continue
                if isinstance(item, ReceivedMessage):
                    self._bytes_taken += len(item.value or b"")
                items.append(item)
        return items

    def hold(self, is_held: bool) -> None:
        """Pause reading beyond what has been read ahead, or resume it."""
        self._is_held = is_held

    async def commit(self, offsets: Offsets) -> None:
        """Commit, for each partition, the offset to go on from, and metadata.

        Raises:
            Unavailable: The commit failed; the partition may have been revoked in the meantime.
        """
        await asyncio.wrap_future(self._poll.commits.add(offsets, self._member.terms))

    async def committed(self, partitions: Iterable[Where]) -> dict[Where, tuple[int, str]]:
        """Return what the group has committed, once no transaction on it is open.

        Partitions without a committed offset are left out.

        Raises:
            Unavailable: The cluster did not answer.
        """
        asked = [kafka.TopicPartition(*where) for where in partitions]

        def committed(consumer: Any) -> dict[Where, tuple[int, str]]:
            return {
                (each.topic, each.partition): (each.offset, each.metadata or "")
                for each in consumer.committed(asked, _ANSWER_S)
                if each.offset >= 0
            }

        try:
            return await asyncio.wrap_future(self._poll.questions.add(committed))
        except kafka.KafkaException as error:
            raise Unavailable(f"cannot query committed offsets: {error}") from None

    @property
    def holder(self) -> str:
        """Mark of this member (`custody.py`); empty while it is not in the group."""
        return holder_mark(self._member.id) if self._member.id else ""

    async def is_alive(self, holder: str) -> bool:
        """Return whether the member with that mark is still in the group.

        Raises:
            Unavailable: The cluster did not answer.
        """
        return holder in self._marks or await self.members.has(holder)

    def group_metadata(self) -> Any:
        """Return this member's metadata for a transaction that commits its offsets.

        It is that of the last rebalance which `batch` has returned; the cluster rejects
        transactions with it after the next rebalance.
        """
        return self._member.metadata

    def _is_full(self) -> bool:
        ahead_bytes = self._bytes_put - self._bytes_taken
        return self._is_held or len(self._ahead) >= _AHEAD or ahead_bytes >= _AHEAD_BYTES

    def _put(self, item: Item | Membership | Exception) -> None:
        """Add an item. Called in the poll thread."""
        if isinstance(item, ReceivedMessage):
            self._bytes_put += len(item.value or b"")
        self._ahead.append(item)
        if not self._is_woken and not self._loop.is_closed():
            self._is_woken = True
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        self._is_woken = False
        self._ready.set()


def _first(start: Start) -> int:
    """Return where to start: an offset that librdkafka defines by name, or an instant in ms."""
    if isinstance(start, int):
        return start // 1000
    return int(kafka.OFFSET_BEGINNING if start == "beginning" else kafka.OFFSET_END)

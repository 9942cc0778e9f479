"""Group commit: results of handlers that finish during a transaction gather for the next one.

A transaction holds the messages that handlers returned, and the offsets of each partition.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from kairos.cluster.bus.envelope import message_bytes
from kairos.cluster.kafka.consumer_commands import Where
from kairos.cluster.kafka.items import ReceivedMessage
from kairos.cluster.kafka.share import Share, restored
from kairos.cluster.kafka.subscription import Subscription
from kairos.cluster.kafka.transactions import NotSent, Transactions
from kairos.core import Outgoing, Unavailable

logger = logging.getLogger(__name__)

_BATCH_BYTES = 16 << 20  # to send at once
_BATCH = 1_000
_COMMIT_S = 0.5  # between commits of nothing but offsets
_AGAIN_S = 0.1


class HandledMessage:
    """A handled message, and the messages to publish in the same transaction."""

    __slots__ = ("bytes", "is_dead", "outgoing", "received", "share")

    def __init__(
        self,
        share: Share,
        received: ReceivedMessage,
        outgoing: Sequence[Outgoing],
        *,
        is_dead: bool = False,
    ) -> None:
        self.share = share
        self.received = received
        self.outgoing = outgoing
        self.is_dead = is_dead  # buried: what goes out is the dead letter
        self.bytes = sum(message_bytes(m.key, m.value, m.headers) for _, m in outgoing)

    @property
    def where(self) -> Where:
        return self.received.topic, self.received.partition


class Outbox:
    """Sender of handlers' results. `run` ends after `close`, once all is sent or cannot be sent."""

    def __init__(
        self,
        subscription: Subscription,
        transactions: Transactions,
        shares: Mapping[Where, Share],
        bury: Callable[[Share, ReceivedMessage, str], HandledMessage],
        on_room: Callable[[], None],
    ) -> None:
        """Create the outbox.

        `shares` are this member's current shares, kept up to date by the caller. `bury` turns a
        message into a dead letter if the cluster rejects what its handler returned. `on_room` is
        called when finished work has been taken, so that more handlers may start.
        """
        self._subscription = subscription
        self._transactions = transactions
        self._shares = shares
        self._bury = bury
        self._on_room = on_room
        self._waiting: deque[HandledMessage] = deque()
        self._unsafe: deque[asyncio.Future[None]] = deque()  # futures of `secure`
        self._securing = 0  # how many of the first of them the current commit resolves
        self._again_at = 0.0
        self._is_closing = False
        self._woken = asyncio.Event()
        self._commits_at = 0.0
        self.held_bytes = 0

    def add(self, finished: HandledMessage) -> None:
        if finished.outgoing:
            self._waiting.append(finished)
            self.held_bytes += finished.bytes
        else:
            finished.share.finish(finished.received)
        self._woken.set()

    async def secure(self) -> None:
        """Return once each share's present state is committed, or the share is lost."""
        safe: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._unsafe.append(safe)
        self._woken.set()
        await safe

    def close(self) -> None:
        self._is_closing = True
        self._woken.set()

    async def run(self) -> None:
        """Send until closed.

        Raises:
            Unavailable: The cluster permanently rejects a dead letter, which must not be lost.
        """
        try:
            while await self._is_due():
                batch = self._gather()
                is_settled = await (self._send(batch) if batch else self._commit())
                if self._is_closing and not is_settled:
                    # No more commits: the shares' state includes messages that were not sent.
                    logger.warning("the next member will handle the last finished messages again")
                    return
        finally:
            self._secured(len(self._unsafe))  # so that no caller of `secure` hangs

    async def _is_due(self) -> bool:
        """Wait until there is something to send or commit.

        Return False when closed and all is done.
        """
        while True:
            self._woken.clear()
            if self._waiting:
                return True
            is_changed = bool(self._changed())
            if self._is_closing:
                return is_changed
            due_at = self._again_at if self._unsafe else self._commits_at
            is_wanted = is_changed or bool(self._unsafe)
            wait_s = due_at - asyncio.get_running_loop().time() if is_wanted else None
            if wait_s is not None and wait_s <= 0:
                return True
            try:
                async with asyncio.timeout(wait_s):
                    await self._woken.wait()
            except TimeoutError:
                pass

    def _gather(self) -> list[HandledMessage]:
        batch: list[HandledMessage] = []
        total_bytes = 0
        while self._waiting and len(batch) < _BATCH and total_bytes < _BATCH_BYTES:
            finished = self._waiting.popleft()
            self.held_bytes -= finished.bytes
            if not finished.share.is_lost:
                finished.share.finish(finished.received)
                total_bytes += finished.bytes
                batch.append(finished)
        self._on_room()
        return batch

    def _changed(self) -> dict[Where, tuple[int, str]]:
        self._securing = len(self._unsafe)
        states = {where: share.state() for where, share in self._shares.items()}
        return {
            where: state
            for where, state in states.items()
            if state != self._shares[where].committed
        }

    def _note(self, states: Mapping[Where, tuple[int, str]]) -> None:
        for where, state in states.items():
            if where in self._shares:
                self._shares[where].committed = state
        self._secured(self._securing)
        self._commits_at = asyncio.get_running_loop().time() + _COMMIT_S

    def _secured(self, count: int) -> None:
        for _ in range(count):
            safe = self._unsafe.popleft()
            if not safe.done():
                safe.set_result(None)
        self._securing = 0

    async def _commit(self) -> bool:
        """Commit offsets only. Return whether that succeeded; else it is retried."""
        states = self._changed()
        try:
            if states and self._unsafe:  # the consumer's thread may be blocked on a full buffer
                metadata = self._subscription.group_metadata()
                await self._transactions.perform((), states, metadata)
            elif states:
                await self._subscription.commit(states)
        except (NotSent, Unavailable) as error:
            logger.info("offsets are committed later: %s", error)
            self._commits_at = asyncio.get_running_loop().time() + _COMMIT_S
            self._again_at = asyncio.get_running_loop().time() + _AGAIN_S
            return False
        self._note(states)
        return True

    async def _send(self, batch: list[HandledMessage]) -> bool:
        """Return whether the whole batch is sent, or is left to other members."""
        # No await between the check for lost shares and the group's metadata: a rebalance in
        # between would go unnoticed.
        while batch := [finished for finished in batch if not finished.share.is_lost]:
            states = self._changed()
            outgoing = [each for finished in batch for each in finished.outgoing]
            metadata = self._subscription.group_metadata()
            try:
                await self._transactions.perform(outgoing, states, metadata)
            except NotSent as error:
                logger.info("a transaction is tried again: %s", error)
                batch = self._without_refused(batch, error.refused)
            else:
                self._note(states)
                return True
            await asyncio.sleep(_AGAIN_S)
            sent = await self._sent(batch)
            if sent is None:
                return False
            batch = [finished for finished in batch if finished not in sent]
        return True

    def _without_refused(
        self, batch: list[HandledMessage], refused: Mapping[int, str]
    ) -> list[HandledMessage]:
        """Return the batch, with messages whose output was rejected turned into dead letters."""
        kept: list[HandledMessage] = []
        number = 0
        for finished in batch:
            numbers = range(number, number + len(finished.outgoing))
            number = numbers.stop
            reason = next((refused[each] for each in numbers if each in refused), None)
            if reason is None:
                kept.append(finished)
            elif finished.is_dead:
                raise Unavailable(f"the bus does not take dead letters: {reason}")
            else:
                kept.append(self._bury(finished.share, finished.received, reason))
        return kept

    async def _sent(self, batch: list[HandledMessage]) -> set[HandledMessage] | None:
        """Return the messages of the batch that are committed although the reply was lost.

        None: the outbox is closing, with no time left to find out.
        """
        while not self._is_closing:
            try:
                known = await self._subscription.committed({finished.where for finished in batch})
            except Unavailable as error:
                logger.debug("committed offsets are queried again: %s", error)
                await asyncio.sleep(_AGAIN_S)
            else:
                marks = {where: restored(*state)[0] for where, state in known.items()}
                return {
                    finished
                    for finished in batch
                    if finished.where in marks
                    and marks[finished.where].is_done(finished.received.offset)
                }
        return None

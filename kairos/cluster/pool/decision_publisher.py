"""Output of the active balancer: records, orders and dead letters, in a safe order."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial

import msgspec

from kairos.cluster.bus.envelope import DEAD_GROUP, DEAD_REASON, DEAD_TOPIC, message_bytes
from kairos.cluster.decisions.messages import Declined, LoggedDecision, Order
from kairos.cluster.decisions.open_calls import OpenCallTable
from kairos.cluster.kafka.cluster import MESSAGE_BYTES
from kairos.cluster.kafka.items import ReceivedMessage
from kairos.cluster.kafka.producer import Producer
from kairos.cluster.pool.messages import (
    CAUSE,
    EPOCH,
    MOST_COMMANDS,
    PERFORMER,
    POOL_HEADER,
    REDO,
    TURN,
    Orders,
)
from kairos.cluster.pool.performer import Performer
from kairos.core import (
    Arrived,
    Bounced,
    Event,
    InstanceStatus,
    KairosError,
    ProfilesLearnt,
    Progressed,
    Record,
    Refuse,
    Tick,
    Topic,
)
from kairos.observe import count_buried

logger = logging.getLogger(__name__)

# Facts that matter for a second at most: a successor gets fresh ones. Their decisions are recorded.
_PASSING = Tick | InstanceStatus | Progressed

_encode = msgspec.json.Encoder().encode

Sent = asyncio.Future[int]


class DecisionPublisher:
    """Publisher of decisions. A decision is acted on once its record is committed, not before."""

    def __init__(
        self, pool: str, epoch: int, producer: Producer, performer: Performer, calls: OpenCallTable
    ) -> None:
        self.offsets = Offsets()
        # A record or an order is missing: nothing that is decided after it may count.
        self.is_broken = False
        self._pool = pool
        self._epoch = str(epoch)
        self._producer = producer
        self._performer = performer
        self._calls = calls

    def publish(self, decision: LoggedDecision, bus_call: object = None) -> None:
        """Publish a decision. `bus_call` is kept with a call that arrives by it."""
        record = decision.record
        if isinstance(record.event, ProfilesLearnt):
            return  # on a topic of its own
        if isinstance(record.event, _PASSING) and not record.commands:
            if decision.cause is not None:
                self.offsets.done(decision.cause)
            return
        key = self._key(record.event)
        first = msgspec.structs.replace(record, commands=record.commands[:MOST_COMMANDS])
        self._say(msgspec.structs.replace(decision, record=first), key, bus_call)
        for start in range(MOST_COMMANDS, len(record.commands), MOST_COMMANDS):
            more = record.commands[start : start + MOST_COMMANDS]
            self._say(LoggedDecision(Record(record.at, Tick(), more)), key)

    def fence(self) -> None:
        """Send an empty order, so that performers ignore balancers before this one."""
        self.order("", ())

    def show_life(self) -> None:
        """Send an empty order, which nothing depends on."""
        empty, headers = _encode(Orders((), ())), {EPOCH: self._epoch, PERFORMER: ""}
        sent = self._send(Topic.DISPATCHES, self._pool, empty, headers)
        sent.add_done_callback(lambda future: future.cancelled() or future.exception())

    def _say(self, decision: LoggedDecision, key: str, bus_call: object = None) -> None:
        if self.is_broken:
            return
        record = decision.record
        applied = self._calls.apply(decision, bus_call)
        orders: dict[str, list[Order]] = {}
        for call, command in applied.commands:
            orders.setdefault(call.performer, []).append((command, call.turn))
        if missing := len(record.commands) - len(applied.commands):
            # Calls of a recalled record that no process performs.
            logger.warning("nobody performs %d calls that were decided on", missing)
        done = [call.cause for call in applied.ended if call.cause is not None]
        if decision.cause is not None and not isinstance(record.event, Arrived):
            done.append(decision.cause)  # but an arrival is done when the call ends
        safe = self._send(Topic.EVENTS, key, _encode(record), self._headers(decision))
        safe.add_done_callback(partial(self._act, orders, done))

    def _key(self, event: Event) -> str:
        """Return the key of a record: the workflow that it is about or, about none, the pool."""
        call = self._calls.get(getattr(event, "request_id", ""))
        request = event.request if isinstance(event, Arrived) else call and call.request
        workflow_id: str | None = getattr(request or event, "workflow_id", None)
        return workflow_id or self._pool

    def _headers(self, decision: LoggedDecision) -> dict[str, str]:
        event = decision.record.event
        said = {
            POOL_HEADER: self._pool,
            EPOCH: self._epoch,
            PERFORMER: decision.performer if isinstance(event, Arrived) else None,
            CAUSE: decision.cause,
            TURN: decision.turn if isinstance(event, Arrived | Bounced) else None,
            REDO: 1 if decision.redo else None,
        }
        return {name: str(text) for name, text in said.items() if text is not None}

    def order(self, performer: str, orders: Iterable[Order]) -> Sent | None:
        """Send orders to a performer. None: it is this process, and has taken them already."""
        if performer == self._performer.id:
            self._performer.take(orders)
            return None
        headers = {EPOCH: self._epoch, PERFORMER: performer}
        said = [*orders]
        message = Orders(tuple(command for command, _ in said), tuple(turn for _, turn in said))
        sent = self._send(Topic.DISPATCHES, self._pool, _encode(message), headers)
        sent.add_done_callback(self._break_unless_safe)
        return sent

    def refuse(self, performer: str, refusal: Refuse | Declined, turn: int, offset: int) -> None:
        """End a call that is not open by a refusal."""
        sent = self.order(performer, [(refusal, turn)])
        self._after(sent, lambda: self.offsets.done(offset))

    def bury(self, message: ReceivedMessage, error: Exception) -> None:
        reason = f"{type(error).__name__}: {error}"[:500]
        logger.warning("%s:%d is a dead letter: %s", message.topic, message.offset, reason)
        count_buried(message.topic)
        why = {
            DEAD_TOPIC: message.topic,
            DEAD_GROUP: f"kairos.balancer.{self._pool}",
            DEAD_REASON: reason,
        }
        value, headers = message.value, {**message.headers, **why}
        if message_bytes(message.key, value, headers) > MESSAGE_BYTES:
            value, headers = None, why  # the message itself remains on its topic
        sent = self._send(Topic.DEAD_LETTERS, message.key, value, headers)
        self._after(sent, lambda: self.offsets.done(message.offset))

    def _act(self, orders: Mapping[str, list[Order]], done: Iterable[int], safe: Sent) -> None:
        self._break_unless_safe(safe)
        if self.is_broken:
            return
        for performer, theirs in orders.items():
            self.order(performer, theirs)
        for offset in done:
            self.offsets.done(offset)

    def _after(self, sent: Sent | None, act: Callable[[], None]) -> None:
        if sent is None:
            act()
        else:
            sent.add_done_callback(lambda future: act() if is_safe(future) else None)

    def _send(self, topic: str, key: str, value: bytes | None, headers: Mapping[str, str]) -> Sent:
        try:
            return self._producer.send(topic, key, value, headers)
        except KairosError as error:
            failed: Sent = asyncio.get_running_loop().create_future()
            failed.set_exception(error)
            return failed

    def _break_unless_safe(self, sent: Sent) -> None:
        self.is_broken |= not is_safe(sent)


def is_safe(sent: Sent) -> bool:
    """Return whether the cluster has the message; log the error if not."""
    if sent.cancelled():
        return False
    if (error := sent.exception()) is not None:
        logger.error("%s", error)
        return False
    return True


class Offsets:
    """Progress in a partition whose messages may be done in any order.

    Offsets in progress are added in order; a successor must begin to read at `next`.
    """

    def __init__(self) -> None:
        self._undone: dict[int, None] = {}  # in order
        self._end = -1

    def add(self, offset: int) -> None:
        self._undone[offset] = None
        self._end = max(self._end, offset + 1)

    def done(self, offset: int) -> None:
        self._undone.pop(offset, None)

    @property
    def next(self) -> int | None:
        """First offset that is not done; None: none has been added yet."""
        first = next(iter(self._undone), self._end)
        return None if first < 0 else first

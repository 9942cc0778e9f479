"""Learnt profiles on the compacted topic `kairos.profiles`: the newest record of each part.

A part is an agent's profile, an app's model, an agent's rank, where its calls join branches, or
Kendall's tau; its key says which. The value is a `ProfilesLearnt` with just that part; a forgotten
part is a tombstone. Values are untrusted: records that cannot be read are skipped.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterator, Sequence

import msgspec

from kairos.cluster.kafka.cluster import KafkaCluster
from kairos.cluster.kafka.items import CaughtUp, ReceivedMessage
from kairos.cluster.kafka.producer import Producer
from kairos.cluster.kafka.subscription import Subscription
from kairos.core import POOLED_AGENT, MessageTooLarge, ProfilesLearnt, Topic
from kairos.observe import (
    LIMIT_BYTES,
    UNREADABLE,
    check_joins,
    check_learnt,
    count_left_out,
    have_known_shapes,
)

logger = logging.getLogger(__name__)

_SENT_AT_ONCE = 1_000
_GATHER_S = 0.1  # what is published together arrives as one fact, or nearly so
_DECODED_AT_ONCE = 100  # parts, between which the loop has its turn
_encode = msgspec.json.Encoder().encode
_part = msgspec.json.Decoder(ProfilesLearnt)
_key = msgspec.json.Decoder(tuple[str, ...])

Key = tuple[str, ...]  # what it is, and of whom


async def publish(producer: Producer, learnt: ProfilesLearnt) -> None:
    """Publish all parts, and return once the cluster has them.

    Too large ones are skipped, and logged.
    """
    sent: list[asyncio.Future[int]] = []
    for key, part in _parts(learnt):
        value = None if part is None else _encode(part)
        try:
            sent.append(producer.send(Topic.PROFILES, _encode(key).decode(), value))
        except MessageTooLarge as error:
            logger.warning("not published: %s", error)
        if len(sent) >= _SENT_AT_ONCE:
            await asyncio.gather(*sent)
            sent = []
    await asyncio.gather(*sent)


async def follow(
    cluster: KafkaCluster, *, limit_bytes: int = LIMIT_BYTES
) -> AsyncGenerator[ProfilesLearnt, None]:
    """Yield everything on the topic as one fact, which may be empty; then yield updates, for ever.

    Of what exceeds `limit_bytes` in one fact the oldest records are dropped.

    Raises:
        Unavailable: The topic cannot be read, and retrying would not help.
    """
    async with Subscription(cluster, [Topic.PROFILES]) as topic:
        news, is_caught_up = _News(limit_bytes), False
        while True:
            for item in await topic.batch():
                if isinstance(item, ReceivedMessage):
                    news.take(item)
                elif isinstance(item, CaughtUp):
                    is_caught_up = True
                    yield await news.merged()
            if is_caught_up and news:
                yield await news.merged()
                await asyncio.sleep(_GATHER_S)


def read_part(name: str, value: bytes | None) -> ProfilesLearnt:
    """Parse a record of the topic from its key and its value.

    Raises:
        ValueError, msgspec.MsgspecError, InvalidRequest: The record is not a part that this
            version knows.
    """
    key = _key.decode(name)
    if value is None:
        # To forget a profile also forgets its rank and model: their tombstones add nothing.
        is_profile = len(key) == 4 and key[0] == "profile"
        return ProfilesLearnt(forgotten=((key[1], key[2], key[3]),) if is_profile else ())
    part = _part.decode(value)
    if [each for each, _ in _parts(part)] != [key]:
        raise ValueError("it is not the part that its key names")
    if not have_known_shapes(part.profiles, part.models):
        raise ValueError("it was written by a Kairos that learns other figures")
    check_learnt(part.profiles, part.models, part.ranks, part.kendall_tau)
    check_joins(part.joins or ())
    return part


class _News:
    """Newest record of each part that has not been yielded yet."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._values: dict[str, bytes | None] = {}  # by key, published longest ago first
        self._bytes = 0

    def __bool__(self) -> bool:
        return bool(self._values)

    def take(self, record: ReceivedMessage) -> None:
        self._drop(record.key)
        self._values[record.key] = record.value
        self._bytes += _size(record.key, record.value)
        while self._bytes > self._limit_bytes:
            self._drop(next(iter(self._values)))

    async def merged(self) -> ProfilesLearnt:
        values, self._values, self._bytes = self._values, {}, 0
        parts: list[ProfilesLearnt] = []
        for n, (name, value) in enumerate(values.items(), start=1):
            try:
                parts.append(read_part(name, value))
            except UNREADABLE as error:
                logger.warning(
                    "%s: the record of %.200r is left out: %s", Topic.PROFILES, name, error
                )
                count_left_out(Topic.PROFILES)
            if n % _DECODED_AT_ONCE == 0:
                await asyncio.sleep(0)
        return _merged(parts)

    def _drop(self, key: str) -> None:
        if key in self._values:
            self._bytes -= _size(key, self._values.pop(key))


def _size(key: str, value: bytes | None) -> int:
    return len(key) + len(value or b"")


def _parts(learnt: ProfilesLearnt) -> Iterator[tuple[Key, ProfilesLearnt | None]]:
    for tenant, app, agent in learnt.forgotten:
        yield ("profile", tenant, app, agent), None
        yield ("rank", tenant, app, agent), None
        if agent == POOLED_AGENT:
            yield ("model", tenant, app), None
    for profile in learnt.profiles:
        yield ("profile", *profile.key), ProfilesLearnt(profiles=(profile,))
    for model in learnt.models:
        yield ("model", model.tenant, model.app), ProfilesLearnt(models=(model,))
    for rank in learnt.ranks:
        yield ("rank", *rank.key), ProfilesLearnt(ranks=(rank,))
    for place in learnt.joins or ():
        value = ProfilesLearnt(joins=(place,)) if place.sightings else None
        yield ("join", *place.key), value
    if learnt.kendall_tau is not None:
        yield ("kendall_tau",), ProfilesLearnt(kendall_tau=learnt.kendall_tau)


def _merged(parts: Sequence[ProfilesLearnt]) -> ProfilesLearnt:
    """Merge parts, no two of the same key, into one fact."""
    joins = tuple(each for part in parts for each in part.joins or ())
    return ProfilesLearnt(
        joins=joins or msgspec.UNSET,
        profiles=tuple(each for part in parts for each in part.profiles),
        models=tuple(each for part in parts for each in part.models),
        ranks=tuple(each for part in parts for each in part.ranks),
        forgotten=tuple(each for part in parts for each in part.forgotten),
        kendall_tau=next((p.kendall_tau for p in parts if p.kendall_tau is not None), None),
    )

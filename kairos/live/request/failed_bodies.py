"""Bodies at which engines failed, by a hash with a key of this process's own.

A client tries again under a new name, so the same call is known by its body only. Bodies are hashed
where they failed, and where one of the same length did a while ago: of all others nothing is asked.
"""

import os
from collections import OrderedDict
from collections.abc import Callable
from hashlib import blake2b

import msgspec

from kairos.events import Arrived, Bounced, Event, Failed
from kairos.faults.attribution import REMEMBERED_US

_KEY_BYTES = 16
_HASH_BYTES = 7  # as a number it fits what JSON readers can tell apart
_MOST_LENGTHS = 4096


class FailedBodies:
    """Their lengths, and the key. Nothing of what they said."""

    def __init__(self) -> None:
        self._key = os.urandom(_KEY_BYTES)
        self._failed_at: OrderedDict[int, int] = OrderedDict()  # by length; the oldest first

    def named(self, event: Event, content: bytes, now: Callable[[], int]) -> Event:
        """A fact of a call with this body: with its hash, where an instance failed at it, or where
        it arrives and one of its length is remembered. Of most calls nobody asks what time it
        is."""
        if type(event) is Arrived:
            body = self._known(content, now()) if self._failed_at else None
            return event if body is None else msgspec.structs.replace(event, body=body)
        if type(event) is Bounced or (type(event) is Failed and event.by_instance):
            return msgspec.structs.replace(event, body=self._failed(content, now()))
        return event

    def _failed(self, content: bytes, at: int) -> int:
        length = len(content)
        self._failed_at[length] = at
        self._failed_at.move_to_end(length)
        if len(self._failed_at) > _MOST_LENGTHS:
            self._failed_at.popitem(last=False)
        return self._hash(content)

    def _known(self, content: bytes, at: int) -> int | None:
        failed_at = self._failed_at.get(len(content))
        if failed_at is None or at - failed_at > REMEMBERED_US:
            return None
        return self._hash(content)

    def _hash(self, content: bytes) -> int:
        hashed = blake2b(content, digest_size=_HASH_BYTES, key=self._key)
        return int.from_bytes(hashed.digest(), "big") >> 3  # 53 bits

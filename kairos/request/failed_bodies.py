"""Bodies at which engines failed, by a hash with a key of this process's own.

A client tries again under a new name, so the same call is known by its body only. Bodies are hashed
where they failed, and where one of the same length did a while ago: of all others nothing is asked.
"""

import os
from collections.abc import Callable
from hashlib import blake2b

import msgspec

from kairos.core.events import Arrived, Bounced, Event, Failed, PrefillFailed
from kairos.core.faults.attribution import REMEMBERED_US
from kairos.core.shared_lru import SharedLru

_KEY_BYTES = 16
_HASH_BYTES = 7  # as a number it fits what JSON readers can tell apart
_MOST_LENGTHS = 4096


class FailedBodies:
    """Their lengths, and the key. Nothing of what they said."""

    def __init__(self) -> None:
        self._key = os.urandom(_KEY_BYTES)
        # By length, whose the last was, and when.
        self._failed: SharedLru[int, tuple[str, int]] = SharedLru(_MOST_LENGTHS)

    def named(self, event: Event, tenant: str, content: bytes, now: Callable[[], int]) -> Event:
        """A fact of a tenant's call with this body: with its hash, where an instance failed at it,
        or where it arrives and one of its length is remembered. Of most calls nobody asks what time
        it is."""
        if type(event) is Arrived:
            body = self._known(content, now()) if self._failed else None
            return event if body is None else msgspec.structs.replace(event, body=body)
        at_instance = type(event) is Bounced or type(event) is PrefillFailed
        if at_instance or (type(event) is Failed and event.by_instance):
            return msgspec.structs.replace(event, body=self._note(tenant, content, now()))
        return event

    def _note(self, tenant: str, content: bytes, at: int) -> int:
        length = len(content)
        before = self._failed.get(length)
        if before is not None:
            self._failed.remove(before[0], length)
        self._failed.put(tenant, length, (tenant, at))
        return self._hash(content)

    def _known(self, content: bytes, at: int) -> int | None:
        failed = self._failed.get(len(content))
        if failed is None or at - failed[1] > REMEMBERED_US:
            return None
        return self._hash(content)

    def _hash(self, content: bytes) -> int:
        hashed = blake2b(content, digest_size=_HASH_BYTES, key=self._key)
        return int.from_bytes(hashed.digest(), "big") >> 3  # 53 bits

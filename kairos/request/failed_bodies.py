"""Bodies of failed calls, by a hash with a key of this process.

A client retries under a new id, so the same call is recognised only by its body. Bodies are hashed
when they fail, and when they arrive with the length of one that failed recently; all others are
not hashed.
"""

import os
from collections.abc import Callable
from hashlib import blake2b

import msgspec

from kairos.core import REMEMBERED_US, Arrived, Bounced, Event, Failed, PrefillFailed, SharedLru

_KEY_BYTES = 16
_HASH_BYTES = 7  # as a number it fits what JSON readers can tell apart
_MOST_LENGTHS = 4096


class FailedBodies:
    """Lengths of failed bodies, and the key. No content is stored."""

    def __init__(self) -> None:
        self._key = os.urandom(_KEY_BYTES)
        # By length, whose the last was, and when.
        self._failed: SharedLru[int, tuple[str, int]] = SharedLru(_MOST_LENGTHS)

    def with_hash(self, event: Event, tenant: str, content: bytes, now: Callable[[], int]) -> Event:
        """Return the fact, with the body's hash where it is needed.

        That is where an instance failed at the body, or where a body of a remembered length
        arrives.
        """
        if type(event) is Arrived:
            body = self._known(content, now()) if self._failed else None
            return event if body is None else msgspec.structs.replace(event, body=body)
        at_instance = type(event) is Bounced or type(event) is PrefillFailed
        if at_instance or (type(event) is Failed and event.by_instance):
            return msgspec.structs.replace(event, body=self._remember(tenant, content, now()))
        return event

    def _remember(self, tenant: str, content: bytes, at: int) -> int:
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

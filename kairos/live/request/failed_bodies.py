"""Bodies at which engines failed, by a hash with a key of this process's own.

A client tries again under a new name, so the same call is known by its body only. Bodies are hashed
where they failed, and where one of the same length did a while ago: of all others nothing is asked.
"""

import os
from collections import OrderedDict
from hashlib import blake2b

from kairos.faults.attribution import REMEMBERED_US

_KEY_BYTES = 16
_HASH_BYTES = 7  # as a number it fits what JSON readers can tell apart
_MOST_LENGTHS = 4096


class FailedBodies:
    """Their lengths, and the key. Nothing of what they said."""

    def __init__(self) -> None:
        self._key = os.urandom(_KEY_BYTES)
        self._failed_at: OrderedDict[int, int] = OrderedDict()  # by length; the oldest first

    def failed(self, content: bytes, at: int) -> int:
        """An engine failed at it. Returns its hash."""
        length = len(content)
        self._failed_at[length] = at
        self._failed_at.move_to_end(length)
        if len(self._failed_at) > _MOST_LENGTHS:
            self._failed_at.popitem(last=False)
        return self._hash(content)

    def known(self, content: bytes, at: int) -> int | None:
        """Its hash, if one of its length failed and is remembered."""
        if not self._failed_at:
            return None
        failed_at = self._failed_at.get(len(content))
        if failed_at is None or at - failed_at > REMEMBERED_US:
            return None
        return self._hash(content)

    def _hash(self, content: bytes) -> int:
        hashed = blake2b(content, digest_size=_HASH_BYTES, key=self._key)
        return int.from_bytes(hashed.digest(), "big") >> 3  # 53 bits

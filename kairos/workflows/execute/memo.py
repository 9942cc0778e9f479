"""LRU cache of results that later rows may share."""

from collections import OrderedDict

import msgspec

_OVERHEAD = 200  # bytes, overhead of an entry


class ResultMemo:
    """Results, bounded in bytes. An evicted result is fetched from the cache, or recomputed."""

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._held = 0
        self._entries: OrderedDict[str, tuple[object, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, signature: str) -> tuple[object] | None:
        """Return a result in a tuple, as it may be null; None: not there."""
        entry = self._entries.get(signature)
        if entry is None:
            return None
        self._entries.move_to_end(signature)
        return (entry[0],)

    def put(self, signature: str, value: object) -> None:
        size = _OVERHEAD + _size(value)
        if size > self._most or signature in self._entries:
            return
        self._entries[signature] = (value, size)
        self._held += size
        while self._held > self._most:
            _, (_, gone) = self._entries.popitem(last=False)
            self._held -= gone


def _size(value: object) -> int:
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return sum(map(len, value))  # usually vectors: large, in characters of one byte
    return len(value) if isinstance(value, str) else len(msgspec.json.encode(value))

"""Journal of decisions, which outlives the process that decided them.

It is two anonymous files in memory, which the supervisor holds and passes to each decider. Written
bytes survive the process, however it dies; nothing is written to disk, and nothing is left once all
processes have ended. When one file is full, the other is truncated and starts with the entries that
still matter (`carried`). So both together have every open call, and all that happened while the
last `SEGMENT_BYTES` were written.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec

from kairos.cluster.decisions.messages import LoggedDecision
from kairos.cluster.workers.link import BrokenFrame, Frames, framed
from kairos.cluster.workers.messages import Engines

SEGMENT_BYTES = 4 << 20  # some 3,000 calls: replaying them takes a second or two
_NUMBER_BYTES = 8
_HEADER_BYTES = 2 * _NUMBER_BYTES  # which file is the newer one, and the bytes that are carried


class Entry(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    decision: LoggedDecision | None = None
    engines: Engines | None = None  # which there are from here on
    numbers: Mapping[str, int] | None = None  # by worker, of its last fact before this


_encode = msgspec.msgpack.Encoder().encode
_entry = msgspec.msgpack.Decoder(Entry)


def create() -> tuple[int, int]:
    return os.memfd_create("kairos-journal-0"), os.memfd_create("kairos-journal-1")


class Journal:
    """Journal on two files: `read` once, then `add` and `write`."""

    def __init__(self, files: Sequence[int], *, segment_bytes: int = SEGMENT_BYTES) -> None:
        self._older, self._newer = sorted(files, key=_generation)
        self._segment_bytes = segment_bytes
        self._written = 0  # to the newer one, beyond what was carried
        self._pending = bytearray()

    def read(self) -> Iterator[Entry]:
        """Yield all entries, oldest first.

        An entry cut short by a crash is skipped and truncated.
        """
        carried_end = _HEADER_BYTES + _number(self._newer, 1)
        if 0 < _size(self._newer) < carried_end:  # the crash came while it was begun
            os.ftruncate(self._newer, 0)
            self._older, self._newer = self._newer, self._older
            carried_end = _HEADER_BYTES + _number(self._newer, 1)
        if not _size(self._newer):
            self._begin(self._newer, 1, ())
            return
        is_whole = _size(self._older) > 0
        yield from _entries(self._older, _HEADER_BYTES)
        yield from _entries(self._newer, carried_end if is_whole else _HEADER_BYTES)
        self._written = _size(self._newer) - carried_end

    def add(self, entry: Entry) -> None:
        self._pending += framed(_encode(entry))

    def write(self, carried: Callable[[], Iterable[Entry]]) -> None:
        """Write the added entries; from here on they survive a crash."""
        if not self._pending:
            return
        _write(self._newer, self._pending)
        self._written += len(self._pending)
        self._pending.clear()
        if self._written > self._segment_bytes:
            generation = _generation(self._newer) + 1
            self._older, self._newer = self._newer, self._older
            self._begin(self._newer, generation, carried())

    def _begin(self, file: int, generation: int, carried: Iterable[Entry]) -> None:
        content = b"".join(framed(_encode(entry)) for entry in carried)
        numbers = (generation, len(content))
        os.ftruncate(file, 0)
        os.lseek(file, 0, os.SEEK_SET)
        _write(file, b"".join(each.to_bytes(_NUMBER_BYTES, "big") for each in numbers) + content)
        self._written = 0


def _number(file: int, index: int) -> int:
    return int.from_bytes(os.pread(file, _NUMBER_BYTES, index * _NUMBER_BYTES), "big")


def _generation(file: int) -> int:
    return _number(file, 0)


def _size(file: int) -> int:
    return os.fstat(file).st_size


def _entries(file: int, start: int) -> Iterator[Entry]:
    content = os.pread(file, _size(file), 0)
    end = min(start, len(content))
    try:
        for payload in Frames().feed(content[start:]):
            yield _entry.decode(payload)
            end += len(framed(payload))
    except (BrokenFrame, ValueError):
        pass  # the writer died while the kernel was copying it
    os.ftruncate(file, end)
    os.lseek(file, 0, os.SEEK_END)


def _write(file: int, content: bytes | bytearray) -> None:
    with memoryview(content) as whole:
        written = 0
        while written < len(whole):
            written += os.write(file, whole[written:])

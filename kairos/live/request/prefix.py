"""Hashes of a prompt's beginnings, by which prompts that begin alike are known.

vLLM finds in its prefix cache what two prompts have in common from their first token on. Kairos has
no tokens, but bytes: one unit is four of them. Marks, and what they are for, are in `model.py`.
A 32-bit hash of two different prompts is the same once in 4 * 10^9 times; then a call is taken for
one that is cached where it is not, which costs no more than that. Gateways of one pool must agree
on the hashes, so they have no key; SHA-256 is what processors have instructions for. By `hashlib` a
digest on the way costs more than the bytes between two marks, so `reading.c` does it where it can.
Ours.
"""

import ctypes
from bisect import bisect_right
from hashlib import sha256
from struct import Struct

from kairos.live.request.native import READING, Reading
from kairos.model import PREFIX_MARKS

UNIT_BYTES = 4
_ENDS = tuple(mark * UNIT_BYTES for mark in PREFIX_MARKS)
_ENDS_IN_C = (ctypes.c_int64 * len(_ENDS))(*_ENDS)
_ENDS_AT = ctypes.addressof(_ENDS_IN_C)
_Marks = ctypes.c_uint32 * len(_ENDS)
_UNPACK = [Struct(f"={count}I").unpack_from for count in range(len(_ENDS) + 1)]
_COMPILED = READING if READING is not None and READING.has_sha256 else None


def read_prompt(
    prompt: bytes, apart: bytes, compiled: Reading | None = _COMPILED
) -> tuple[tuple[int, ...], bool]:
    """One hash for each mark within the prompt; what is beyond the last mark (4 MiB) is not hashed.
    And whether it is worth it to look for images or sound in it.

    Args:
        prompt: in the order in which the engine reads it.
        apart: what must be the same, too, for two prompts to share anything; no part of either.
    """
    size = len(prompt)
    count = bisect_right(_ENDS, size)
    if compiled is None:
        return _hashed(prompt, apart, count), may_have_media(prompt)
    hashes = _Marks()
    to = ctypes.addressof(hashes)
    has_media = compiled.prefix(apart, len(apart), prompt, size, _ENDS_AT, count, to)
    return _UNPACK[count](hashes), bool(has_media)


def may_have_media(text: bytes) -> bool:
    return b";base64," in text or b'"data"' in text


def _hashed(prompt: bytes, apart: bytes, count: int) -> tuple[int, ...]:
    running = sha256(apart)
    view = memoryview(prompt)
    hashes: list[int] = []
    start = 0
    for end in _ENDS[:count]:
        running.update(view[start:end])
        hashes.append(int.from_bytes(running.digest()[:4]))  # a digest does not end the hash
        start = end
    return tuple(hashes)

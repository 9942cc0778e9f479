"""Hashes of a prompt's beginnings, by which prompts that begin alike are known.

vLLM finds in its prefix cache what two prompts have in common from their first token on. Kairos has
no tokens, but bytes: one unit is four of them. Marks, and what they are for, are in `model.py`.
A 32-bit hash of two different prompts is the same once in 4 * 10^9 times; then a call is taken for
one that is cached where it is not, which costs no more than that. Ours.
"""

from bisect import bisect_right
from hashlib import blake2b

from kairos.model import PREFIX_MARKS

Buffer = bytes | memoryview

UNIT_BYTES = 4
_ENDS = tuple(mark * UNIT_BYTES for mark in PREFIX_MARKS)


def hash_prefix(prompt: Buffer, apart: bytes) -> tuple[int, ...]:
    """One hash for each mark within the prompt; what is beyond the last mark (4 MiB) is not read.

    Args:
        prompt: in the order in which the engine reads it.
        apart: what must be the same, too, for two prompts to share anything; no part of either.
    """
    running = blake2b(apart, digest_size=4)
    view = memoryview(prompt)
    hashes: list[int] = []
    start = 0
    for end in _ENDS[: bisect_right(_ENDS, len(prompt))]:
        running.update(view[start:end])
        hashes.append(int.from_bytes(running.digest()))  # a digest does not end the hash
        start = end
    return tuple(hashes)

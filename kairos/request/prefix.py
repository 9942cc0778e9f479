"""Hashes of a prompt's beginnings, by which prompts that begin alike are known.

vLLM finds in its prefix cache what two prompts have in common from their first token on. Kairos has
no tokens, but bytes: one unit is four of them. Marks, and what they are for, are in `model.py`.
A 32-bit hash of two different prompts is the same once in 4 * 10^9 times; then a call is taken for
one that is cached where it is not, which costs no more than that. Gateways of one pool must agree
on the hashes, so they have no key; SHA-256 is what processors have instructions for.
Ours.
"""

from bisect import bisect_right
from hashlib import sha256

from kairos.core.model import PREFIX_MARKS

UNIT_BYTES = 4
_ENDS = tuple(mark * UNIT_BYTES for mark in PREFIX_MARKS)


def hash_prefix(prompt: bytes, apart: bytes) -> tuple[int, ...]:
    """One hash for each mark within the prompt; what is beyond the last mark (4 MiB) is not hashed.

    Args:
        prompt: in the order in which the engine reads it.
        apart: what must be the same, too, for two prompts to share anything; no part of either.
    """
    running = sha256(apart)
    view = memoryview(prompt)
    hashes: list[int] = []
    start = 0
    for end in _ENDS[: bisect_right(_ENDS, len(prompt))]:
        running.update(view[start:end])
        hashes.append(int.from_bytes(running.digest()[:4]))  # a digest does not end the hash
        start = end
    return tuple(hashes)

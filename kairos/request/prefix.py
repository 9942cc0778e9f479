"""Hashes of a prompt's prefixes, by which prompts with a common prefix are recognised.

vLLM's prefix cache covers what two prompts share from their first token on. Kairos has no tokens,
but bytes: one unit is four of them. Marks and their purpose are documented in `model.py`.

32-bit hashes of two different prompts collide once in 4 * 10^9 times; then a call is considered
cached where it is not, which only costs performance. Gateways of one pool must compute the same
hashes, so they have no key; SHA-256 is accelerated by processors. Not in the paper.
"""

from bisect import bisect_right
from hashlib import sha256

from kairos.core import PREFIX_MARKS

UNIT_BYTES = 4
_ENDS = tuple(mark * UNIT_BYTES for mark in PREFIX_MARKS)


def hash_prefix(prompt: bytes, apart: bytes) -> tuple[int, ...]:
    """Return a hash for each mark within the prompt; the part beyond the last (4 MiB) is ignored.

    Args:
        prompt: The prompt, in the order in which the engine reads it.
        apart: What else must be equal for two prompts to share a cache; not part of the prompt.
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

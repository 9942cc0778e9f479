"""Hash of a text, used as chance that is the same in every run."""

from hashlib import blake2b


def text_digest(text: str) -> int:
    """Return a hash from 0 to 2**64 - 1, evenly distributed."""
    return int.from_bytes(blake2b(text.encode("utf-8", "replace"), digest_size=8).digest())

"""Encoding of ascending offsets as short text: deltas in LEB128 (7 bits a byte), then base64."""

import base64
import binascii
from collections.abc import Iterable

from kairos.core import InvalidRequest

_LIMIT = 1 << 62  # of a distance


def write_offsets(base: int, offsets: Iterable[int]) -> str:
    """Encode offsets that ascend from above `base`."""
    data = bytearray()
    for offset in offsets:
        rest, base = offset - base, offset
        while rest > 0x7F:
            data.append(rest & 0x7F | 0x80)
            rest >>= 7
        data.append(rest)
    return base64.b64encode(data).decode()


def read_offsets(base: int, text: str, limit: int) -> list[int]:
    """Decode what `write_offsets` wrote: at least one offset, at most `limit`.

    Raises:
        InvalidRequest: The text is malformed.
    """
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidRequest(f"the metadata of a committed offset is damaged: {error}") from None
    offsets: list[int] = []
    step, shift = 0, 0
    for byte in data:
        step |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            if byte == 0 or step >= _LIMIT or len(offsets) >= limit:
                break
            base += step
            offsets.append(base)
            step = shift = 0
    else:
        if shift == 0 and offsets:
            return offsets
    raise InvalidRequest("the metadata of a committed offset is damaged: malformed list of offsets")

"""Writes GGUF, the files that llama.cpp reads: version 3, little-endian, float32 tensors.

https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

_MAGIC, _VERSION, _ALIGNED = b"GGUF", 3, 32
_UINT32, _INT32, _FLOAT32, _BOOL, _STRING, _ARRAY = 4, 5, 6, 7, 8, 9
_F32 = 0  # of a tensor

Value = bool | int | float | str | Sequence[str] | Sequence[int]


def write_gguf(
    path: Path, metadata: Mapping[str, Value], tensors: Mapping[str, np.ndarray]
) -> None:
    """Integers are of 32 bits: those alone without, those of lists with a sign. Tensors have their
    rows as numpy has them."""
    head = [_MAGIC, struct.pack("<IQQ", _VERSION, len(tensors), len(metadata))]
    for key, value in metadata.items():
        head += [_string(key), _value(value)]
    at = 0
    for name, tensor in tensors.items():
        shape = tensor.shape[::-1]
        head += [
            _string(name),
            struct.pack(f"<I{len(shape)}Q", len(shape), *shape),
            struct.pack("<IQ", _F32, at),
        ]
        at += _padded(4 * tensor.size)
    written = b"".join(head)
    with path.open("wb") as file:
        file.write(written.ljust(_padded(len(written)), b"\0"))
        for tensor in tensors.values():
            content = tensor.astype("<f4").tobytes()
            file.write(content.ljust(_padded(len(content)), b"\0"))


def _value(value: Value) -> bytes:
    match value:
        case bool():
            return struct.pack("<I?", _BOOL, value)
        case int():
            return struct.pack("<II", _UINT32, value)
        case float():
            return struct.pack("<If", _FLOAT32, value)
        case str():
            return struct.pack("<I", _STRING) + _string(value)
    return struct.pack("<I", _ARRAY) + _array(value)


def _array(values: Sequence[str] | Sequence[int]) -> bytes:
    of = _STRING if isinstance(values[0], str) else _INT32
    each: Iterable[bytes] = (
        _string(one) if isinstance(one, str) else struct.pack("<i", one) for one in values
    )
    return struct.pack("<IQ", of, len(values)) + b"".join(each)


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _padded(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED

"""Vectors as values of flows, which are texts, and as arrays (`workflows/compile/retrieval.py`)."""

import binascii
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from kairos.core import InvalidRequest

Matrix = npt.NDArray[np.float32]  # a row for each vector


def matrix_of(vectors: Sequence[str]) -> Matrix:
    """Return vectors as an array. Raises InvalidRequest: one is not valid, or lengths differ."""
    if not vectors:
        return np.empty((0, 0), np.float32)
    rows = [_bytes_of(each) for each in vectors]
    if len({len(row) for row in rows}) > 1:
        raise InvalidRequest("vectors differ in length: were they made by several models?")
    matrix: Matrix = np.frombuffer(b"".join(rows), "<f4").reshape(len(rows), -1)
    if not np.isfinite(matrix).all():
        raise InvalidRequest("a vector has an infinite number or NaN")
    return matrix


def text_of(numbers: Sequence[float] | npt.NDArray[np.float32]) -> str:
    return binascii.b2a_base64(np.asarray(numbers, "<f4").tobytes(), newline=False).decode()


def _bytes_of(vector: str) -> bytes:
    try:
        raw = binascii.a2b_base64(vector, strict_mode=True)
    except ValueError:
        raise InvalidRequest("a vector is not base64: was it made by embed?") from None
    if not raw or len(raw) % 4:
        raise InvalidRequest(f"a vector has {len(raw)} bytes, and must have four for each number")
    return raw

"""Vectors of flows, as texts and as arrays, and their exact search by cosines.

Their form is that of `workflows/compile/retrieval.py`. Scores are rounded: the last digits of a
sum depend on how many vectors are multiplied at once, and so on how the work was split.
"""

import binascii
from collections.abc import Iterable, Mapping, Sequence

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


DIGITS = 6  # of a score
_COSINES = 1 << 20  # computed at once

Scored = dict[str, object]  # a passage with its `text` and `score`


def search(
    parts: Sequence[Mapping[str, Sequence[str]]], vectors: Sequence[str], top_k: int
) -> list[Scored]:
    """Return the best passages in the parts of a collection, for any of some vectors.

    Raises:
        InvalidRequest: a vector is not valid, or the collection has another vector length.
    """
    texts = [text for part in parts for text in part["texts"]]
    held = matrix_of([vector for part in parts for vector in part["vectors"]])
    sought = matrix_of(vectors)
    if not len(held) or not len(sought):
        return []
    check_length(sought.shape[1], held.shape[1])
    return best_of(zip(texts, _nearness(held, sought).tolist(), strict=True), top_k)


def _nearness(held: Matrix, sought: Matrix) -> npt.NDArray[np.float64]:
    """Return for each held vector its highest cosine with a query vector."""
    of, nearest = normalised(held), np.full(len(held), -np.inf)
    at_once = max(1, _COSINES // len(held))
    for begin in range(0, len(sought), at_once):
        cosines = of @ normalised(sought[begin : begin + at_once]).T
        np.maximum(nearest, cosines.max(axis=1), out=nearest)
    return nearest


def best_of(found: Iterable[tuple[str, float]], top_k: int) -> list[Scored]:
    """Return the texts with the highest scores, each text once.

    Equal scores are ordered by text, so that the order of `found` makes no difference.
    """
    scores: dict[str, float] = {}
    for text, score in found:
        rounded = round(score, DIGITS) + 0.0  # no -0.0
        scores[text] = max(rounded, scores.get(text, rounded))
    ranked = sorted(scores.items(), key=lambda each: (-each[1], each[0]))
    return [{"text": text, "score": score} for text, score in ranked[:top_k]]


def check_length(sought: int, held: int) -> None:
    """Raise InvalidRequest if query vectors have another length than the collection's."""
    if sought != held:
        raise InvalidRequest(
            f"the query vector has {sought} numbers, the collection's have {held}: embed passages "
            "and queries with the same model"
        )


def normalised(vectors: Matrix) -> npt.NDArray[np.float64]:
    """Return vectors scaled to length 1; a vector of zeros stays as it is."""
    wide = vectors.astype(np.float64)
    lengths = np.linalg.norm(wide, axis=1, keepdims=True)
    result: npt.NDArray[np.float64] = wide / np.where(lengths, lengths, 1.0)
    return result

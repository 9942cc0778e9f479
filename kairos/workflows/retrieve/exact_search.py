"""Exact search of a row's own collection, by cosines of vectors.

Scores are rounded: the last digits of a sum depend on how many vectors are multiplied at once, and
so on how the work was split.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from kairos.core import InvalidRequest
from kairos.workflows.retrieve.vectors import Matrix, matrix_of

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

"""Made-up results of processors for a flow: a function of the arguments only.

A vector has eight numbers, by a hash of its text; passages are ranked by one of them and the query.
A row's own collection is really searched; a stored one has made-up passages.
"""

from array import array
from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any

from kairos.core import text_digest

DIMENSIONS = 8


def processed(kind: str, asked: Mapping[str, Any]) -> object:
    """Return the result for the arguments of a `RunProcessor` of this kind."""
    if kind == "embed":
        texts = asked["texts"]
        return vector(texts) if isinstance(texts, str) else [vector(each) for each in texts]
    if kind == "ingest":
        return _ingested(asked)
    if kind == "search":
        return _found(asked)
    query, passages = asked["query"], _texts(asked["passages"])
    return _best({each: _share(f"{query} {each}") for each in passages}, asked["top_k"])


def vector(text: str) -> str:
    numbers = (2 * _share(f"{at} {text}") - 1 for at in range(DIMENSIONS))
    return b64encode(array("f", numbers).tobytes()).decode()


def _ingested(asked: Mapping[str, Any]) -> object:
    texts, vectors = asked["texts"], asked["vectors"]
    pairs = ([texts], [vectors]) if isinstance(texts, str) else (texts, vectors)
    if "collection" in asked:
        return {"collection": asked["collection"], "count": len(pairs[0])}
    return {"texts": pairs[0], "vectors": pairs[1]}


def _found(asked: Mapping[str, Any]) -> list[object]:
    vectors = asked["vectors"]
    queries = [_numbers(each) for each in ([vectors] if isinstance(vectors, str) else vectors)]
    collection = asked["collection"]
    parts = collection if isinstance(collection, list) else [collection]
    if isinstance(collection, str):
        texts = [f"passage {number} of {collection}" for number in range(100)]
        parts = [{"texts": texts, "vectors": list(map(vector, texts))}]
    scores: dict[str, float] = {}
    for part in parts:
        for text, there in zip(part["texts"], part["vectors"], strict=True):
            numbers = _numbers(there)
            near = max(sum(map(float.__mul__, each, numbers)) for each in queries)
            scores[text] = max(near, scores.get(text, near))
    return _best(scores, asked["top_k"])


def _best(scores: Mapping[str, float], top_k: int) -> list[object]:
    best = sorted(scores.items(), key=lambda each: (-each[1], each[0]))[:top_k]
    return [{"text": text, "score": score} for text, score in best]


def _texts(passages: list[Any]) -> list[str]:
    return [each["text"] if isinstance(each, Mapping) else each for each in passages]


def _numbers(text: str) -> list[float]:
    return array("f", b64decode(text)).tolist()


def _share(name: str) -> float:
    return text_digest(name) / 2**64

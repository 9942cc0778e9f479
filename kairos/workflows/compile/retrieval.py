"""Values of retrieval: texts, vectors, collections, passages with scores.

All are JSON. A *vector* is text: base64 of its numbers as little-endian float32, as OpenAI's
`encoding_format="base64"`; so it takes 16 bytes for three numbers, and is the same wherever it is
stored. A *collection of a row* is an object of `texts` and `vectors`; a *scored passage* one of
`text` and `score`. Vectors and collections of a row that stay with a processor are replaced by a
text (`workflows/compile/held.py`). Texts are cut into passages of a number of words.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from typing import Any

from kairos.workflows.compile.held import held_id
from kairos.workflows.compile.invalid import OperatorFailed
from kairos.workflows.compile.operators import (
    MOST_ITEMS,
    Aggregate,
    Chunking,
    Embedding,
    Ingest,
    Params,
    Processing,
    Rerank,
    Search,
    batch_size,
)
from kairos.workflows.compile.values import type_name

MOST_CHARACTERS = 16 << 20  # of all texts of one operator
MOST_VECTOR_CHARACTERS = 64 << 20  # of its vectors
MOST_DIMENSIONS = 65_536


def arguments_of(params: Params) -> tuple[str, ...]:
    """Return the names that an operator's inputs must have, if its kind fixes them."""
    match params:
        case Chunking():
            return ("text",)
        case Aggregate():
            return ("parts",)
        case Embedding():
            return ("texts",)
        case Ingest():
            return ("texts", "vectors")
        case Search(collection=None):
            return ("vectors", "collection")
        case Search():
            return ("vectors",)
        case Rerank():
            return ("query", "passages")
    return ()


def settings(params: Processing) -> dict[str, object]:
    """Return the settings for a processor, in addition to the arguments and the model."""
    match params:
        case Embedding():
            return {"batch": batch_size(params)}
        case Rerank(top_k=top_k):
            return {"top_k": top_k, "batch": batch_size(params)}
        case Search(top_k=top_k, collection=None):
            return {"top_k": top_k}
        case Search(top_k=top_k, collection=name):
            return {"top_k": top_k, "collection": name}
        case Ingest(collection=None):
            return {}
        case Ingest(collection=name):
            return {"collection": name}


def is_passing(params: Params) -> bool:
    """Return whether its values are large and only searched: vectors, a row's collection."""
    is_of_row = isinstance(params, Ingest) and params.collection is None
    return is_of_row or isinstance(params, Embedding)


def vectors_bytes(value: object) -> int:
    """Return the approximate memory of an embedding's value."""
    vectors = value if isinstance(value, list) else [value]
    return sum(len(each) for each in vectors if isinstance(each, str))


def chunked(params: Chunking, text: object) -> list[str]:
    """Return the passages of texts.

    Raises OperatorFailed: the value is neither a text nor a list of texts, or has too many
    passages.
    """
    found: list[str] = []
    characters = 0
    for each in _texts("text", text):
        for passage in passages(each, params.size, params.overlap):
            found.append(passage)
            characters += len(passage)
            if len(found) > MOST_ITEMS:
                raise OperatorFailed(
                    f"it gives more than {MOST_ITEMS} passages: make `size` larger"
                )
            if characters > MOST_CHARACTERS:
                raise OperatorFailed(
                    f"its passages have more than {MOST_CHARACTERS} characters together: make "
                    "`overlap` smaller"
                )
    return found


def aggregated(parts: object) -> object:
    """Join the parts of a collection of this row, or the counts of a named one."""
    if isinstance(parts, list) and all(map(_is_count, parts)) and parts:
        return {"collection": parts[0]["collection"], "count": sum(e["count"] for e in parts)}
    found = _parts(parts)
    if len(found) == 1:
        return found[0]
    if any(held_id(each) for each in found):
        return found  # searches accept parts, too
    return {key: [each for one in found for each in one[key]] for key in ("texts", "vectors")}


def _is_count(part: object) -> bool:
    return isinstance(part, Mapping) and part.keys() == {"collection", "count"}


def flat_parts(arguments: Mapping[str, object]) -> Mapping[str, object]:
    """Return the arguments of a search, with nested parts of collections flattened.

    Collections of a row may have held parts (see `aggregated`).
    """
    collection = arguments["collection"]
    if not isinstance(collection, list) or not any(map(_are_held, collection)):
        return arguments
    nested = (each if _are_held(each) else (each,) for each in collection)
    return {**arguments, "collection": [part for parts in nested for part in parts]}


def _are_held(parts: object) -> bool:
    return isinstance(parts, list) and any(held_id(each) for each in parts)


def check_arguments(params: Processing, arguments: Mapping[str, object]) -> None:
    """Raise OperatorFailed if an argument does not fit the kind."""
    match params:
        case Embedding():
            _texts("texts", arguments["texts"])
        case Ingest():
            _pairs(arguments)
        case Search():
            _vectors("vectors", arguments["vectors"])
            if params.collection is None:
                _parts(arguments["collection"])
        case Rerank():
            if not isinstance(arguments["query"], str):
                raise OperatorFailed(f"`query` is a {type_name(arguments['query'])}, not a text")
            _texts("passages", _texts_within(arguments["passages"]))


def without_asking(params: Processing, arguments: Mapping[str, object]) -> list[object] | None:
    """Return the value of a call that has nothing to do, without calling; None: it must be made.

    There is nothing to embed, search for, search in or rank. The arguments must be checked.
    """
    match params:
        case Embedding():
            return [] if arguments["texts"] == [] else None
        case Search(collection=None):
            parts = _parts_of(arguments["collection"])
            texts = any(held_id(each) or each["texts"] for each in parts)
            return None if texts and arguments["vectors"] != [] else []
        case Search():
            return [] if arguments["vectors"] == [] else None
        case Rerank():
            return [] if arguments["passages"] == [] else None
    return None


def check_answer(params: Processing, arguments: Mapping[str, object], answer: object) -> None:
    """Raise OperatorFailed if a processor's answer does not fit the request."""
    match params:
        case Embedding():
            texts = arguments["texts"]
            if isinstance(answer, str) != isinstance(texts, str):
                raise OperatorFailed("a text has one vector, a list of texts a list of vectors")
            found = _vectors("the answer", answer)
            if isinstance(texts, list) and len(found) != len(texts):
                raise OperatorFailed(f"there are {len(found)} vectors of {len(texts)} texts")
        case Ingest():
            if not isinstance(answer, Mapping):
                raise OperatorFailed(f"a collection is a {type_name(answer)}, not an object")
            if params.collection is None:
                _pairs(answer)
        case Search() | Rerank():
            _check_scored(answer, params.top_k)


def _texts(name: str, value: object) -> Sequence[str]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list):
        raise OperatorFailed(f"`{name}` is a {type_name(value)}, not a text or a list of texts")
    if len(texts) > MOST_ITEMS:
        raise OperatorFailed(f"`{name}` has {len(texts)} texts, {MOST_ITEMS} at most")
    for each in texts:
        if not isinstance(each, str):
            raise OperatorFailed(f"`{name}` has a {type_name(each)} in it, which is not a text")
    if sum(map(len, texts)) > MOST_CHARACTERS:
        raise OperatorFailed(f"`{name}` has more than {MOST_CHARACTERS} characters")
    return texts


def _texts_within(passages: object) -> object:
    """Return the texts of passages, which may be objects with a `text`."""
    if not isinstance(passages, list):
        return passages
    return [each.get("text") if isinstance(each, Mapping) else each for each in passages]


def _vectors(name: str, value: object) -> Sequence[str]:
    """Return vectors, checked by their lengths; their numbers are checked where they are used."""
    vectors = [value] if isinstance(value, str) else value
    if not isinstance(vectors, list) or not all(isinstance(each, str) for each in vectors):
        raise OperatorFailed(f"`{name}`: a vector is a text, as embed gives it, or a list of such")
    lengths = {len(each) for each in vectors if held_id(each) is None}
    if len(lengths) > 1:
        raise OperatorFailed(f"`{name}` has vectors of different lengths: of several models?")
    if len(vectors) > MOST_ITEMS or sum(lengths) * len(vectors) > MOST_VECTOR_CHARACTERS:
        raise OperatorFailed(
            f"`{name}` has {len(vectors)} vectors: {MOST_ITEMS}, and {MOST_VECTOR_CHARACTERS} "
            "characters of base64, at most"
        )
    if lengths and not 8 <= lengths.pop() <= MOST_DIMENSIONS * 6:
        raise OperatorFailed(f"`{name}`: a vector has 1 to {MOST_DIMENSIONS} numbers")
    return vectors


def _pairs(value: Mapping[str, object]) -> None:
    texts = _texts("texts", value.get("texts"))
    if held_id(value.get("vectors")):
        return  # checked by the processor that holds them
    vectors = _vectors("vectors", value.get("vectors"))
    if len(texts) != len(vectors):
        raise OperatorFailed(f"there are {len(texts)} texts and {len(vectors)} vectors")


def _parts_of(collection: Any) -> list[Any]:
    """Return the parts of a row's collection: itself, or its list of parts."""
    return collection if isinstance(collection, list) else [collection]


def _parts(collection: object) -> Sequence[Any]:
    """Return the parts of a row's collection, checked. Raises OperatorFailed: it is not one."""
    parts = _parts_of(collection)
    if len(parts) > MOST_ITEMS:
        raise OperatorFailed(f"`collection` has {len(parts)} parts, {MOST_ITEMS} at most")
    for each in parts:
        if held_id(each):
            continue
        if not isinstance(each, Mapping):
            raise OperatorFailed(
                f"`collection` is a {type_name(collection)}, not what ingest gives, or a list of it"
            )
        _pairs(each)
    return parts


def _check_scored(answer: object, top_k: int) -> None:
    if not isinstance(answer, list):
        raise OperatorFailed(f"the answer is a {type_name(answer)}, not a list of passages")
    if len(answer) > top_k:
        raise OperatorFailed(f"the answer has {len(answer)} passages, {top_k} at most were asked")
    for each in answer:
        text = each.get("text") if isinstance(each, Mapping) else None
        score = each.get("score") if isinstance(each, Mapping) else None
        if not isinstance(text, str) or not _is_finite(score):
            raise OperatorFailed("a passage of the answer is not an object of `text` and `score`")


def _is_finite(score: object) -> bool:
    """Return whether it is a number that a float can hold: others cannot be compared or written."""
    try:
        return isinstance(score, int | float) and isfinite(score)
    except OverflowError:
        return False


# A run of characters without spaces counts as several words: texts of languages without spaces,
# too. None of the patterns backtracks, so they take time linear in the text.
_PASSAGE_WORD = r"\S{1,64}+"
_NOT_SPACE = re.compile(r"\S")


def passages(text: str, size: int, overlap: int) -> Iterator[str]:
    """Yield the passages as they stand in the text, from first to last word.

    `overlap`: words at the end of one passage with which the next begins, fewer than `size`. Every
    word is in a passage; the last one may be shorter, and has at least one word that is in no
    earlier one. Memory does not grow with the text.
    """
    passage = re.compile(rf"{_PASSAGE_WORD}(?:\s*+{_PASSAGE_WORD}){{0,{size - 1}}}+")
    step = re.compile(rf"(?:{_PASSAGE_WORD}\s*+){{{size - overlap}}}")
    found = passage.search(text)
    while found is not None:
        yield found[0]
        if _NOT_SPACE.search(text, found.end()) is None:
            return
        stepped = step.match(text, found.start())
        assert stepped is not None, "a passage that is not the last has as many words"
        found = passage.match(text, stepped.end())

"""Embed texts at an engine that serves OpenAI's `/v1/embeddings`."""

from collections.abc import Sequence

import msgspec

from kairos.core import InvalidRequest, UpstreamFailed
from kairos.workflows.retrieve.asked_engine import AskedEngine
from kairos.workflows.retrieve.vectors import matrix_of, text_of


class _Embedded(msgspec.Struct):
    index: int
    embedding: str | list[float]  # base64, as requested; some engines send only numbers


class _Embeddings(msgspec.Struct):
    data: list[_Embedded]


async def ask_vectors(engine: AskedEngine, model: str | None, texts: Sequence[str]) -> list[str]:
    """Return the vector of each text.

    Raises:
        Unavailable: a retry makes sense.
        KairosError: a retry makes no sense.
    """
    answer = await engine.ask("/embeddings", model, {"input": texts, "encoding_format": "base64"})
    try:
        return read_vectors(answer, len(texts))
    except (msgspec.ValidationError, InvalidRequest) as error:
        raise UpstreamFailed(
            f"{engine.base_url}/embeddings returned no valid vectors: {error}"
        ) from None


def read_vectors(answer: object, texts: int) -> list[str]:
    """Return the vectors in an engine's answer.

    Raises:
        msgspec.ValidationError: the answer has another form.
        InvalidRequest: a text has no vector, or not a valid one.
    """
    data = sorted(msgspec.convert(answer, _Embeddings).data, key=lambda each: each.index)
    if [each.index for each in data] != list(range(texts)):
        raise InvalidRequest(f"{len(data)} vectors for {texts} texts, or with wrong indices")
    vectors = [
        each.embedding if isinstance(each.embedding, str) else text_of(each.embedding)
        for each in data
    ]
    matrix_of(vectors)
    return vectors

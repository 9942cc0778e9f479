"""Texts to vectors, by an engine that serves OpenAI's `/v1/embeddings`."""

from collections.abc import Sequence

import msgspec

from kairos.core.errors import InvalidRequest, UpstreamFailed
from kairos.workflows.retrieve.asked_engine import AskedEngine
from kairos.workflows.retrieve.vectors import matrix_of, text_of


class _Embedded(msgspec.Struct):
    index: int
    embedding: str | list[float]  # base64, as is asked for; some engines know numbers only


class _Embeddings(msgspec.Struct):
    data: list[_Embedded]


async def ask_vectors(engine: AskedEngine, model: str | None, texts: Sequence[str]) -> list[str]:
    """The vector of each text.

    Raises:
        Unavailable: trying again makes sense.
        KairosError: it does not.
    """
    answer = await engine.ask("/embeddings", model, {"input": texts, "encoding_format": "base64"})
    try:
        return read_vectors(answer, len(texts))
    except (msgspec.ValidationError, InvalidRequest) as error:
        raise UpstreamFailed(f"{engine.base_url}/embeddings gave no vectors: {error}") from None


def read_vectors(answer: object, texts: int) -> list[str]:
    """Of an engine's answer.

    Raises:
        msgspec.ValidationError: it has another form.
        InvalidRequest: there is not one for each text, or one is none.
    """
    data = sorted(msgspec.convert(answer, _Embeddings).data, key=lambda each: each.index)
    if [each.index for each in data] != list(range(texts)):
        raise InvalidRequest(f"there are {len(data)} for {texts} texts, or with other indices")
    vectors = [
        each.embedding if isinstance(each.embedding, str) else text_of(each.embedding)
        for each in data
    ]
    matrix_of(vectors)
    return vectors

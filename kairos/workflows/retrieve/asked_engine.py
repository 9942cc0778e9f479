"""HTTP client of an engine that embeds or ranks: vLLM, llama.cpp and others.

Texts are embedded by OpenAI's `/v1/embeddings`, passages scored for a query by `/v1/rerank`.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from itertools import groupby
from math import isfinite
from typing import Any

import aiohttp
import msgspec

from kairos.core import InvalidRequest, KairosError, Unavailable, UpstreamFailed
from kairos.proxy import ask_json, ask_models
from kairos.workflows.retrieve.vectors import matrix_of, text_of

_LOOK_S = 10


class AskedEngine:
    """Engine that embeds or ranks. `models`: the ones it offers; None: it does not list them."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        base_url: str,
        headers: Mapping[str, str],
        room: asyncio.Semaphore | None = None,
    ) -> None:
        """Set up the client; it sends nothing yet.

        Args:
            session: for all requests.
            base_url: with `/v1`.
            headers: of every call.
            room: limits the concurrent requests of this and other engines; None: no limit.
        """
        self._session, self._headers = session, headers
        self._room: AbstractAsyncContextManager[object] = room or nullcontext()
        self.base_url = base_url
        self.models: list[str] | None = None

    async def look(self) -> None:
        """Ask which models it offers.

        Raises:
            Unavailable: it cannot be reached, or it refuses for now.
        """
        try:
            async with asyncio.timeout(_LOOK_S):
                self.models = await ask_models(self._session, self.base_url, self._headers)
        except TimeoutError:
            raise Unavailable(f"{self.base_url} has not answered in {_LOOK_S} s") from None
        except Unavailable:
            raise
        except KairosError:  # it is there, and has no such route
            self.models = None

    def serves(self, model: str | None) -> bool:
        """Return whether it serves a model, as far as known."""
        return model is None or self.models is None or model in self.models

    async def ask(self, path: str, model: str | None, body: dict[str, Any]) -> dict[str, Any]:
        """Send a request.

        Raises:
            Unavailable: a retry makes sense.
            KairosError: a retry makes no sense.
        """
        named = body if model is None else {**body, "model": model}
        data = msgspec.json.encode(named)
        async with self._room:
            return await ask_json(self._session, "POST", self.base_url + path, data, self._headers)


class _Embedded(msgspec.Struct):
    index: int
    embedding: str | list[float]  # base64, as requested; some engines send only numbers


class _Embeddings(msgspec.Struct):
    data: list[_Embedded]


async def ask_vectors(engine: AskedEngine, model: str | None, texts: Sequence[str]) -> list[str]:
    """Return the vector of each text. Raises: as `AskedEngine.ask`."""
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


Pair = tuple[str, str]  # a query, and a passage


class _Ranked(msgspec.Struct):
    index: int
    relevance_score: float


class _Ranking(msgspec.Struct):
    results: list[_Ranked]


async def ask_scores(engine: AskedEngine, model: str | None, pairs: Sequence[Pair]) -> list[float]:
    """Return the score of each pair. Engines take one query at a time: there is a call for each.

    Raises: as `AskedEngine.ask`.
    """
    calls = [
        _ask_ranking(engine, model, query, [passage for _, passage in of_query])
        for query, of_query in groupby(pairs, key=lambda pair: pair[0])
    ]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    scores: list[float] = []
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
        scores += answer
    return scores


async def _ask_ranking(
    engine: AskedEngine, model: str | None, query: str, passages: list[str]
) -> list[float]:
    body = {"query": query, "documents": passages, "top_n": len(passages)}
    answer = await engine.ask("/rerank", model, body)
    try:
        return read_scores(answer, len(passages))
    except ValueError as error:
        raise UpstreamFailed(
            f"{engine.base_url}/rerank returned no valid scores: {error}"
        ) from None


def read_scores(answer: object, passages: int) -> list[float]:
    """Return the scores in an engine's answer, in the order of the passages.

    Raises:
        msgspec.ValidationError: the answer has another form.
        ValueError: a passage has no score, or not a finite one.
    """
    results = sorted(msgspec.convert(answer, _Ranking).results, key=lambda each: each.index)
    if [each.index for each in results] != list(range(passages)):
        raise ValueError(f"{len(results)} scores for {passages} passages, or with wrong indices")
    scores = [each.relevance_score for each in results]
    if not all(map(isfinite, scores)):
        raise ValueError("a score is infinite or NaN")
    return scores

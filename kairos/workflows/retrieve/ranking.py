"""Score passages for a query at an engine that serves `/v1/rerank`: vLLM, llama.cpp."""

import asyncio
from collections.abc import Sequence
from itertools import groupby
from math import isfinite

import msgspec

from kairos.core import UpstreamFailed
from kairos.workflows.retrieve.asked_engine import AskedEngine

Pair = tuple[str, str]  # a query, and a passage


class _Ranked(msgspec.Struct):
    index: int
    relevance_score: float


class _Ranking(msgspec.Struct):
    results: list[_Ranked]


async def ask_scores(engine: AskedEngine, model: str | None, pairs: Sequence[Pair]) -> list[float]:
    """Return the score of each pair. Engines take one query at a time: there is a call for each.

    Raises:
        Unavailable: a retry makes sense.
        KairosError: a retry makes no sense.
    """
    calls = [
        _ask(engine, model, query, [passage for _, passage in of_query])
        for query, of_query in groupby(pairs, key=lambda pair: pair[0])
    ]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    scores: list[float] = []
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
        scores += answer
    return scores


async def _ask(
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

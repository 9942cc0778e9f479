"""How long a plan will take on a pool, and how many tokens, by what was learnt of its operators.

The calls that are expected (`expected_calls`) go through the pool as a fluid (`makespan`). The
intervals are from how sure the learnt lengths are: all answers and prompts at the lower ends of
their intervals, and at the upper ones. Of a long table the first rows are reckoned, and the rest
takes as long as the second half of these does. What follows from a group is not in it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice

import msgspec

from kairos.confidence import Interval
from kairos.engine_profile import EngineProfile
from kairos.model import SECOND
from kairos.plan.expected_calls import ExpectedCalls, expected_calls
from kairos.plan.flow_profile import FlowProfile, OperatorProfile, holding
from kairos.plan.fluid_engine import Beginning, FluidCall
from kairos.plan.makespan import makespan
from kairos.plan.pipeline import Plan

ROWS_RECKONED = 1_000

Rows = Iterable[Mapping[str, object]]


class FlowForecast(msgspec.Struct, frozen=True, kw_only=True):
    """Means, and the middle 95 % of where they may lie as far as lengths are not known better."""

    rows: int
    engine: str
    instances: int
    calls: int
    merged: int
    time_s: Interval
    prompt_tokens: Interval
    completion_tokens: Interval
    cached_share: float  # of the prompts' tokens
    unknown: tuple[str, ...]  # LLM operators of which nothing was learnt: taken at their limits


class _Reckoned(msgspec.Struct, frozen=True):
    """Of some rows."""

    time_s: float
    calls: float
    merged: float
    prompt_tokens: float
    completion_tokens: float
    cached_tokens: float


def forecast(
    plan: Plan,
    profile: FlowProfile,
    rows: Rows,
    engine: EngineProfile,
    instances: int,
) -> FlowForecast:
    """Reads all rows, and reckons with the first `ROWS_RECKONED` of them: half a millisecond a call
    of theirs."""
    left = iter(rows)
    first = list(islice(left, ROWS_RECKONED))
    count = len(first) + sum(1 for _ in left)
    learnt = holding(profile, plan)
    calls = expected_calls(plan, learnt, first)
    before = expected_calls(plan, learnt, first[: len(first) // 2])
    means, lows, highs = (
        _reckoned(
            _scaled(calls, learnt, end), _scaled(before, learnt, end), (len(first), count),
            (calls.merged, before.merged), (engine, instances),
        )
        for end in ("mean", "low", "high")
    )  # fmt: skip
    named = dict.fromkeys(calls.operators)
    return FlowForecast(
        rows=count,
        engine=engine.name,
        instances=instances,
        calls=round(means.calls),
        merged=round(means.merged),
        time_s=_interval(means.time_s, lows.time_s, highs.time_s),
        prompt_tokens=_interval(means.prompt_tokens, lows.prompt_tokens, highs.prompt_tokens),
        completion_tokens=_interval(
            means.completion_tokens, lows.completion_tokens, highs.completion_tokens
        ),
        cached_share=means.cached_tokens / max(1.0, means.prompt_tokens),
        unknown=tuple(name for name in named if name not in learnt),
    )


def forecast_lines(found: FlowForecast) -> Iterator[str]:
    """For a terminal."""
    time, prompts, answers = found.time_s, found.prompt_tokens, found.completion_tokens
    yield (
        f"expected on {found.instances} x {found.engine}: {time.mean:,.1f} s ({time.low:,.1f} to "
        f"{time.high:,.1f}) for {found.rows:,} rows, {found.calls:,} calls, {found.merged:,} merged"
    )
    yield (
        f"expected tokens: {prompts.mean:,.0f} of prompts ({prompts.low:,.0f} to "
        f"{prompts.high:,.0f}), {found.cached_share:.0%} of them found in prefix caches; "
        f"{answers.mean:,.0f} of answers ({answers.low:,.0f} to {answers.high:,.0f})"
    )
    if found.unknown:
        yield f"nothing was learnt of {', '.join(found.unknown)}: taken as long as they may be"


def with_text_tokens(profile: FlowProfile, plan: Plan, rows: Rows) -> FlowProfile:
    """The same, with what a plan reckons of the prompts of the rows that it was learnt from: a
    tokenizer that makes more of a text than four bytes a token is then known to."""
    found = expected_calls(plan, holding(profile, plan), rows)
    tokens: dict[str, list[float]] = {}
    for name, call in zip(found.operators, found.calls, strict=True):
        tokens.setdefault(name, []).append(call.prompt_tokens)
    operators = {
        name: msgspec.structs.replace(each, text_tokens=_mean(tokens.get(name)))
        for name, each in profile.operators.items()
    }
    return msgspec.structs.replace(profile, operators=operators)


def _reckoned(
    calls: Sequence[FluidCall],
    before: Sequence[FluidCall],
    rows: tuple[int, int],
    merged: tuple[int, int],
    pool: tuple[EngineProfile, int],
) -> _Reckoned:
    """`before`: of half of the rows; `rows`: those reckoned with, and all."""
    whole = _of(calls, merged[0], *pool)
    if rows[1] <= rows[0]:
        return whole
    half = _of(before, merged[1], *pool)
    more = (rows[1] - rows[0]) / (rows[0] - rows[0] // 2)
    ends = (msgspec.structs.astuple(each) for each in (whole, half))
    return _Reckoned(*(all_ + more * (all_ - part) for all_, part in zip(*ends, strict=True)))


def _of(
    calls: Sequence[FluidCall], merged: int, engine: EngineProfile, instances: int
) -> _Reckoned:
    took = makespan(calls, engine, instances)
    return _Reckoned(
        time_s=took.time_us / SECOND,
        calls=len(calls),
        merged=merged,
        prompt_tokens=sum(each.prompt_tokens for each in calls),
        completion_tokens=sum(each.completion_tokens for each in calls),
        cached_tokens=took.cached_tokens,
    )


def _scaled(
    found: ExpectedCalls, learnt: Mapping[str, OperatorProfile], end: str
) -> list[FluidCall]:
    """Prompts and answers as long as one end of the intervals says."""
    if end == "mean":
        return found.calls
    scaled = []
    for name, call in zip(found.operators, found.calls, strict=True):
        known = learnt.get(name)
        if known is None:
            scaled.append(call)
            continue
        prompt = _factor(known.prompt_tokens, end)
        answer = _factor(known.completion_tokens, end)
        scaled.append(
            msgspec.structs.replace(
                call,
                prompt_tokens=call.prompt_tokens * prompt,
                completion_tokens=call.completion_tokens * answer,
                prefixes=tuple((mark, tokens * prompt) for mark, tokens in call.prefixes),
                begins=_longer(call.begins, prompt),
            )
        )
    return scaled


def _longer(begins: Beginning | None, factor: float) -> Beginning | None:
    if begins is None:
        return None
    return msgspec.structs.replace(begins, tokens=begins.tokens * factor)


def _factor(of: Interval | None, end: str) -> float:
    if of is None or not of.mean:
        return 1.0
    return (of.low if end == "low" else of.high) / of.mean


def _interval(mean: float, low: float, high: float) -> Interval:
    return Interval(mean, min(low, mean), max(high, mean))


def _mean(values: Sequence[float] | None) -> float | None:
    return sum(values) / len(values) if values else None

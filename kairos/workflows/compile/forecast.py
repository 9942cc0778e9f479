"""Forecast a plan's time and tokens on a pool, from learnt profiles of its operators.

The expected calls (`expected_calls`) go through the pool as a fluid (`makespan`). The intervals
follow from the intervals of learnt lengths: all answers and prompts at the lower ends of their
intervals, and at the upper ones. Of a long table only the first rows are computed, and the rest is
assumed to take as long as the second half of these; the first half shows how much the ends differ
from the means. The order is the one a run would use. Operators after a group are not included.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from statistics import fmean

import msgspec

from kairos.core import SECOND, EngineProfile, Interval
from kairos.workflows.compile.expected_calls import ExpectedCalls, expected_calls
from kairos.workflows.compile.flow_profile import FlowProfile, OperatorProfile, profiles_by_operator
from kairos.workflows.compile.fluid_engine import FluidCall, drop_inner_marks
from kairos.workflows.compile.kept_order import RunEngines, kept_order
from kairos.workflows.compile.makespan import makespan
from kairos.workflows.compile.passes.order import AS_DECLARED, CallOrder
from kairos.workflows.compile.pipeline import Plan

# Part of a table that is computed: up to this many rows or calls, or fillings of the pool.
ROWS_RECKONED = 1_000
CALLS_RECKONED, _FILLED = 20_000, 10
ROWS_TRIED = 16  # first rows, from which a run finds its order

Rows = Iterable[Mapping[str, object]]


class FlowForecast(msgspec.Struct, frozen=True, kw_only=True):
    """Forecast: means, with 95 % intervals that follow from the learnt lengths."""

    rows: int
    engine: str
    instances: int
    calls: int
    merged: int
    time_s: Interval
    prompt_tokens: Interval
    completion_tokens: Interval
    cached_share: float  # of the prompts' tokens
    unknown: tuple[str, ...]  # LLM operators without a profile: taken at their limits


class _Reckoned(msgspec.Struct, frozen=True):
    """Totals of some rows."""

    time_s: float
    calls: float
    merged: float
    prompt_tokens: float
    completion_tokens: float
    cached_tokens: float


def forecast_flow(
    plan: Plan,
    profile: FlowProfile,
    rows: Rows,
    engine: EngineProfile,
    instances: int,
    count: int | None = None,
) -> FlowForecast:
    """Return the forecast, computed from the first rows of a table.

    Args:
        plan: what is run.
        profile: learnt from its operators.
        rows: of the table, in their order.
        engine: profile of the pool's engines.
        instances: number of engines.
        count: number of the table's rows; None: all are read to count them.
    """
    left, learnt = iter(rows), profiles_by_operator(profile, plan)
    first = [*islice(left, ROWS_TRIED)]
    left = chain(first, left)
    most = max(CALLS_RECKONED, _FILLED * instances * engine.max_num_seqs)
    calls = expected_calls(plan, learnt, islice(left, ROWS_RECKONED), most)
    calls.calls = drop_inner_marks(calls.calls)
    reckoned = len(calls.ends)
    if count is None:
        count = reckoned + sum(1 for _ in left)
    pool = engine, instances, order_of(plan, first, engine, instances)
    sample, means = calls, _of(calls, calls.calls, *pool)
    part = means
    if count > reckoned > 1:
        sample = calls.before(reckoned // 2)
        part = _of(sample, sample.calls, *pool)
    means = _drawn_on(means, part, (reckoned, len(sample.ends)), count)
    lows, highs = (
        _at_end(means, part, _of(sample, _scaled(sample, learnt, end), *pool))
        for end in ("low", "high")
    )
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
    """Yield the lines of a forecast, for a terminal."""
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
    """Return the profile with the prompt tokens that a plan estimates for the profiled rows.

    They show how many tokens a tokenizer makes of four bytes of text.
    """
    found = expected_calls(plan, profiles_by_operator(profile, plan), rows)
    tokens: dict[str, list[float]] = {}
    for name, call in zip(found.operators, found.calls, strict=True):
        if not call.function_us:
            tokens.setdefault(name, []).append(call.prompt_tokens)
    operators = {
        name: msgspec.structs.replace(
            each, text_tokens=fmean(tokens[name]) if name in tokens else None
        )
        for name, each in profile.operators.items()
    }
    return msgspec.structs.replace(profile, operators=operators)


def order_of(
    plan: Plan, rows: Sequence[Mapping[str, object]], engine: EngineProfile, instances: int
) -> CallOrder:
    """Return the order that a run would use, which knows as much of its engines (`--engine`)."""
    if not plan.passes.order or not rows:
        return AS_DECLARED
    capacity = instances * engine.max_num_seqs
    pool = RunEngines(instances, instances * engine.kv_tokens, capacity, 2 * capacity)
    return kept_order(plan, rows[:ROWS_TRIED], pool)


def _of(
    found: ExpectedCalls,
    calls: Sequence[FluidCall],
    engine: EngineProfile,
    instances: int,
    order: CallOrder,
) -> _Reckoned:
    """Return totals. `calls`: the found ones, or scaled to one end of the intervals."""
    took = makespan(calls, engine, instances, order, found.operators)
    return _Reckoned(
        time_s=took.time_us / SECOND,
        calls=sum(not each.function_us for each in calls),
        merged=found.merged,
        prompt_tokens=sum(each.prompt_tokens for each in calls),
        completion_tokens=sum(each.completion_tokens for each in calls),
        cached_tokens=took.cached_tokens,
    )


def _drawn_on(whole: _Reckoned, part: _Reckoned, rows: tuple[int, int], count: int) -> _Reckoned:
    """Extrapolate to a whole table, from some rows and a part of these. `rows`: their numbers."""
    if count <= rows[0]:
        return whole
    if rows[0] == rows[1]:
        return _Reckoned(*(count / rows[0] * each for each in msgspec.structs.astuple(whole)))
    more = (count - rows[0]) / (rows[0] - rows[1])
    ends = (msgspec.structs.astuple(each) for each in (whole, part))
    return _Reckoned(*(all_ + more * (all_ - some) for all_, some in zip(*ends, strict=True)))


def _at_end(means: _Reckoned, part: _Reckoned, end: _Reckoned) -> _Reckoned:
    """Scale the means by the ratio that a part of the rows has at one end."""
    each = (msgspec.structs.astuple(one) for one in (means, part, end))
    return _Reckoned(*(all_ * at / of if of else all_ for all_, of, at in zip(*each, strict=True)))


def _scaled(
    found: ExpectedCalls, learnt: Mapping[str, OperatorProfile], end: str
) -> list[FluidCall]:
    """Return the calls with prompts and answers scaled to one end of their intervals."""
    scaled = []
    for name, call in zip(found.operators, found.calls, strict=True):
        known = learnt.get(name)
        if known is None:
            scaled.append(call)
            continue
        prompt = _factor(known.prompt_tokens, end)
        function_us = call.function_us * _factor(known.time_us, end)
        answer = _factor(known.completion_tokens, end)
        scaled.append(
            msgspec.structs.replace(
                call,
                prompt_tokens=call.prompt_tokens * prompt,
                completion_tokens=call.completion_tokens * answer,
                prefixes=tuple((mark, tokens * prompt) for mark, tokens in call.prefixes),
                function_us=function_us,
            )
        )
    return scaled


def _factor(of: Interval | None, end: str) -> float:
    if of is None or not of.mean:
        return 1.0
    return (of.low if end == "low" else of.high) / of.mean


def _interval(mean: float, low: float, high: float) -> Interval:
    return Interval(mean, min(low, mean), max(high, mean))

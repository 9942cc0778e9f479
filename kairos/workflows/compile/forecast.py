"""How long a plan will take on a pool, and how many tokens, by what was learnt of its operators.

The calls that are expected (`expected_calls`) go through the pool as a fluid (`makespan`). The
intervals are from how sure the learnt lengths are: all answers and prompts at the lower ends of
their intervals, and at the upper ones. Of a long table the first rows are reckoned, and the rest
takes as long as the second half of these does; by the first half it is reckoned how much the ends
differ from the means. The order is that which the run would keep. What follows from a group is not
in it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice

import msgspec

from kairos.core.confidence import Interval
from kairos.core.engine_profile import EngineProfile
from kairos.core.model import SECOND
from kairos.workflows.compile.expected_calls import ExpectedCalls, expected_calls
from kairos.workflows.compile.flow_profile import FlowProfile, OperatorProfile, holding
from kairos.workflows.compile.fluid_engine import Beginning, FluidCall
from kairos.workflows.compile.kept_order import RunEngines, kept_order
from kairos.workflows.compile.makespan import makespan
from kairos.workflows.compile.passes.order import AS_DECLARED, CallOrder
from kairos.workflows.compile.pipeline import Plan

# What is reckoned of a table: as many rows as make so many calls, or fill the pool so often.
ROWS_RECKONED = 1_000
CALLS_RECKONED, _FILLED = 20_000, 10
ROWS_TRIED = 16  # by which a run finds its order: those that it asks for first

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
    count: int | None = None,
) -> FlowForecast:
    """Reckon with the first rows of a table.

    Args:
        plan: what is run.
        profile: what was learnt of its operators.
        rows: of the table, in their order.
        engine: of which the pool has `instances`.
        instances: of the engine.
        count: how many rows the table has; None: all are read to find out.
    """
    left, learnt = iter(rows), holding(profile, plan)
    first = [*islice(left, ROWS_TRIED)]
    left = chain(first, left)
    most = max(CALLS_RECKONED, _FILLED * instances * engine.max_num_seqs)
    calls = expected_calls(plan, learnt, islice(left, ROWS_RECKONED), most)
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
        if not call.function_us:
            tokens.setdefault(name, []).append(call.prompt_tokens)
    operators = {
        name: msgspec.structs.replace(each, text_tokens=_mean(tokens.get(name)))
        for name, each in profile.operators.items()
    }
    return msgspec.structs.replace(profile, operators=operators)


def order_of(
    plan: Plan, rows: Sequence[Mapping[str, object]], engine: EngineProfile, instances: int
) -> CallOrder:
    """Return the order that a run would keep, which knows of its engines as much (`--engine`)."""
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
    """`calls`: those found, or as long as they are at one end."""
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
    """Return what a whole table takes, by some rows of it and a part of these. `rows`: of both."""
    if count <= rows[0]:
        return whole
    if rows[0] == rows[1]:
        return _Reckoned(*(count / rows[0] * each for each in msgspec.structs.astuple(whole)))
    more = (count - rows[0]) / (rows[0] - rows[1])
    ends = (msgspec.structs.astuple(each) for each in (whole, part))
    return _Reckoned(*(all_ + more * (all_ - some) for all_, some in zip(*ends, strict=True)))


def _at_end(means: _Reckoned, part: _Reckoned, end: _Reckoned) -> _Reckoned:
    """As much more or less than the means as a part of the rows has at one end."""
    each = (msgspec.structs.astuple(one) for one in (means, part, end))
    return _Reckoned(*(all_ * at / of if of else all_ for all_, of, at in zip(*each, strict=True)))


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
        function_us = call.function_us * _factor(known.time_us, end)
        answer = _factor(known.completion_tokens, end)
        scaled.append(
            msgspec.structs.replace(
                call,
                prompt_tokens=call.prompt_tokens * prompt,
                completion_tokens=call.completion_tokens * answer,
                prefixes=tuple((mark, tokens * prompt) for mark, tokens in call.prefixes),
                begins=_longer(call.begins, prompt),
                function_us=function_us,
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

"""Choose the order of a run's calls, once its engines' memory and its first rows are known.

A few rows like the first are tried on a model of the engines (`order_trial.py`): with calls as they
become ready, in the plan's order (`order.py`, `passes/order.py`), row by row with fewer and fewer
rows open, and in sequences over batches of rows. The fastest is chosen, if prefix caches hit
clearly more than without an order; otherwise calls are not ordered. So nothing depends on a guess
of the engines' memory, and the window of rows does not undo the plan. Not in the paper.

Trials are not exact: calls may wait before an engine or in it, which decides whose context is
evicted. Both are tried, and an order has to be better in each.
"""

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean

import msgspec
from msgspec.structs import replace

from kairos.core import EXPECTED_COMPLETION_TOKENS, Interval
from kairos.workflows.compile.call_shapes import call_shapes
from kairos.workflows.compile.check import every_operator
from kairos.workflows.compile.check_templates import templates_of
from kairos.workflows.compile.expected_calls import expected_calls
from kairos.workflows.compile.flow_profile import OperatorProfile
from kairos.workflows.compile.order import cache_aware_order
from kairos.workflows.compile.order_trial import STEP_TOKENS, Sample, TrialEngine, tried
from kairos.workflows.compile.passes.order import AS_DECLARED, CallOrder, nestings, of_sequences
from kairos.workflows.compile.pipeline import Plan

_MORE = 0.08  # share of prompt tokens that must be hit in addition to those without an order
_LESS_TIME = 0.99  # of the time
_ROWS, _CALLS, _BYTES = 16, 400, 2 << 20  # of the sample: rows, calls, bytes of prompts
_TRIED_ROWS, _TRIED_CALLS = 128, 700  # in a trial
_SEQUENCES = 32  # of an engine; a larger one is tried at a smaller scale
_WINDOWS = (1, 2, 3, 4, 6, 8, 16, 32, 64)  # rows
_TIMES = 3.0  # rounds of a loop, items of a map
_ANSWERS = tuple(0.25 + 0.075 * tenth for tenth in range(11))  # shares of the maximum length


class RunEngines(msgspec.Struct, frozen=True):
    """Engines of a run, all alike: memory, and concurrent sequences.

    `released`: calls of the run that are in flight at most.
    """

    instances: int
    kv_tokens: int
    sequences: int
    released: int


def kept_order(plan: Plan, rows: Sequence[Mapping[str, object]], pool: RunEngines) -> CallOrder:
    """Return the order for a table that begins with these rows.

    Takes some tenths of a second at most: with large rows or many operators less is tried.
    """
    sample = _sample(plan, rows)
    if sample is None:
        return AS_DECLARED
    engine, scale = _share(pool, sample)
    engines = [engine, replace(engine, queues=True)]
    count = min(_TRIED_ROWS, max(2, _TRIED_CALLS * len(sample.of_row) // len(sample.calls)))
    without = [tried(sample, AS_DECLARED, each, count) for each in engines]
    enough = fmean(each.found for each in without) + _MORE * without[0].asked
    chosen, best = AS_DECLARED, _LESS_TIME
    for order in _candidates(plan, engine.kv_tokens, count):
        worst = 0.0  # ratio of its times to the ones without an order
        for each, plain in zip(engines, without, strict=True):
            trial = tried(sample, order, each, count)
            worst = max(worst, trial.took / plain.took)
            if worst >= best or trial.found < enough:
                break
        else:
            chosen, best = order, worst
    return _scaled(chosen, scale)


def _candidates(plan: Plan, kv_tokens: int, rows: int) -> Iterator[CallOrder]:
    shapes = call_shapes(plan.declaration.operators)
    ways = nestings(cache_aware_order(shapes.calls, kv_tokens), shapes.static)
    windows = [each for each in _WINDOWS if each <= rows // 2]
    for name, sequences in ways.items():
        order = of_sequences(name, sequences)
        if name == "row-major":
            yield order
            for each in (AS_DECLARED, order):
                yield from (replace(each, open_rows=window) for window in windows)
        else:
            yield from (replace(order, together=window) for window in windows if window > 1)


def _sample(plan: Plan, rows: Sequence[Mapping[str, object]]) -> Sample | None:
    """Return the sample of rows; None if they cannot be tried, or not quickly."""
    operators, guessed = plan.declaration.operators, _guessed(plan)
    if not guessed:
        return None
    size = max(len(msgspec.json.encode(row)) for row in rows) * len(guessed)
    size += sum(len(text) for each in every_operator(operators) for _, text in templates_of(each))
    most = min(_ROWS, _CALLS // len(guessed), _BYTES // size)
    if most < 1:
        return None
    given = rows[:most]
    found = expected_calls(plan, guessed, [*given, _another(given[0])])
    return Sample(found, len(given)) if any(each.row < len(given) for each in found.calls) else None


def _another(row: Mapping[str, object]) -> Mapping[str, object]:
    """Return a row that has no text in common with this one."""
    return {
        name: f"\0{value[1:]}" if isinstance(value, str) and value else value
        for name, value in row.items()
    }


def _guessed(plan: Plan) -> dict[str, OperatorProfile]:
    """Return an assumed profile of each LLM operator, as no call has been answered yet."""
    always, times = Interval(1.0, 1.0, 1.0), Interval(_TIMES, _TIMES, _TIMES)
    found = {}
    for name, each in plan.generations.items():
        most = each.max_tokens or EXPECTED_COMPLETION_TOKENS
        found[name] = OperatorProfile(
            structure="",
            calls=0,
            rows=always,
            times=times,
            completion_deciles=tuple(most * share for share in _ANSWERS),
        )
    return found


def _share(pool: RunEngines, sample: Sample) -> tuple[TrialEngine, float]:
    """Return the part of the pool that is tried, and the number of such parts.

    It is one instance, or a part of a large one. It holds the whole of what all rows share.
    """
    memory = pool.kv_tokens // pool.instances
    same = min(sample.same_tokens, memory)
    largest = fmean(each.tokens + each.answer_tokens for each in sample.calls)
    fit = max(1, round(2 * memory / largest))  # prefixes in common leave room for more
    sequences = min(fit, max(1, pool.sequences // pool.instances))
    smaller = max(1.0, sequences / _SEQUENCES)
    engine = TrialEngine(
        kv_tokens=round(same + (memory - same) / smaller),
        sequences=round(sequences / smaller),
        released=max(1, round(pool.released / pool.instances / smaller)),
        step_tokens=STEP_TOKENS / smaller,  # a part computes proportionally less in a step
    )
    return engine, pool.instances * smaller


def _scaled(order: CallOrder, scale: float) -> CallOrder:
    return replace(
        order,
        together=None if order.together is None else round(order.together * scale),
        open_rows=None if order.open_rows is None else round(order.open_rows * scale),
    )

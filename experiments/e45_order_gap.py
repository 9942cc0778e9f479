"""How far is the planned order of a flow's calls from the best there is?

Seven small batches of Helium's primitives on one worker with 8,192 tokens of KV memory, as its own
comparison has them; the best order is CP-SAT's, proven. All are reckoned in Helium's token steps.
Expected: at most 0.9 % behind the best on average, 3.6 % at worst, which is what Helium reports of
itself. Beside it: query after query, operator after operator, whatever is ready in a drawn order,
and the longest shared prefix first among what is ready. Seconds on one core.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random
from statistics import fmean

import msgspec

from bench.report import Figure
from experiments.claim import Study, gap_figures, table
from experiments.order_optimum import optimum
from experiments.order_problems import KV_TOKENS, SEVEN, OrderProblem, best_effort, expanded
from experiments.report import commit
from experiments.token_steps import ends, new_tokens, token_steps
from kairos.workflows.compile.call_shapes import ScheduledCall, delay
from kairos.workflows.compile.order import cache_aware_order
from kairos.workflows.compile.passes.order import nestings

PLANNED = "planned"
OTHERS = ("query by query", "operator by operator", "random", "longest shared prefix")
_DRAWN = 20  # random orders, of which the mean counts
_LIMIT_S = 60.0  # of CP-SAT, which needs less than a second


Choice = Callable[[Mapping[str, ScheduledCall], ScheduledCall | None], str]


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """Token steps by way to order."""

    commit: str
    problem: str
    calls: int
    best: float
    bound: float  # no order takes less
    nesting: str  # that was chosen
    steps: dict[str, float]

    def gap(self, way: str) -> float:
        return self.steps[way] / self.best - 1


def measure(quick: bool) -> Iterator[Row]:
    at_commit = commit()
    for problem in SEVEN[:3] if quick else SEVEN:
        yield measured(problem, at_commit)


def measured(problem: OrderProblem, at_commit: str) -> Row:
    calls = problem.of_batch()
    nesting, order = planned(problem, calls)
    best = optimum(calls, KV_TOKENS, order, limit_s=_LIMIT_S)
    queries, names = range(problem.queries), [*problem.calls]
    by_query = [f"{query}/{name}" for query in queries for name in names]
    by_operator = [f"{query}/{name}" for name in names for query in queries]
    drawn = [_steps(_dispatched(calls, _any(seed)), calls) for seed in range(_DRAWN)]
    orders = (order, by_query, by_operator)
    planned_steps, query_steps, operator_steps = (_steps(each, calls) for each in orders)
    longest = _steps(_dispatched(calls, _longest), calls)
    steps = (planned_steps, query_steps, operator_steps, fmean(drawn), longest)
    return Row(
        commit=at_commit,
        problem=problem.name,
        calls=len(calls),
        best=best.steps,
        bound=best.bound,
        nesting=nesting,
        steps=dict(zip((PLANNED, *OTHERS), steps, strict=True)),
    )


def planned(
    problem: OrderProblem, calls: Mapping[str, ScheduledCall]
) -> tuple[str, tuple[str, ...]]:
    """As `passes/order.py` chooses: the nesting with fewest token steps, and what comes of it."""
    order = cache_aware_order(problem.calls, KV_TOKENS)
    carried_out = {
        name: best_effort(expanded(sequences, problem.queries), calls, KV_TOKENS)
        for name, sequences in nestings(order, problem.static).items()
    }
    best = min(carried_out, key=lambda name: _steps(carried_out[name], calls))
    return best, carried_out[best]


def section(rows: Sequence[Row]) -> str:
    ways = (PLANNED, *OTHERS)
    lines = [
        [row.problem, str(row.calls), f"{row.best:.1f}", row.nesting]
        + [f"{100 * row.gap(way):.2f}" for way in ways]
        for row in rows
    ]
    means = [f"{100 * fmean(row.gap(way) for row in rows):.2f}" for way in ways]
    worst = [f"{100 * max(row.gap(way) for row in rows):.2f}" for way in ways]
    lines += [["mean", "", "", "", *means], ["worst", "", "", "", *worst]]
    header = ["behind the best, in %", "calls", "best, token steps", "nesting", *ways]
    return table(header, lines)


def figures(rows: Sequence[Row]) -> list[Figure]:
    gaps = [100 * row.gap(PLANNED) for row in rows]
    name, unit = "order of a flow's calls behind the best", "% of token steps, seven small batches"
    return gap_figures(name, gaps, unit, mean=0.9, worst=3.6)


def _dispatched(calls: Mapping[str, ScheduledCall], choose: Choice) -> list[str]:
    """Choose one after the other of what is ready, or of what will be first."""
    order: list[str] = []
    ended: dict[str, float] = {}
    while len(order) < len(calls):
        ready_at = {
            name: max((ended[each] + delay(calls[each]) for each in call.after), default=0.0)
            for name, call in calls.items()
            if name not in ended and all(each in ended for each in call.after)
        }
        now = max(max(ended.values(), default=0.0), min(ready_at.values()))
        before = calls[order[-1]] if order else None
        ready = {name: calls[name] for name, at in ready_at.items() if at <= now}
        order.append(choose(ready, before))
        ended = ends([order], calls, [KV_TOKENS])
    return order


def _any(seed: int) -> Choice:
    drawn = Random(seed)  # noqa: S311
    return lambda ready, _before: drawn.choice([*ready])


def _longest(ready: Mapping[str, ScheduledCall], before: ScheduledCall | None) -> str:
    def shared(name: str) -> int:
        return new_tokens(None, ready[name]) - new_tokens(before, ready[name])

    return max(ready, key=shared)


def _steps(order: Sequence[str], calls: Mapping[str, ScheduledCall]) -> float:
    return token_steps([order], calls, [KV_TOKENS])


STUDY = Study(
    title="The order of a flow's calls beside the best",
    row=Row,
    measure=measure,
    section=section,
    figures=figures,
)

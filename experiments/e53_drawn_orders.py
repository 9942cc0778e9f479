"""Measure how far the planned order of drawn trees of calls is from the best.

A thousand trees of five to eight calls on one worker with 8,192 tokens of KV memory: with answers
of 5, 20 and 60 tokens or of 20 alone, with calls that need up to two others or none. Every order is
tried that may be the best, and Helium's algorithm 1 as published. All in Helium's token steps.
Expected: at most 1 % behind the best on average, 4 % at worst. Left out: engines, which batch what
this worker does one after the other. A minute on one core.
"""

from collections.abc import Iterator, Sequence
from random import Random
from statistics import fmean

import msgspec

from bench.report import Figure
from experiments.claim import Study, gap_figures, table
from experiments.helium_order import helium_order
from experiments.order_optimum import least_steps
from experiments.order_problems import KV_TOKENS, drawn_tree
from experiments.report import commit
from experiments.token_steps import token_steps
from kairos.workflows.compile.call_shapes import ScheduledCall
from kairos.workflows.compile.order import cache_aware_order

WAYS = {"planned": cache_aware_order, "Helium's algorithm 1": helium_order}
KINDS = {
    "answers of 5, 20, 60 tokens, needs": ((5, 20, 60), True),
    "answers of 20 tokens, needs": ((20,), True),
    "answers of 5, 20, 60 tokens": ((5, 20, 60), False),
    "answers of 20 tokens": ((20,), False),
}
_TREES, _FEW = 250, 5  # of each kind


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """How much longer the orders of each way are than the best, for one kind of trees."""

    commit: str
    kind: str
    trees: int
    gaps: dict[str, list[float]]


def measure(quick: bool) -> Iterator[Row]:
    at_commit, trees = commit(), _FEW if quick else _TREES
    for kind, (answers, needs) in KINDS.items():
        gaps: dict[str, list[float]] = {way: [] for way in WAYS}
        for seed in range(trees):
            draw = Random(seed)  # noqa: S311
            calls = drawn_tree(draw, draw.randint(5, 8), answers, needs=needs)
            for way, gap in gaps_of(calls).items():
                gaps[way].append(gap)
        yield Row(commit=at_commit, kind=kind, trees=trees, gaps=gaps)


def gaps_of(calls: dict[str, ScheduledCall]) -> dict[str, float]:
    steps = {
        way: token_steps([order(calls, KV_TOKENS)], calls, [KV_TOKENS])
        for way, order in WAYS.items()
    }
    best = least_steps(calls, KV_TOKENS, min(steps.values()))
    return {way: each / best - 1 for way, each in steps.items()}


def section(rows: Sequence[Row]) -> str:
    lines = [
        [row.kind, str(row.trees)]
        + [f"{100 * figure(row.gaps[way]):.2f}" for way in WAYS for figure in (fmean, max)]
        for row in rows
    ]
    heads = [f"{way}, {which}" for way in WAYS for which in ("mean", "worst")]
    return table(["behind the best, in %", "trees", *heads], lines)


def figures(rows: Sequence[Row]) -> list[Figure]:
    gaps = [100 * gap for row in rows for gap in row.gaps["planned"]]
    name, unit = "order of drawn calls behind the best", f"% of token steps, {len(gaps)} trees"
    return gap_figures(name, gaps, unit, mean=1.0, worst=4.0)


STUDY = Study(
    title="The order of drawn calls beside the best",
    row=Row,
    measure=measure,
    section=section,
    figures=figures,
)

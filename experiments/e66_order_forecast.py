"""Measure what `kairos plan` expects of runs that keep an order, and compare it with the simulator.

The flows, tables and engines of `e56_kept_order`, as far as a run keeps an order there. Each is
expected with that order, and as calls become ready, which is what was expected before.
Expected: nearer to the run with the order. Left out: runs that keep none, where both are one.
Five minutes of one core.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean

import msgspec
from msgspec.structs import replace

from bench.report import Figure
from experiments.claim import Study, table
from experiments.e56_kept_order import (
    AT_ONCE,
    BLOCK,
    DEBATE,
    FEW,
    FLOWS,
    MEMORIES,
    Table,
    debate,
    drawn_flow,
    found_share,
    longest_call,
)
from experiments.report import commit
from kairos import flow
from kairos.core import PLACEMENTS, POLICIES, EngineProfile
from kairos.engines import load_profile
from kairos.simulate.flow_simulation import PoolOptions, observed_flow, simulate_flow
from kairos.workflows import FlowProfile, FlowSample
from kairos.workflows.compile.forecast import forecast_flow, order_of
from kairos.workflows.compile.passes.order import AS_DECLARED

WITH, WITHOUT = WAYS = "with its order", "as calls become ready"
_SAMPLE = 20  # rows that the flow is learnt from


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A run, and what is expected of it, by way: seconds, and the share of prompts found."""

    commit: str
    flow: str
    blocks: int
    at_once: int
    order: str
    took_s: float
    found: float
    expected_s: dict[str, float]
    expected_found: dict[str, float]


def measure(quick: bool) -> Iterator[Row]:
    at_commit = commit()
    for name, (f, rows), blocks, at_once in _cases(quick):
        engine = replace(
            load_profile("h200-llama3-8b"), kv_tokens=blocks * BLOCK, max_num_seqs=at_once
        )
        plan = f.compile()
        order = order_of(plan, rows, engine, 1)
        if order == AS_DECLARED:
            continue
        pool = PoolOptions(
            instances=1,
            profile=engine,
            policy=POLICIES["kairos"],
            placement=PLACEMENTS["kairos"],
        )
        run = simulate_flow(plan, iter(rows), f.functions, pool)
        drawn = [{**row} for row in rows[:_SAMPLE]]
        _, seen = observed_flow(plan, iter(drawn), f.functions, pool)
        learnt = FlowSample(Path(), f.declaration, f.functions, plan, drawn).learn(seen)
        expected = {
            WITH: _expected(f, learnt, rows, engine, with_order=True),
            WITHOUT: _expected(f, learnt, rows, engine, with_order=False),
        }
        yield Row(
            commit=at_commit,
            flow=name,
            blocks=blocks,
            at_once=at_once,
            order=f"{order.nesting}, {order.together or order.open_rows} rows",
            took_s=round(run.simulated_s, 3),
            found=round(found_share(run), 4),
            expected_s={way: round(s, 3) for way, (s, _) in expected.items()},
            expected_found={way: round(share, 4) for way, (_, share) in expected.items()},
        )


def _cases(quick: bool) -> Iterator[tuple[str, tuple[flow.Flow, Table], int, int]]:
    yield DEBATE, debate(), 250, 4
    yield DEBATE, debate(), 100, 1
    for seed in range(FEW if quick else FLOWS):
        drawn = drawn_flow(seed)
        longest = longest_call(drawn[0].compile())
        for times in MEMORIES:
            for at_once in AT_ONCE:
                yield str(seed), drawn, -(-round(longest * times) // BLOCK), at_once


def _expected(
    f: flow.Flow, learnt: FlowProfile, rows: Table, engine: EngineProfile, *, with_order: bool
) -> tuple[float, float]:
    found = forecast_flow(f.compile(flow.Passes(order=with_order)), learnt, rows, engine, 1)
    return found.time_s.mean, found.cached_share


def section(rows: Sequence[Row]) -> str:
    lines = []
    for way in WAYS:
        times, found = _off(rows, way)
        lines.append([way, *(f"{of(each):.1f}" for each in (times, found) for of in (fmean, max))])
    columns = ["expected", "time off, %: mean", "worst", "share found off, points: mean", "worst"]
    return f"{len(rows)} runs that keep an order.\n\n" + table(columns, lines)


def _off(rows: Sequence[Row], way: str) -> tuple[list[float], list[float]]:
    times = [100 * abs(row.expected_s[way] / row.took_s - 1) for row in rows]
    return times, [100 * abs(row.expected_found[way] - row.found) for row in rows]


def figures(rows: Sequence[Row]) -> list[Figure]:
    of = f"{len(rows)} runs that keep an order"
    (times, found), (_, before) = _off(rows, WITH), _off(rows, WITHOUT)
    return [
        Figure(
            name="expected time off the simulated one",
            unit=f"%, {of}",
            value=round(fmean(times), 2),
            target=15,
        ),
        Figure(
            name="share found off the simulated one, over that without the order",
            unit=f"times, {of}",
            value=round(fmean(found) / fmean(before), 2),
            target=0.5,
        ),
    ]


STUDY = Study(
    title="What is expected of runs that keep an order",
    row=Row,
    measure=measure,
    section=section,
    figures=figures,
)

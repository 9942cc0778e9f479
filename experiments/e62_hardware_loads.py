"""Planned times of pools against simulated ones, from idle pools to 90 % of their load.

Twenty pools of e35: fourteen of one to four whole instances, six of instances for prefill and for
decode, at 5, 50 and 90 % of what the planner says they can do. Each is simulated with Kairos's
policy and placement for 50 times what a workflow takes. Expected: P95 within 20 %, the tokens a
second that a pool can do within 15 %.
"""

from collections.abc import Iterator, Sequence

import msgspec

from bench.report import Figure
from experiments.claim import Study, table
from experiments.e35_hardware_prediction import PAIRS, POOLS, SEED, Had, _Planned
from experiments.report import commit
from kairos.capacity.pool_simulation import POLICY
from kairos.simulate import draw_arrivals

AIM_P95, AIM_THROUGHPUT = 0.20, 0.15
LOADS = (0.05, 0.5, 0.9)
STAYS, FEWEST, MOST = 50, 1_200, 5_000  # workflows of a run
WHOLE, PAIRED = 14, 6


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """Result of one pool at one load."""

    commit: str
    pool: str
    model: str
    workload: str
    load: float
    planned_p95_s: float
    simulated_p95_s: float
    planned_mean_s: float
    simulated_mean_s: float
    planned_tokens_per_s: float
    simulated_tokens_per_s: float


def pools() -> list[tuple[str, str, str, Had, Had | None]]:
    """Return each pool's name, model, workload and sides."""
    whole = [(f"{n} x {d}", m, w, (d, n), None) for d, m, n, w in POOLS[:WHOLE]]
    pairs = [
        (f"{a} x {f} :: {n} x {d}", m, w, (d, n), (f, a)) for f, a, d, n, m, w in PAIRS[:PAIRED]
    ]
    return [*whole, *pairs]


def measured(number: int, at_commit: str) -> Iterator[Row]:
    """Yield the rows of one pool."""
    name, model, workload, had, prefill = pools()[number]
    pool = _Planned(model, workload, had, prefill)
    tokens_per_s = pool.saturated()
    for load in LOADS:
        per_s = load * pool.most_per_s
        expected = pool.predicted(per_s)
        assert expected is not None, (name, load)
        count = min(max(round(STAYS * per_s * expected.mean_s), FEWEST), MOST)
        world = pool._world(draw_arrivals("poisson", count, per_s, SEED), POLICY)
        times = world.metrics.record()["e2e_s"]
        yield Row(
            commit=at_commit,
            pool=name,
            model=model,
            workload=workload,
            load=load,
            planned_p95_s=float(f"{expected.p95_s:.5g}"),
            simulated_p95_s=float(f"{times['p95']:.5g}"),
            planned_mean_s=float(f"{expected.mean_s:.5g}"),
            simulated_mean_s=float(f"{times['mean']:.5g}"),
            planned_tokens_per_s=float(f"{pool.most_per_s * pool.answer_tokens:.5g}"),
            simulated_tokens_per_s=float(f"{tokens_per_s:.5g}"),
        )


def measure(quick: bool) -> Iterator[Row]:
    at_commit = commit()
    for number in range(2 if quick else WHOLE + PAIRED):
        yield from measured(number, at_commit)


def off(row: Row) -> float:
    """Return how far the planned P95 is from the simulated one."""
    return row.planned_p95_s / row.simulated_p95_s - 1


def off_tokens(row: Row) -> float:
    """Return how far the planned throughput is from the simulated one."""
    return row.planned_tokens_per_s / row.simulated_tokens_per_s - 1


def section(rows: Sequence[Row]) -> str:
    by_pool: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        by_pool.setdefault((row.pool, row.model, row.workload), []).append(row)
    tokens = [off_tokens(some[0]) for some in by_pool.values()]
    said = "; ".join(
        f"at {load:.0%} load {sum(abs(off(r)) <= AIM_P95 for r in rows if r.load == load)} of "
        f"{len(by_pool)} (worst {max((off(r) for r in rows if r.load == load), key=abs):+.0%})"
        for load in LOADS
    )
    return (
        f"P95 within {AIM_P95:.0%}: {said}. Throughput within {AIM_THROUGHPUT:.0%}: "
        f"{sum(abs(each) <= AIM_THROUGHPUT for each in tokens)} of {len(tokens)} "
        f"(worst {max(tokens, key=abs):+.0%}).\n\n"
        + table(
            ["pool", "workload", *(f"P95 at {load:.0%}" for load in LOADS), "tokens/s"],
            (
                [
                    f"{pool}, {model}",
                    workload,
                    *(f"{off(row):+.0%}" for row in some),
                    f"{off_tokens(some[0]):+.0%}",
                ]
                for (pool, model, workload), some in by_pool.items()
            ),
        )
    )


def figures(rows: Sequence[Row]) -> list[Figure]:
    return [
        Figure(
            name="planned P95 of workflows from idle to 90 % load",
            value=round(100 * max(abs(off(row)) for row in rows), 1),
            unit="percent off the simulated one, the worst of 20 pools",
            target=100 * AIM_P95,
        )
    ]


STUDY = Study(
    title="Planned times of pools from idle to 90 % load",
    row=Row,
    measure=measure,
    section=section,
    figures=figures,
)

"""The pool that the planner chooses, beside the best that trying all of them finds.

Ten small cases: a workload, a model, a rate, a target for P95, and two or three kinds of hardware
of which up to four devices may be had together, one to an instance. All pools are simulated, the
cheapest first, with Kairos before them, until one is within the target: that is the best. The
planner sees no simulation. Expected: it pays at most 5 % more. Pools whose load would be above 97 %
by the planner's throughput are not tried: a run of minutes does not show that they fall behind. Nor
is a short run enough for one at 95 %, which fills slowly: the H100 of the last case has a P95 of
61 s over 2,400 workflows, which is near its target, and of 65 s over 9,000.

Both count a pool as within the target up to 2 % above it, since the simulation of another seed
differs by as much. Where several pools cost the same, any of them is as good.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product

import msgspec

from bench.report import Figure
from experiments.claim import Study, table
from experiments.e35_hardware_prediction import workflows
from experiments.report import commit
from kairos.capacity.hardware_options import load_catalogue, observed_calls
from kairos.capacity.hardware_plan import (
    HardwareQuestion,
    call_kinds,
    plan_hardware,
    question_calls,
)
from kairos.capacity.instance_kinds import HardwareOffer, instance_kinds
from kairos.capacity.ownership import Terms
from kairos.capacity.pool import InstanceKind
from kairos.capacity.pool_simulation import SimulatedPool, simulate_pool
from kairos.capacity.serving import Phases, use

AIM = 1.05
NEAR = 1.02  # of a target, that still counts as within it
DEVICES = 4  # of a pool, at most
MOST_LOAD = 0.97  # of what the planner says that a pool can do
STAYS, FEWEST, MOST = 30, 1_200, 10_000  # workflows of a run: in so many times the target


class Case(msgspec.Struct, frozen=True):
    """What is asked."""

    workload: str
    model: str
    devices: tuple[str, ...]
    per_s: float
    p95_s: float
    prices: str = "bought"


CASES = (
    Case("demo", "llama-3-8b", ("a40", "a100"), 24.0, 40.0),
    Case("demo", "llama-3-8b", ("a40", "h100"), 40.0, 15.0),
    Case("demo", "llama-3-8b", ("a100", "gaudi3"), 90.0, 10.0),
    Case("qa", "llama-3-8b", ("a40", "a100", "h100"), 40.0, 25.0),
    Case("qa", "llama-3-8b", ("a40", "gaudi3", "b200"), 80.0, 10.0),
    Case("qa", "llama-2-13b", ("a100", "mi300x"), 12.0, 30.0),
    Case("rg", "llama-2-13b", ("a100", "h100", "gaudi3"), 3.0, 60.0),
    Case("rg", "llama-3-8b", ("a40", "gaudi3"), 12.0, 30.0),
    Case("cg", "llama-3-8b", ("a100", "h100", "mi300x"), 8.0, 50.0),
    Case("cg", "qwen2.5-7b", ("a40", "h100"), 5.0, 60.0, "rented"),
)


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One case."""

    commit: str
    case: Case
    planned: dict[str, int]
    planned_usd: float  # an hour
    planned_p95_s: float
    simulated_p95_s: float  # of what is planned
    best: dict[str, int] | None  # None: no pool is within the target
    best_usd: float | None
    best_p95_s: float | None
    tried: int  # pools


def measure(quick: bool) -> Iterator[Row]:
    at_commit = commit()
    for case in CASES[:2] if quick else CASES:
        yield _row(case, at_commit)


def _row(case: Case, at_commit: str) -> Row:
    known, flows = load_catalogue(), workflows(case.workload)
    asked = HardwareQuestion(
        workflows=observed_calls(flows),
        workflows_per_s=case.per_s,
        offer=HardwareOffer(
            devices=[known.accelerator_named(name) for name in case.devices],
            model=known.model_named(case.model),
            terms=msgspec.convert({"prices": case.prices}, Terms),
            most_devices=1,
            pairs=False,
        ),
        p95_s=case.p95_s,
    )
    found = plan_hardware(asked)
    kinds = {kind.name: kind for kind in instance_kinds(asked.offer, question_calls(asked)).kinds}

    def p95_s(counts: Mapping[str, int]) -> float:
        count = min(max(round(STAYS * case.per_s * case.p95_s), FEWEST), MOST)
        pool = SimulatedPool(counts=counts, kinds=tuple(kinds.values()))
        times = simulate_pool(pool, flows, case.per_s, count)
        return float(f"{times.p95_s:.5g}")

    best: tuple[dict[str, int], float, float] | None = None
    tried = 0
    for usd, counts in _pools(asked, kinds):
        tried += 1
        if (seconds := p95_s(counts)) <= NEAR * case.p95_s:
            best = counts, usd, seconds
            break
    counts = dict(found.chosen.pool.counts)
    return Row(
        commit=at_commit,
        case=case,
        planned=counts,
        planned_usd=round(found.chosen.usd_per_hour, 4),
        planned_p95_s=float(f"{found.chosen.prediction.p95_s:.5g}"),
        simulated_p95_s=p95_s(counts),
        best=best[0] if best else None,
        best_usd=round(best[1], 4) if best else None,
        best_p95_s=best[2] if best else None,
        tried=tried,
    )


def _pools(
    asked: HardwareQuestion, kinds: Mapping[str, InstanceKind]
) -> Sequence[tuple[float, dict[str, int]]]:
    """All that could do the work for long, cheapest first."""
    calls = call_kinds(asked.workflows, asked.workflows_per_s)

    def needed(kind: InstanceKind) -> float:
        """Instances, were there no others."""
        uses = [(each.per_s, use(kind.rates, each.shape, Phases.BOTH)) for each in calls]
        return sum(per_s * used.busy_s for per_s, used in uses if used is not None)

    need = {name: needed(kind) for name, kind in kinds.items()}
    pools: list[tuple[float, dict[str, int]]] = []
    for numbers in product(range(DEVICES + 1), repeat=len(kinds)):
        counts = {name: n for name, n in zip(kinds, numbers, strict=True) if n}
        share = sum(n / need[name] for name, n in counts.items())
        if sum(numbers) <= DEVICES and share * MOST_LOAD >= 1:
            pools.append((sum(kinds[name].usd_per_hour * n for name, n in counts.items()), counts))
    return sorted(pools, key=lambda each: each[0])


def section(rows: Sequence[Row]) -> str:
    good = sum(_over(row) is not None and (_over(row) or 0) <= AIM for row in rows)
    return (
        f"The planner pays at most {AIM - 1:.0%} more than the best in {good} of {len(rows)} "
        "cases.\n\n"
        + table(
            ["case", "target, s", "planned", "USD/h", "P95 there, s", "best", "USD/h", "over it"],
            (
                [
                    (
                        f"{row.case.workload}, {row.case.model}, {row.case.per_s:g}/s on "
                        f"{', '.join(row.case.devices)}"
                    ),
                    f"{row.case.p95_s:g}",
                    _told(row.planned),
                    f"{row.planned_usd:.2f}",
                    f"{row.simulated_p95_s:.3g}",
                    _told(row.best) if row.best else "none",
                    f"{row.best_usd:.2f}" if row.best_usd is not None else "",
                    f"{over - 1:+.0%}" if (over := _over(row)) is not None else "",
                ]
                for row in rows
            ),
        )
    )


def _told(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} x {name}" for name, count in sorted(counts.items()))


def _over(row: Row) -> float | None:
    return None if row.best_usd is None else row.planned_usd / row.best_usd


def figures(rows: Sequence[Row]) -> list[Figure]:
    overs = [over for row in rows if (over := _over(row)) is not None]
    return [
        Figure(
            name="cost of the planned pool over the cheapest that simulation finds",
            value=round(max(overs), 3) if overs else None,
            unit="ratio, the worst of ten cases",
            target=AIM,
        )
    ]


STUDY = Study(
    title="The planner's choice beside trying all pools",
    row=Row,
    measure=measure,
    section=section,
    figures=figures,
)

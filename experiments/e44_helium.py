"""Helium's workflows in one batch: what a declared flow gains over the same calls undeclared.

Its five primitives and Trading (88 operators), on two simulated engines of 65,536 tokens, so that
contexts of a batch do not all fit. `undeclared kairos`: the same calls as agents would make them,
all rows at once, none merged, by Kairos's own order and placement. `langgraph-like`: the same,
first come, first served, to the engine with most memory free. `parrot-like`: to the engine that has
most of the prompt. Expected: never more than 1 % behind undeclared Kairos, and ahead of the others
where rows share work or contexts do not fit. What bounds it: where all fits, order brings nothing,
and there may be nothing to merge.

Results of an earlier day are not modelled here, so Trading is a first day.
"""

from collections.abc import Iterator, Sequence

import msgspec

from bench.report import Figure
from experiments.claim import Study, table
from experiments.flow_workloads import PRIMITIVES, FlowWorkload, trading
from experiments.report import commit
from kairos.confidence import Interval, ratio
from kairos.dispatcher.placements import PLACEMENTS
from kairos.flow.functions import Functions
from kairos.plan.passes.order import KV_TOKENS
from kairos.plan.pipeline import Passes
from kairos.scheduler.policies import POLICIES
from kairos.sim.engine.profiles import profile
from kairos.sim.flow_simulation import PoolOptions, SimulatedFlow, simulate_flow

KAIROS, UNDECLARED = "kairos", "undeclared kairos"
SYSTEMS = {  # passes on, policy, placement
    KAIROS: (True, "kairos", "kairos"),
    UNDECLARED: (False, "kairos", "kairos"),
    "langgraph-like": (False, "fcfs", "least-kv"),
    "parrot-like": (False, "fcfs", "affinity"),
}
ROWS, TRADING_ROWS, SEEDS = 60, 15, 5
QUICK_ROWS, QUICK_SEEDS = 6, 2
BEHIND = 0.99  # of undeclared Kairos's time at least


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One batch."""

    commit: str
    workload: str
    system: str
    seed: int
    s: float
    cached_share: float
    calls: int


def measure(quick: bool) -> Iterator[Row]:
    at_commit = commit()
    made = [make() for make in (*PRIMITIVES, trading)]
    for workload in made[:2] if quick else made:
        count = TRADING_ROWS if workload.name == "trading" else ROWS
        for seed in range(1, (QUICK_SEEDS if quick else SEEDS) + 1):
            for system in SYSTEMS:
                ran = run(workload, system, QUICK_ROWS if quick else count, seed)
                asked = ran.prompt_tokens_cached + ran.prompt_tokens_computed
                yield Row(
                    commit=at_commit,
                    workload=workload.name,
                    system=system,
                    seed=seed,
                    s=ran.simulated_s,
                    cached_share=ran.prompt_tokens_cached / asked,
                    calls=ran.figures.calls,
                )


def run(workload: FlowWorkload, system: str, count: int, seed: int) -> SimulatedFlow:
    declared, policy, placement = SYSTEMS[system]
    passes = Passes() if declared else Passes(prune=False, cse=False, cached=False, order=False)
    pool = PoolOptions(
        instances=2,
        profile=msgspec.structs.replace(profile("h200-llama3-8b"), kv_tokens=KV_TOKENS),
        policy=POLICIES[policy],
        placement=PLACEMENTS[placement],
    )
    table_ = iter(workload.rows(count, seed))
    return simulate_flow(workload.flow.compile(passes), table_, Functions(), pool)


def speedup(rows: Sequence[Row], workload: str, system: str) -> Interval | None:
    """Seconds of the system over Kairos's, seed by seed."""
    took = {(row.seed, row.system): row.s for row in rows if row.workload == workload}
    seeds = sorted({seed for seed, _ in took})
    return ratio([took[each, system] for each in seeds], [took[each, KAIROS] for each in seeds])


def section(rows: Sequence[Row]) -> str:
    lines = []
    for workload in dict.fromkeys(row.workload for row in rows):
        own = [row for row in rows if row.workload == workload and row.system == KAIROS]
        mean_s = sum(row.s for row in own) / len(own)
        found = sum(row.cached_share for row in own) / len(own)
        others = [_shown(speedup(rows, workload, each)) for each in SYSTEMS if each != KAIROS]
        lines.append([workload, f"{mean_s:.2f} ({found:.2f})", *others])
    header = ["workflow", "Kairos, s (cached share)", *(each for each in SYSTEMS if each != KAIROS)]
    return "Seconds of others over Kairos's, with 95 % intervals.\n\n" + table(header, lines)


def _shown(of: Interval | None) -> str:
    return "" if of is None else f"{of.mean:.2f} [{of.low:.2f}, {of.high:.2f}]"


def figures(rows: Sequence[Row]) -> list[Figure]:
    names = list(dict.fromkeys(row.workload for row in rows))
    over = [found.mean for each in names if (found := speedup(rows, each, UNDECLARED))]
    graph = speedup(rows, "trading", "langgraph-like")
    return [
        Figure(
            name="e44 undeclared Kairos, over declared: at worst",
            value=round(min(over), 3) if over else None,
            unit="times as long, of Helium's workflows",
            target=BEHIND,
            better="higher",
        ),
        Figure(
            name="e44 LangGraph-like, over Kairos: Trading, first day",
            value=round(graph.mean, 3) if graph else None,
            unit="times as long",
            target=1.5,
            better="higher",
        ),
    ]


STUDY = Study(
    title="Helium's workflows, declared and not",
    row=Row,
    measure=measure,
    section=section,
    figures=figures,
)

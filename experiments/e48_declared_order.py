"""Calls of declared flows: how often the next of two is the right one, and what that brings.

Pairs are judged as in figure 16 of the Kairos paper (`e16_ordering`, 7.4): all calls of half of the
rows are pending at once, and the truth is the longest path of service times from each call on. The
other half of the rows is learnt from, whether the plan is declared or not. Each of Helium's
primitives is alone, and Trading; and all are mixed, where flows that differ in shape compete.

Latency is of rows that arrive, Poisson, at the rate at which two simulated engines of eight
sequences each complete them when all are there at once: there is a queue, so order matters.

Expected: of declared calls at least 0.03 more of the mix's pairs right than of learnt ones, and no
flow's rows slower in the mean by more than chance. A chain is learnt as well as it is declared; of
calls that go side by side, what is left of the others is seen in the plan alone.
"""

from collections.abc import Iterator, Sequence
from itertools import chain
from random import Random
from statistics import fmean

import msgspec

from bench.report import Figure
from experiments.claim import Study, table
from experiments.flow_arrivals import complete_per_s, mean_latency_s
from experiments.flow_recordings import declared, recorded
from experiments.flow_systems import Undeclared
from experiments.flow_workloads import PRIMITIVES, FlowWorkload, trading
from experiments.grids import around
from experiments.playing import Played
from experiments.references import see
from experiments.report import commit
from experiments.trial import judge, policy_orders
from kairos.core import PlanDeclared
from kairos.simulate.flow_client import FlowClient

AIM, SLOWER = 0.03, 1.01
MIX, POLICY = "mix", "kairos"
SEEDS, QUICK_SEEDS = 5, 1
ROWS, TRADING_ROWS, QUICK_ROWS = 30, 8, 6
ARRIVING, TRADING_ARRIVING, QUICK_ARRIVING = 60, 12, 8


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A flow, or the mix of all. Shares are of pairs of different operators, 0 to 1."""

    commit: str
    workload: str
    seed: int
    learnt: float
    declared: float
    undeclared_s: float | None = None  # of a row, in the mean; of the mix it is not measured
    declared_s: float | None = None


def measure(quick: bool) -> Iterator[Row]:
    flows = [make() for make in (PRIMITIVES[:2] if quick else (*PRIMITIVES, trading))]
    rates = {each.name: complete_per_s(each, _arriving(each, quick)) for each in flows}
    for seed in range(1, (QUICK_SEEDS if quick else SEEDS) + 1):
        rows = {each.name: recorded(each, _recorded(each, quick), seed) for each in flows}
        for each in flows:
            count, rate = _arriving(each, quick), rates[each.name]
            row = _judged(each.name, [rows[each.name]], [declared(each)], seed)
            yield msgspec.structs.replace(
                row,
                undeclared_s=mean_latency_s(each, Undeclared, count, rate, seed),
                declared_s=mean_latency_s(each, FlowClient, count, rate, seed),
            )
        yield _judged(MIX, [*rows.values()], [declared(each) for each in flows], seed)


def _recorded(workload: FlowWorkload, quick: bool) -> int:
    return QUICK_ROWS if quick else TRADING_ROWS if workload.name == "trading" else ROWS


def _arriving(workload: FlowWorkload, quick: bool) -> int:
    return QUICK_ARRIVING if quick else TRADING_ARRIVING if workload.name == "trading" else ARRIVING


def _judged(
    name: str, rows: Sequence[Sequence[Played]], plans: Sequence[PlanDeclared], seed: int
) -> Row:
    learnt = list(chain.from_iterable(each[::2] for each in rows))
    tested = list(chain.from_iterable(each[1::2] for each in rows))
    Random(seed).shuffle(learnt)  # noqa: S311  (no secret)
    seen = [call for each in tested for call in see(each)]
    shares = []
    for told in ((), plans):
        orders = policy_orders(learnt, tested, seen, Random(seed), told)  # noqa: S311
        (judged,) = judge(name, seed, {POLICY: orders[POLICY]}, seen)
        assert judged.different_agents is not None
        shares.append(judged.different_agents)
    return Row(commit=commit(), workload=name, seed=seed, learnt=shares[0], declared=shares[1])


def section(rows: Sequence[Row]) -> str:
    lines = []
    for name in dict.fromkeys(each.workload for each in rows):
        of = [each for each in rows if each.workload == name]
        times = [t for each in of if (t := _times(each)) is not None]
        gains = around([each.declared - each.learnt for each in of])
        lines.append(
            [
                name,
                f"{fmean(each.learnt for each in of):.3f}",
                f"{fmean(each.declared for each in of):.3f}",
                f"{gains.mean:+.3f} [{gains.low:+.3f}, {gains.high:+.3f}]",
                f"{fmean(times):.3f} ({max(times):.3f})" if times else "",
            ]
        )
    return table(["", "learnt", "declared", "gain", "mean latency, times (worst seed)"], lines)


def _times(row: Row) -> float | None:
    if row.declared_s is None or row.undeclared_s is None:
        return None
    return row.declared_s / row.undeclared_s


def figures(rows: Sequence[Row]) -> list[Figure]:
    mixed = [each.declared - each.learnt for each in rows if each.workload == MIX]
    flows = dict.fromkeys(each.workload for each in rows if each.workload != MIX)
    slowest = {
        name: fmean(t for each in rows if each.workload == name and (t := _times(each)))
        for name in flows
    }
    return [
        Figure(
            name="ordering accuracy of declared flows on their mix, declared minus learnt",
            value=round(fmean(mixed), 4),
            unit="share of pairs",
            target=AIM,
            better="higher",
            detail={"by seed": mixed},
        ),
        Figure(
            name="mean latency of the flow that declaring serves worst, over undeclared",
            value=round(max(slowest.values()), 4),
            unit="times",
            target=SLOWER,
            better="lower",
            detail={"by flow": slowest},
        ),
    ]


STUDY = Study(
    title="The order of declared flows' calls",
    row=Row,
    measure=measure,
    section=section,
    figures=figures,
)

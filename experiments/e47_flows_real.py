"""Declared workflows on two real vLLM: whether what simulations say of them holds there.

Flows of `e44_helium` and `e42_switching`, in a smaller form, on vLLM for CPUs with models of random
weights, a core each: an engine ends its answers at the longest that is allowed, or near that. What
is confirmed is the direction, no size: these engines take a call's overhead for long, and prompts
for short, where a GPU does the contrary.

- One model on both engines (`map-reduce`, `parallel`, whose contexts do not fit, and `trading`, 88
  operators): Kairos, and the same flow undeclared, LangGraph-like, Parrot-like and operator by
  operator, as `flow_systems.py` says, before the same engines. One call at a time is of fewer rows
  and one engine; all are compared by the time of a row.
- Two models, two devices that have one at a time, engines started and stopped by Kairos (`W3`, as
  `switching.py` has it): placed by Kairos, and operator by operator on all devices. Loads count.

All systems of a repetition have the same rows and run in a random order, with empty prefix caches
and no results of earlier runs. The executor is the same for all, in this process, before a `kairos
serve` of the system's own; so they differ in what is declared, in order and placement alone.
`kairos in one process` has balancer and executor in one, as `kairos run --engine` does.

Answers of these models are all of one length, so calls come in waves, and how the last waves fall
on the two engines is some per cent of the time: `busiest engine` says how many calls one had. Runs
that do not say that are of November 25, when Kairos was in one process and the others were not.

A model of random weights says the same to prompts that differ, so calls of later operators become
equal, and Kairos merges more than a real model would let it: `calls` tells how many, and a lead
that comes of that is none of the plan's.

Expected: never behind one call at a time, operator by operator, or loads for each operator; beside
undeclared Kairos and those like LangGraph and Parrot ahead where rows share work, and otherwise
even. `simulated`: the same flow and rows in simulated engines with the profile that
`kairos calibrate` made of these, or with these loads.

`python -m experiments.flows_vllm` measures this (`experiments/flows_vllm.py`).
"""

from collections.abc import Iterator, Sequence
from statistics import fmean

import msgspec

from bench.report import Figure
from experiments.claim import Study, table
from experiments.flow_systems import KAIROS, LANGGRAPH, OPWISE, PARROT, UNDECLARED
from kairos.core import Interval, ratio_interval

ONE, TOPOLOGICAL = "one at a time", "topological"
IN_ONE_PROCESS = "kairos in one process"
DECLARED = (KAIROS, IN_ONE_PROCESS)
POOL_SYSTEMS = (*DECLARED, UNDECLARED, LANGGRAPH, PARROT, OPWISE, ONE)
DEVICE_SYSTEMS = (KAIROS, TOPOLOGICAL)
REPETITIONS = 3
BEHIND = 1.0


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A run. `s`: from the first call, or load, to the end of the last; `simulated_s`: likewise, in
    the simulator; `cached_share`: of prompts' tokens; `others`: cores that neither this process nor
    the engines nor Kairos had meanwhile, on average; None where engines ended; `busiest`: of calls
    the share of the engine that had most; None where that was not looked at."""

    commit: str
    date: str
    case: str
    system: str
    repetition: int
    rows: int
    s: float
    simulated_s: float
    calls: int
    loads: int
    cached_share: float
    others: float | None
    busiest: float | None = None


def row_times(
    rows: Sequence[Row], system: str, *, simulated: bool = False
) -> tuple[list[float], list[float]]:
    """Seconds a row of the system and of Kairos, of one case, in repetitions that have both."""
    took = {
        (row.repetition, row.system): (row.simulated_s if simulated else row.s) / row.rows
        for row in rows
    }
    whole = sorted(n for n, each in took if each == KAIROS and (n, system) in took)
    return [took[n, system] for n in whole], [took[n, KAIROS] for n in whole]


def times_as_long(rows: Sequence[Row], system: str) -> Interval | None:
    """A row's time over Kairos's. None for fewer than two repetitions."""
    return ratio_interval(*row_times(rows, system))


def by_case(rows: Sequence[Row]) -> Iterator[tuple[str, list[Row]]]:
    for case in dict.fromkeys(row.case for row in rows):
        yield case, [row for row in rows if row.case == case]


def section(rows: Sequence[Row]) -> str:
    lines = [
        [
            f"{case}, {system}",
            f"{len(own)} x {own[0].rows}",
            f"{fmean(row.s for row in own):.1f}",
            f"{fmean(row.calls for row in own):.0f}",
            f"{fmean(row.loads for row in own):.1f}",
            f"{100 * fmean(row.cached_share for row in own):.0f} %",
            _busiest(own),
            _shown(*row_times(of, system)),
            _shown(*row_times(of, system, simulated=True)),
        ]
        for case, of in by_case(rows)
        for system in dict.fromkeys((*POOL_SYSTEMS, *DEVICE_SYSTEMS))
        if (own := [row for row in of if row.system == system])
    ]
    header = ["", "runs x rows", "s", "calls", "loads", "cached", "busiest engine"]
    header += ["times as long", "simulated"]
    busy = [row.others for row in rows if row.others is not None]
    made = ", ".join(sorted({f"commit {row.commit}, {row.date}" for row in rows}))
    return (
        f"Times as long as Kairos, a row, with 95 % intervals.\n\n{table(header, lines)}\n\n"
        f"Of {made}."
        + (f" What else ran on the machine took up to {max(busy):.2f} cores." if busy else "")
    )


def _busiest(rows: Sequence[Row]) -> str:
    known = [row.busiest for row in rows if row.busiest is not None]
    return f"{100 * fmean(known):.0f} %" if known else ""


def _shown(theirs: Sequence[float], ours: Sequence[float]) -> str:
    if not ours:
        return ""
    times = f"{fmean(theirs) / fmean(ours):.2f}"
    around = ratio_interval(theirs, ours)
    return times if around is None else f"{times} [{around.low:.2f}, {around.high:.2f}]"


def figures(rows: Sequence[Row]) -> list[Figure]:
    """Of each case that has all repetitions: what comes nearest to Kairos, or is ahead of it."""
    made = []
    for case, of in by_case(rows):
        others = [each for each in dict.fromkeys(row.system for row in of) if each not in DECLARED]
        found = {each: times_as_long(of, each) for each in others}
        known = {name: round(each.mean, 3) for name, each in found.items() if each is not None}
        if known and sum(row.system == KAIROS for row in of) >= REPETITIONS:
            made.append(
                Figure(
                    name=f"flows on two real vLLM, {case}: others over Kairos, at worst",
                    value=min(known.values()),
                    unit="times as long",
                    target=BEHIND,
                    better="higher",
                    detail=known,
                )
            )
    return made


STUDY = Study(
    title="Declared workflows on two real vLLM",
    row=Row,
    measure=None,
    section=section,
    figures=figures,
)

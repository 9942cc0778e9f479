"""Constants that steer decisions, each halved and doubled, on workloads that none was chosen on.

Workloads that no constant was tried on, on two instances whose memory is the limit: QA, RG and CG
with their other inputs (`e23_inputs.py`); and the recorded coding sessions of 71 to 100 calls,
which the workload `claude_code` leaves out. Expected: no constant decides by itself, so half or
twice of it costs little; where nothing at all changes, the code could do without.

Found: as expected. No change makes the mean more than 1 % shorter. Twice the memory margin (four
standard deviations) costs 4 %. Half of the former guard's bound on being overtaken, twice the calls
that are looked at behind one that does not fit, and memory kept for everything that may come back
cost 1 to 2 %. Some constants change nothing: neither workload is long enough, or unequal enough, to
reach them. Few calls wait in the long sessions, so they say little of the order. Ratios are of the
mean end-to-end latency, changed over unchanged, on the same workflows; 1.00 is no difference.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import cache
from statistics import fmean

import msgspec

from experiments.claim import Study, table
from experiments.constants import SUBJECTS, Constant
from experiments.grids import around
from experiments.recordings import data_directory
from experiments.report import commit
from experiments.workload import (
    MEMORY_BINDS,
    MOST_CALLS,
    MOST_CONTEXT,
    Workload,
    longest,
    prompt_tokens,
    with_gaps,
)
from kairos.core import PLACEMENTS, POLICIES
from kairos.engines import load_profile
from kairos.simulate import Workflow, World, draw_arrivals, draw_submissions, load_workflows
from kairos.simulate.plan import instance_id
from kairos.simulate.workload.submissions import scaled
from kairos.simulate.workload.workflows import Submission

INSTANCES = 2
OTHER_INPUTS, LONG_SESSIONS = "other inputs", "long sessions"
RATES_PER_S = {OTHER_INPUTS: 1.6, LONG_SESSIONS: 1.0}
COUNTS = {OTHER_INPUTS: 300, LONG_SESSIONS: 28}
SEEDS = {OTHER_INPUTS: 3, LONG_SESSIONS: 2}
MOST_CALLS_OF_LONG = 100
WAYS = ("half", "twice")
NOTICED = 0.01  # of the mean: less is noise of so few runs
FEW = 2  # seeds: their interval says little


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One run. `constant`: SUBJECT: NAME; None: all are as they are."""

    commit: str
    workload: str
    seed: int
    constant: str | None
    way: str | None
    value: str | None
    calls: int
    e2e_mean_s: float
    e2e_p99_s: float
    preemptions_per_call: float
    cached_prompt_share: float
    queued_share: float
    cpu_s: float


def measure(quick: bool) -> Iterator[Row]:
    for workload, seeds in SEEDS.items():
        for seed in range(1, 2 if quick else seeds + 1):
            yield _run(workload, seed)
            for name, constant in named().items():
                for way in WAYS:
                    yield _run(workload, seed, (name, constant, way))


def named() -> dict[str, Constant]:
    return {
        f"{subject}: {constant.name}": constant
        for subject, constants in SUBJECTS.items()
        for constant in constants
    }


def _run(workload: str, seed: int, change: tuple[str, Constant, str] | None = None) -> Row:
    name, constant, way = change or (None, None, None)
    value = constant.changed_to(way) if constant is not None and way is not None else None
    began = time.process_time()
    with constant.set_to(value) if constant is not None else nullcontext():
        engines = {instance_id(number): load_profile(MEMORY_BINDS) for number in range(INSTANCES)}
        world = World(
            planned(workload, seed),
            engines,
            POLICIES["kairos"],
            PLACEMENTS["kairos"],
        )
        world.run()
    record = world.metrics.record()
    return Row(
        commit=commit(),
        workload=workload,
        seed=seed,
        constant=name,
        way=way,
        value=None if value is None else str(value),
        calls=record["calls"],
        e2e_mean_s=round(record["e2e_s"]["mean"], 4),
        e2e_p99_s=round(record["e2e_s"]["p99"], 3),
        preemptions_per_call=round(record["preemptions_per_call"], 5),
        cached_prompt_share=round(record["cached_prompt_share"], 5),
        queued_share=round(record["queued_share"], 4),
        cpu_s=round(time.process_time() - began, 1),
    )


def planned(workload: str, seed: int) -> list[Submission]:
    rate_per_s, count = RATES_PER_S[workload], COUNTS[workload]
    if workload == LONG_SESSIONS:
        at_us = draw_arrivals("poisson", count, rate_per_s, seed)
        return draw_submissions(_long_sessions(), at_us, seed)
    apps = (("qa-ss", 3.0), ("rg-nq", 2.0), ("cg-mbpp", 1.0))
    mixed = Workload(name=workload, apps=apps, workflows=count, pool=INSTANCES)
    return mixed.submissions(rate_per_s, count, seed)


@cache
def _long_sessions() -> Sequence[Workflow]:
    """Scaled as `claude_code` is."""
    within = [
        each
        for each in load_workflows(data_directory() / "agentic_workflows.jsonl.gz")
        if each.app == "claude_code"
        and longest(each) <= MOST_CONTEXT
        and MOST_CALLS < len(each.calls) <= MOST_CALLS_OF_LONG
    ]
    shorter = scaled(within, load_profile(MEMORY_BINDS).max_model_len)
    factor = sum(map(prompt_tokens, shorter)) / sum(map(prompt_tokens, within))
    return [with_gaps(each, factor) for each in shorter]


def section(rows: Sequence[Row]) -> str:
    ratios = ratios_of(rows)
    parts = [_summary(ratios, rows)]
    for subject, constants in SUBJECTS.items():
        lines = [
            [f"`{constant.name}`", _shown(constant.value), constant.unit]
            + [
                _ratio(ratios.get((f"{subject}: {constant.name}", way, workload), ()))
                for workload in RATES_PER_S
                for way in WAYS
            ]
            for constant in constants
        ]
        header = [
            subject,
            "today",
            "unit",
            *(f"{workload}: {way}" for workload in RATES_PER_S for way in WAYS),
        ]
        parts.append(table(header, lines))
    parts.append(
        "What each does, and why it is so: [Constants](../docs/reference/constants.md). "
        "Means over the seeds, with paired 95 % intervals where there are several; `=`: the same "
        "to the digit."
    )
    return "\n\n".join(parts)


Ratios = Mapping[tuple[str, str, str], Sequence[float]]  # (constant, way, workload) -> by seed


def ratios_of(rows: Sequence[Row]) -> Ratios:
    base = {(row.workload, row.seed): row for row in rows if row.constant is None}
    found: dict[tuple[str, str, str], list[float]] = {}
    for row in rows:
        if row.constant is not None and row.way is not None:
            same = base[row.workload, row.seed]
            place = found.setdefault((row.constant, row.way, row.workload), [])
            place.append(row.e2e_mean_s / same.e2e_mean_s)
    return found


def _summary(ratios: Ratios, rows: Sequence[Row]) -> str:
    means = {place: fmean(values) for place, values in ratios.items()}
    names = list(dict.fromkeys(name for name, _, _ in ratios))
    missing = [name for name in named() if name not in names]
    idle = [name for name in names if all(_is_same(v) for p, v in ratios.items() if p[0] == name)]
    better = [place for place, mean in means.items() if mean < 1 - NOTICED]
    worse = [place for place, mean in means.items() if mean > 1 + NOTICED]
    best = min(means, key=lambda place: means[place])
    worst = max(means, key=lambda place: means[place])
    minutes = sum(row.cpu_s for row in rows) / 60
    said = (
        f"{len(names)} constants, {len(rows)} runs, {minutes:.0f} minutes of one core. Of "
        f"{len(means)} changes {len(worse)} made the mean more than {NOTICED:.0%} longer, and "
        f"{len(better)} more than that shorter. The worst is `{worst[0]}`, {worst[1]}, on "
        f"{worst[2]} ({means[worst]:.3f}); the best is `{best[0]}`, {best[1]}, on {best[2]} "
        f"({means[best]:.3f})."
    )
    if idle:
        listed = ", ".join(f"`{name}`" for name in idle)
        said += f"\n\nNothing at all changes with {listed}: neither workload reaches them."
    if missing:
        found = named()
        where = (f"`{name}` ({found[name].evidence or 'nowhere'})" for name in missing)
        said += f"\n\nNot measured here: {', '.join(where)}."
    return said


def _is_same(values: Sequence[float]) -> bool:
    return all(value == 1 for value in values)


def _ratio(values: Sequence[float]) -> str:
    if not values:
        return ""
    if _is_same(values):
        return "="
    found = around(values)
    if len(values) == 1:
        return f"{found.mean:.3f}"
    text = f"{found.mean:.3f} [{found.low:.3f}, {found.high:.3f}]"
    is_sure = len(values) > FEW and not found.low <= 1 <= found.high
    is_clear = is_sure and abs(found.mean - 1) > NOTICED
    return f"**{text}**" if is_clear else text


def _shown(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


STUDY = Study(
    title="Constants, halved and doubled",
    row=Row,
    measure=measure,
    section=section,
)

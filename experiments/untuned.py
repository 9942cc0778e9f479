"""A run of one of ten settings that nothing was tuned on, and rows that are still good.

Workflows are of thirteen published agent systems (`published_agents.py`). A refused call is tried
again twice, as clients do; a workflow that failed all the same has no time, and is counted.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import msgspec
from msgspec.structs import asdict, replace

from experiments.baselines import DEFAULT, made
from experiments.former_guard import FormerGuard
from experiments.published_agents import workflows
from experiments.report import commit
from experiments.workload import lesser
from kairos.core import SECOND, Dispatch, EngineProfile, MakeGuard, PatienceGuard, Record
from kairos.core.scheduler.guard import NO_GUARD
from kairos.engines import load_profile
from kairos.simulate import World, draw_arrivals
from kairos.simulate.plan import instance_id
from kairos.simulate.simulation import alone_us
from kairos.simulate.users import TENANT
from kairos.simulate.workload.submissions import in_order
from kairos.simulate.workload.workflows import Submission

LARGE, SMALL, FAST = "a40-llama2-13b", "a40-llama3-8b", "h200-llama3-8b"
NONE, FORMER, TODAY = "none", "former", "patience"
GUARDS: Mapping[str, MakeGuard] = {NONE: NO_GUARD, FORMER: FormerGuard, TODAY: PatienceGuard}


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    profile: str = LARGE
    instances: int = 4
    unequal: bool = False  # half of the instances have half of the speed and of the memory
    rate_per_s: float
    arrivals: str = "azure-conv"
    workflows: int = 160
    context: int = 4096
    most: tuple[str, float] | None = None  # a system that makes such a share of all


SETTINGS: Mapping[str, Setting] = {
    "base": Setting(rate_per_s=0.15),
    "heavy": Setting(rate_per_s=0.30),
    "bursty": Setting(rate_per_s=0.15, arrivals="gamma:4"),
    "code": Setting(rate_per_s=0.15, arrivals="azure-code"),
    "8b": Setting(profile=SMALL, instances=1, rate_per_s=0.30, context=8192),
    "h200": Setting(profile=FAST, instances=1, rate_per_s=1.6, workflows=220, context=8192),
    "unequal": Setting(rate_per_s=0.11, unequal=True),
    "dom-long": Setting(rate_per_s=0.06, workflows=100, most=("graph-of-thought", 0.5)),
    "dom-short": Setting(rate_per_s=0.45, workflows=400, most=("react-fever", 0.8)),
    "dom-chat": Setting(rate_per_s=0.15, workflows=150, most=("chatdev", 2 / 3)),
}


class Run(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A run that is asked for; constants of today's guard are as its module has them if None."""

    setting: str
    guard: str
    seed: int
    policy: str = DEFAULT
    placement: str = DEFAULT
    patience: float | None = None
    grace_s: float | None = None
    share: float | None = None
    part: int = 1  # one in how many of the setting's workflows


class Row(Run, frozen=True, kw_only=True, omit_defaults=True):
    """A run with its results. Times are of workflows, end to end; slowdowns are times."""

    commit: str
    mean_s: float
    p95_s: float
    p99_s: float
    worst_slowdown: float
    p99_slowdown: float
    moved: float  # share of the calls that went for being overdue
    refused: float  # of the calls, once or more often
    failed: int  # workflows
    cpu_s: float

    @property
    def run(self) -> Run:
        return Run(**{name: getattr(self, name) for name in Run.__struct_fields__})


def planned(of: Setting, seed: int, count: int) -> list[Submission]:
    at_us = draw_arrivals(of.arrivals, count, of.rate_per_s, seed)
    drawn = workflows(count, seed, of.context, of.most)
    return in_order(
        Submission(at_us=at, workflow=each) for at, each in zip(at_us, drawn, strict=True)
    )


def pool(of: Setting) -> dict[str, EngineProfile]:
    engine = load_profile(of.profile)
    half = lesser(engine)
    return {
        instance_id(number): half if of.unequal and number >= of.instances // 2 else engine
        for number in range(of.instances)
    }


class _Reasons:
    """Why calls went."""

    def __init__(self) -> None:
        self.sent = self.moved = 0
        self.refused: set[str] = set()

    def __call__(self, record: Record) -> None:
        for command in record.commands:
            if isinstance(command, Dispatch):
                self.sent += 1
                self.moved += command.reason == "overdue"
            else:
                self.refused.add(command.request_id)


def kept_rows(path: Path) -> list[Row]:
    lines = path.read_bytes().splitlines() if path.exists() else []
    return [msgspec.json.decode(line, type=Row) for line in lines]


def measured(runs: Sequence[Run], kept: Iterable[Row] = (), processes: int = 1) -> Iterator[Row]:
    """Make the runs that are not kept.

    What differs in the seed alone is of one kind. The last kept row of each kind is measured again,
    and where it comes out different, so are all others of its kind.
    """
    known = {row.run: row for row in kept}
    last = {replace(each, seed=0): each for each in runs if each in known}
    first = [each for each in runs if each not in known or each in last.values()]
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        made_by = pool.map if processes > 1 else map
        new = dict(zip(first, made_by(measure, first), strict=True))
        changed = {kind for kind, each in last.items() if not _is_same(new[each], known[each])}
        again = [e for e in runs if e not in new and replace(e, seed=0) in changed]
        new |= dict(zip(again, made_by(measure, again), strict=True))
    for each in runs:
        is_kept = each in known and replace(each, seed=0) not in changed
        yield known[each] if is_kept else new[each]


def _is_same(one: Row, other: Row) -> bool:
    return replace(one, commit="", cpu_s=0.0) == replace(other, commit="", cpu_s=0.0)


def measure(run: Run) -> Row:
    of = SETTINGS[run.setting]
    submitted, reasons = planned(of, run.seed, of.workflows // run.part), _Reasons()
    engine = load_profile(of.profile)
    policy, placement = made(run.policy, run.placement, submitted, engine)
    began = time.process_time()
    world = World(submitted, pool(of), policy, placement, observers=(reasons,), guard=_guard(run))
    world.run()
    took_s = time.process_time() - began
    alone = alone_us([each.workflow for each in submitted], engine)
    record = world.metrics.record(
        {(TENANT, each): us for each, us in alone.items()},
        {(TENANT, each) for each in world.users.failed},
    )
    times, slowdown = record["e2e_s"], record["slowdown"]
    return Row(
        **asdict(run),
        commit=commit(),
        mean_s=round(times["mean"], 2),
        p95_s=round(times["p95"], 1),
        p99_s=round(times["p99"], 1),
        worst_slowdown=round(slowdown["worst"], 2),
        p99_slowdown=round(slowdown["p99"], 2),
        moved=round(reasons.moved / reasons.sent, 4),
        refused=round(len(reasons.refused) / reasons.sent, 4),
        failed=len(world.users.failed),
        cpu_s=round(took_s, 1),
    )


def _guard(run: Run) -> MakeGuard:
    if (run.patience, run.grace_s, run.share) == (None, None, None):
        return GUARDS[run.guard]
    grace_us = None if run.grace_s is None else round(run.grace_s * SECOND)
    return partial(PatienceGuard, patience=run.patience, grace_us=grace_us, share=run.share)

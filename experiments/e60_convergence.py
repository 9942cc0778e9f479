"""Measure what the first workflows gain by waiting until agents' distributions have converged.

The paper uses an agent's distribution once it has converged. Ways: `today`, an agent's own from its
first workflow on; `gated`, that of its app (else of its tenant, of all) until its own has
converged; `shrunk`, its own mixed with that of its app, which counts as 16 calls. Under the default
policy and placement, and under the paper's. A cold start: the first 100 workflows of the paper's
applications, and of recorded ones. Mean and P99 of end-to-end times, as ratios to `today` on the
same seeds. Expected: within 1 % by the default, whose model of what is left shrinks agents by
itself. Left out: real engines. Four minutes of one core.

Found: to wait is worse, by up to 7 % in the mean under the paper's policy. Mixing gains nothing.
The default stays the same. So distributions are used at once.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import fmean

import msgspec
import numpy as np
from msgspec.structs import replace

import kairos
from bench.report import Figure
from experiments.claim import Study, table
from experiments.rates import rates
from experiments.report import commit
from experiments.runs import Cell, run
from kairos.core import (
    POOLED_AGENT,
    AgentProfile,
    Distribution,
    Request,
    WorkEstimates,
    agent_key_of,
)
from kairos.core.learnt import distribution

TODAY, GATED, SHRUNK = "today", "gated", "shrunk"
SYSTEMS = {"default": ("kairos", "kairos"), "the paper's": ("wasserstein-mds", "time-slot")}
WORKLOADS, FEW_WORKLOADS = ("colocated-13b", "colocated-8b", "tau_bench", "ag2"), ("colocated-13b",)
WORKFLOWS, FEW = 100, 20
SEEDS = tuple(range(1, 9))
PRIOR = 16  # calls that the app's distribution counts as
_WITHIN = 1.0


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A run. Times in seconds."""

    commit: str
    workload: str
    system: str
    way: str
    seed: int
    mean_s: float
    p99_s: float


def measure(quick: bool) -> Iterator[Row]:
    at_commit, known = commit(), rates()
    for workload in FEW_WORKLOADS if quick else WORKLOADS:
        for system, (policy, placement) in SYSTEMS.items():
            for seed in SEEDS[:1] if quick else SEEDS:
                cell = Cell(
                    workload=workload,
                    rate_per_s=known[workload]["high"].rate_per_s,
                    workflows=FEW if quick else WORKFLOWS,
                    policy=policy,
                    placement=placement,
                    seed=seed,
                )
                for way in (TODAY, GATED, SHRUNK):
                    with estimating(way):
                        e2e_s = run(cell).e2e_s
                    yield Row(
                        commit=at_commit,
                        workload=workload,
                        system=system,
                        way=way,
                        seed=seed,
                        mean_s=e2e_s["mean"] or 0.0,
                        p99_s=e2e_s["p99"] or 0.0,
                    )


@contextmanager
def estimating(way: str) -> Iterator[None]:
    """Estimate in this way in this process, until the block ends."""
    assert not kairos.is_compiled, "compiled code would see nothing of it"
    before = WorkEstimates.profile, WorkEstimates.rank
    if way != TODAY:
        WorkEstimates.profile = _gated if way == GATED else _shrunk  # type: ignore[method-assign]
        WorkEstimates.rank = (  # type: ignore[method-assign]
            _gated_rank if way == GATED else _shrunk_rank
        )
    try:
        yield
    finally:
        WorkEstimates.profile, WorkEstimates.rank = before  # type: ignore[method-assign]


def _keys(request: Request) -> list[tuple[str, str, str]]:
    """Return the keys of the agent, of its app, of its tenant, and of all."""
    tenant, app, agent = agent_key_of(request)
    pools = (
        (tenant, app, POOLED_AGENT),
        (tenant, POOLED_AGENT, POOLED_AGENT),
        (POOLED_AGENT, POOLED_AGENT, POOLED_AGENT),
    )
    return [(tenant, app, agent), *pools]


def _gated(self: WorkEstimates, request: Request) -> AgentProfile | None:
    known = [found for key in _keys(request) if (found := self._profiles.get(key)) is not None]
    converged = [each for each in known if each.converged]
    return next(iter(converged or known[-1:]), None)


def _gated_rank(self: WorkEstimates, request: Request) -> float | None:
    profile = _gated(self, request)
    return None if profile is None else self._ranks.get(profile.key)


def _shrunk(self: WorkEstimates, request: Request) -> AgentProfile | None:
    known = [found for key in _keys(request) if (found := self._profiles.get(key)) is not None]
    if len(known) < 2 or known[0].agent == POOLED_AGENT:
        return known[0] if known else None
    own, pool = known[:2]
    mixes: dict[tuple[int, int], tuple[AgentProfile, ...]] = self.__dict__.setdefault("_mixes", {})
    key = id(own), id(pool)
    if key not in mixes:  # both are held, so that no other gets their identity
        weight = own.samples / (own.samples + PRIOR)
        mixes[key] = own, pool, mixed(own, pool, weight)
    return mixes[key][2]


def _shrunk_rank(self: WorkEstimates, request: Request) -> float | None:
    own, app = (self._ranks.get(key) for key in _keys(request)[:2])
    profile = self._profiles.get(agent_key_of(request))
    if own is None or app is None or profile is None:
        return next((r for key in _keys(request) if (r := self._ranks.get(key)) is not None), None)
    return (profile.samples * own + PRIOR * app) / (profile.samples + PRIOR)


def mixed(own: AgentProfile, pool: AgentProfile, weight: float) -> AgentProfile:
    """Return the agent's profile with a `weight` of its own distributions, the rest the pool's."""
    return replace(
        own,
        call_us=_mix(own.call_us, pool.call_us, weight),
        remaining_us=_mix(own.remaining_us, pool.remaining_us, weight),
    )


def _mix(own: Distribution, pool: Distribution, weight: float) -> Distribution:
    count = round(64 * weight)
    parts = [np.repeat(own.quantiles, count), np.repeat(pool.quantiles, 64 - count)]
    return distribution(np.concatenate(parts))


def _ratios(rows: Sequence[Row], workload: str, system: str, way: str) -> tuple[float, float]:
    """Return how much longer it takes than today, in %: mean and P99."""
    of = {
        (row.way, row.seed): row for row in rows if (row.workload, row.system) == (workload, system)
    }
    pairs = [(row, of[TODAY, seed]) for (each, seed), row in of.items() if each == way]
    mean = fmean(own.mean_s / today.mean_s for own, today in pairs)
    return 100 * (mean - 1), 100 * (fmean(own.p99_s / today.p99_s for own, today in pairs) - 1)


def _settings(rows: Sequence[Row]) -> list[tuple[str, str]]:
    return list(dict.fromkeys((row.workload, row.system) for row in rows))


def section(rows: Sequence[Row]) -> str:
    lines = []
    for workload, system in _settings(rows):
        figures_of = [_ratios(rows, workload, system, way) for way in (GATED, SHRUNK)]
        lines.append(
            [f"{workload}, {system}", *(f"{each:+.1f}" for pair in figures_of for each in pair)]
        )
    return table(["against today, in %", "gated, mean", "P99", "shrunk, mean", "P99"], lines)


def figures(rows: Sequence[Row]) -> list[Figure]:
    best = min(
        _ratios(rows, workload, "default", way)[0]
        for workload, system in _settings(rows)
        if system == "default"
        for way in (GATED, SHRUNK)
    )
    name = "the first 100 workflows: today's mean above the best other way's, at worst"
    return [Figure(name=name, value=round(-best, 2), unit="%", target=_WITHIN)]


STUDY = Study(
    title="The first workflows, by what is used before distributions converge",
    row=Row,
    measure=measure,
    section=section,
    figures=figures,
)

"""Cells: a pool of 16 to 1,024 instances under one decider, or split into cells with one each.

The paper's three applications on instances that memory binds, bursty, at one rate per instance,
between its middle and its high load. A workflow stays in its cell. Who chooses: a gateway at random
(`random`, a hash of the workflow's id), or its tenant. One tenant per instance, of unequal sizes
(log-normal, sigma 0.5): bound to cells by their known sizes, the largest first (`tenant, by size`),
or by a hash (`tenant, by hash`). Learning is each cell's own. Counted are workflows after the first
quarter, when agents are known, and CPU time of decisions on all facts, per call.
Expected: random cells of 16 and more within 5 % of one decider in mean and P99, and cheaper
decisions; tenants bound to cells worse. Where there are more than `MOST_CELLS` cells, that many of
them are run, drawn. Pools from `LARGE` on have too few workflows to fill them: they show the cost
of a decision. Five minutes of one core.
"""

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from random import Random
from unittest import mock

import msgspec
import numpy as np

import kairos.simulate.world
from bench.report import Figure
from experiments.claim import Study, change, table
from experiments.grids import around
from experiments.report import commit
from experiments.workloads import WORKLOADS
from kairos.core import (
    PLACEMENTS,
    POLICIES,
    SECOND,
    Balancer,
    Clock,
    Dispatch,
    Engine,
    Event,
    Observer,
    Record,
    Refuse,
    Runtime,
)
from kairos.simulate import World
from kairos.simulate.plan import instance_id
from kairos.simulate.users import TENANT
from kairos.simulate.workload.workflows import Submission

WORKLOAD, RATE_PER_S = "colocated-13b", 0.55  # workflows for each instance
# Instances in all: seeds, and workflows for each instance.
SIZES = {16: (5, 60), 64: (1, 60), 256: (1, 15), 1024: (1, 15)}
CELLS = (8, 16, 32, 64)  # instances of each
TENANTS_CELLS = 16  # instances of each cell to which tenants are bound; 8 in the smallest pool
ONE, RANDOM, BY_SIZE, BY_HASH = "one decider", "random", "tenant, by size", "tenant, by hash"
LARGE = 256  # from here on cells of `TENANTS_CELLS` at random alone
MOST_CELLS = 8  # that are run, of a pool
_SIGMA = 0.5
_KNOWN_AFTER = 0.25  # of the workflows


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """Record of the run of one pool."""

    commit: str
    instances: int
    cell: int  # instances of each
    choice: str
    seed: int
    workflows: int  # of all cells
    cells_run: int
    counted: int  # workflows
    calls: int  # of the cells that were run
    failed: int
    mean_s: float
    p99_s: float
    queued_share: float
    decision_us: float  # CPU time of decisions per call
    cpu_s: float  # of the run


class TimedRuntime:
    """Runtime of a world that adds up the CPU time of decisions, without what follows from them.

    Only from outside: the compiled balancer takes no other `handle`.
    """

    def __init__(
        self, balancer: Balancer, port: Engine, clock: Clock, observers: tuple[Observer, ...]
    ) -> None:
        self.ns = 0
        self._port, self._observers = port, observers
        self._runtime = Runtime(balancer, self, clock, (self._observe,))

    def feed(self, event: Event) -> None:
        self.ns -= time.thread_time_ns()
        try:
            self._runtime.feed(event)
        finally:
            self.ns += time.thread_time_ns()

    def dispatch(self, command: Dispatch) -> None:
        with self._beside():
            self._port.dispatch(command)

    def refuse(self, command: Refuse) -> None:
        with self._beside():
            self._port.refuse(command)

    def _observe(self, record: Record) -> None:
        with self._beside():
            for each in self._observers:
                each(record)

    @contextmanager
    def _beside(self) -> Iterator[None]:
        self.ns += time.thread_time_ns()
        try:
            yield
        finally:
            self.ns -= time.thread_time_ns()


def run_timed(submitted: Sequence[Submission], instances: int) -> tuple[World, int]:
    """Run a pool. Return it, and the CPU time of its decisions in ns."""
    engine = WORKLOADS[WORKLOAD].engine()
    engines = {instance_id(number): engine for number in range(instances)}
    with mock.patch.object(kairos.simulate.world, "Runtime", TimedRuntime):
        world = World(submitted, engines, POLICIES["kairos"], PLACEMENTS["kairos"])
    world.run()
    runtime = world._runtime
    assert isinstance(runtime, TimedRuntime)
    return world, runtime.ns


def measure(quick: bool) -> Iterator[Row]:
    at_commit = commit()
    for instances, (seeds, each) in ({16: (2, 20)} if quick else SIZES).items():
        for seed in range(1, seeds + 1):
            submitted = _submissions(instances, each * instances, seed)
            for cell, choice in arms(instances):
                yield pool(at_commit, submitted, instances, cell, choice, seed)


def arms(instances: int) -> list[tuple[int, str]]:
    """Return the pools to compare, as (instances of a cell, choice)."""
    bound = min(TENANTS_CELLS, instances // 2)
    if instances >= LARGE:
        return [(instances, ONE), (bound, RANDOM)]
    return [
        (instances, ONE),
        *((cell, RANDOM) for cell in CELLS if cell < instances),
        (bound, BY_SIZE),
        (bound, BY_HASH),
    ]


def _submissions(instances: int, count: int, seed: int) -> list[Submission]:
    workload = WORKLOADS[WORKLOAD]
    return workload.submissions(RATE_PER_S * instances, count, seed)


def pool(
    at_commit: str,
    submitted: Sequence[Submission],
    instances: int,
    cell: int,
    choice: str,
    seed: int,
) -> Row:
    """Run a pool's cells, one after the other."""
    cells = instances // cell
    of_cell: defaultdict[int, list[Submission]] = defaultdict(list)
    for number, place in enumerate(placed(submitted, cells, instances, choice, seed)):
        of_cell[place].append(submitted[number])
    draw = Random(f"cells {seed}")  # noqa: S311
    run = sorted(draw.sample(range(cells), min(cells, MOST_CELLS)))
    known_at = submitted[round(_KNOWN_AFTER * len(submitted))].at_us
    took: list[float] = []
    queued_us = calls = failed = ns = 0
    began = time.process_time()
    for place in run:
        mine = of_cell[place]
        if not mine:
            continue
        world, took_ns = run_timed(mine, cell)
        failed += len(world.users.failed)
        calls += len(world.metrics.rows)
        ns += took_ns
        counted = {each.workflow.id: each.at_us for each in mine if each.at_us >= known_at}
        ended = world.metrics.ended
        took += [
            (ended[TENANT, name] - at) / SECOND
            for name, at in counted.items()
            if name not in world.users.failed
        ]
        queued_us += sum(
            row.queued_us for row in world.metrics.rows if row.request.workflow_id in counted
        )
    return Row(
        commit=at_commit,
        instances=instances,
        cell=cell,
        choice=choice,
        seed=seed,
        workflows=len(submitted),
        cells_run=len(run),
        counted=len(took),
        calls=calls,
        failed=failed,
        mean_s=round(float(np.mean(took)), 4),
        p99_s=round(float(np.percentile(took, 99)), 3),
        queued_share=round(queued_us / SECOND / sum(took), 4),
        decision_us=round(ns / 1e3 / calls, 1),
        cpu_s=round(time.process_time() - began, 1),
    )


def placed(
    submitted: Sequence[Submission], cells: int, tenants: int, choice: str, seed: int
) -> list[int]:
    """Return the cell of each workflow."""
    if cells == 1:
        return [0] * len(submitted)
    if choice == RANDOM:
        return [_hashed(f"{seed} {each.workflow.id}", cells) for each in submitted]
    draw = Random(f"tenants {seed}")  # noqa: S311
    sizes = [draw.lognormvariate(0, _SIGMA) for _ in range(tenants)]
    if choice == BY_HASH:
        cell_of = {number: _hashed(f"{seed} tenant {number}", cells) for number in range(tenants)}
    else:
        cell_of = _by_size(sizes, cells)
    return [cell_of[number] for number in draw.choices(range(tenants), sizes, k=len(submitted))]


def _by_size(sizes: Sequence[float], cells: int) -> dict[int, int]:
    """Return the cell of each tenant: the largest first, into the one that has least."""
    loads = [0.0] * cells
    cell_of: dict[int, int] = {}
    for number in sorted(range(len(sizes)), key=lambda each: -sizes[each]):
        cell_of[number] = loads.index(min(loads))
        loads[cell_of[number]] += sizes[number]
    return cell_of


def _hashed(text: str, cells: int) -> int:
    return int.from_bytes(sha256(text.encode()).digest()[:8]) % cells


def section(rows: Sequence[Row]) -> str:
    lines = []
    for instances in sorted({row.instances for row in rows}):
        of_size = [row for row in rows if row.instances == instances]
        whole = {row.seed: row for row in of_size if row.choice == ONE}
        for cell, choice in dict.fromkeys((row.cell, row.choice) for row in of_size):
            these = [row for row in of_size if (row.cell, row.choice) == (cell, choice)]
            lines.append([f"{instances:,}", *_line(these, whole, cell, choice)])
    header = ["instances", "cells", "mean, %", "P99, %", "decision, µs", "of one", "core"]
    return table(header, lines)


def _line(these: Sequence[Row], whole: Mapping[int, Row], cell: int, choice: str) -> list[str]:
    cost = around([row.decision_us for row in these]).mean
    share = 100 * around([_core_share(row) for row in these]).mean
    core = f"{share:.0f} %" if share >= 10 else f"{share:.2g} %"
    is_full, seeds = these[0].instances < LARGE, len(these)
    if choice == ONE:
        mean, p99 = (around([getattr(row, key) for row in these]) for key in ("mean_s", "p99_s"))
        times = (f"{mean.mean:.1f} s", f"{p99.mean:.0f} s") if is_full else ("", "")
        name = f"{choice}, {seeds} seeds" if seeds > 1 else choice
        return [name, *times, f"{cost:.0f}", "1", core]
    paired = [(row, whole[row.seed]) for row in these]
    of_mean = [ours.mean_s / one.mean_s for ours, one in paired]
    of_p99 = [ours.p99_s / one.p99_s for ours, one in paired]
    of_cost = around([ours.decision_us / one.decision_us for ours, one in paired])
    cells = these[0].instances // cell
    part = f", {these[0].cells_run} run" if these[0].cells_run < cells else ""
    times = (_changed(of_mean), _changed(of_p99)) if is_full else ("", "")
    of_one = f"{of_cost.mean:.2f}"
    if seeds > 1:
        of_one += f" [{of_cost.low:.2f}, {of_cost.high:.2f}]"
    return [f"{cells} x {cell}, {choice}{part}", *times, f"{cost:.0f}", of_one, core]


def _changed(ratios: Sequence[float]) -> str:
    """Return the change in %, with its interval if there are several seeds."""
    return change(around(ratios)) if len(ratios) > 1 else f"{100 * (ratios[0] - 1):+.1f}"


def _core_share(row: Row) -> float:
    """Return the share of one core that the decider of one cell takes at this rate."""
    cells = row.instances // row.cell
    calls = row.calls * cells / row.cells_run / row.workflows
    return row.decision_us / SECOND * calls * RATE_PER_S * row.cell


def figures(rows: Sequence[Row]) -> list[Figure]:
    found = []
    for cell in CELLS:
        mine = [row for row in rows if (row.cell, row.choice) == (cell, RANDOM)]
        ones = {(row.instances, row.seed): row.mean_s for row in rows if row.choice == ONE}
        mine = [row for row in mine if row.instances < LARGE]
        gaps = [100 * (row.mean_s / ones[row.instances, row.seed] - 1) for row in mine]
        if gaps:
            name = f"random cells of {cell} instances over one decider: mean end to end"
            value = round(around(gaps).mean, 2)
            found.append(Figure(name=name, value=value, unit=f"%, {len(gaps)} runs", target=5.0))
    return found


STUDY = Study(
    title="Cells: one decider or many",
    row=Row,
    measure=measure,
    section=section,
    figures=figures,
)

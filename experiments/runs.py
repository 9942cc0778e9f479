"""Simulated runs: one cell of a grid at a time, in processes of their own, each kept."""

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache
from hashlib import sha256
from multiprocessing import get_context
from pathlib import Path

import msgspec

from bench.code import ROOT, digest_of
from experiments.baselines import made
from experiments.report import write_rows
from experiments.workloads import WORKLOADS
from kairos.core import SECOND
from kairos.simulate import World
from kairos.simulate.users import TENANT

# What decides what comes of a run. The rest (HTTP, Kafka, demos) may change beneath the rows.
_PACKAGES = ("core", "simulate")
_HERE = (
    "baseline_placements",
    "baseline_policies",
    "baselines",
    "oracle",
    "program_scheduling",
    "runs",
    "workload",
)

Spread = dict[str, float | None]


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """A run to make."""

    workload: str
    rate_per_s: float
    workflows: int
    policy: str
    placement: str
    seed: int


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a run. A share of nothing is None."""

    calls: int
    failed: int  # workflows
    e2e_s: Spread
    s_per_token: Spread
    ttft_s: Spread
    queued_share: float | None
    preemptions_per_call: float | None
    preempted_share: float | None  # of the calls: those that were preempted at least once
    recomputed_token_share: float | None
    cached_prompt_share: float | None
    longest_wait_s: float
    apps_e2e_s: dict[str, float | None]  # means
    cpu_s: float  # that the run took


class Row(msgspec.Struct, frozen=True, kw_only=True):
    commit: str  # at which it was run
    code: str  # see `code_of`; of later code, where that was found to give the same (`confirm.py`)
    cell: Cell
    outcome: Outcome


def run(cell: Cell) -> Outcome:
    """The same, but for `cpu_s`, for the same cell."""
    workload = WORKLOADS[cell.workload]
    planned = workload.submissions(cell.rate_per_s, cell.workflows, cell.seed)
    policy, placement = made(cell.policy, cell.placement, planned, workload.engine())
    began = time.process_time()
    world = World(planned, workload.instances(), policy, placement, anonymous=workload.anonymous)
    world.run()
    cpu_s = time.process_time() - began
    rows = world.metrics.rows
    record = world.metrics.record(failed={(TENANT, each) for each in world.users.failed})
    return Outcome(
        calls=record["calls"],
        failed=len(world.users.failed),
        e2e_s=_spread(record["e2e_s"]),
        s_per_token=_spread(record["s_per_token"]),
        ttft_s=_spread(record["ttft_s"]),
        queued_share=_rounded(record["queued_share"]),
        preemptions_per_call=_rounded(record["preemptions_per_call"]),
        preempted_share=_rounded(sum(bool(row.preemptions) for row in rows) / len(rows)),
        recomputed_token_share=_rounded(record["recomputed_token_share"]),
        cached_prompt_share=_rounded(record["cached_prompt_share"]),
        longest_wait_s=round(max(row.queued_us for row in rows) / SECOND, 1),
        apps_e2e_s={app: _rounded(of["e2e_s"]["mean"]) for app, of in record["apps"].items()},
        cpu_s=round(cpu_s, 1),
    )


def _spread(of: Spread) -> Spread:
    return {key: _rounded(value) for key, value in of.items()}


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")


def in_parallel(cells: Sequence[Cell], processes: int) -> Iterator[tuple[Cell, Outcome]]:
    """Yield the result of each run as it ends.

    Raises:
        ExceptionGroup: what some runs raised, once all others have ended.
    """
    failures: list[Exception] = []
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        asked = {pool.submit(run, cell): cell for cell in cells}
        for done in as_completed(asked):
            try:
                outcome = done.result()
            except Exception as error:  # noqa: BLE001  (whatever it was: the others go on)
                error.add_note(f"in {asked[done]}")
                failures.append(error)
            else:
                yield asked[done], outcome
    if failures:
        raise ExceptionGroup("runs failed", failures)


def code_of(cell: Cell) -> str:
    """A hash of what decides what comes of a run: source, and what its workload is."""
    workload = WORKLOADS[cell.workload]
    digest = sha256(_source())
    digest.update(msgspec.json.encode(workload))
    for path in workload.files():
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


@cache
def _source() -> bytes:
    paths = [
        path
        for package in _PACKAGES
        for kind in ("*.py", "*.toml", "*.c")
        for path in (ROOT / "kairos" / package).rglob(kind)
    ]
    paths += [Path(__file__).with_name(f"{module}.py") for module in _HERE]
    return digest_of(sorted(paths))


class Results:
    """Rows by cell, in a file; each is written at once.

    Args:
        path: The file, which need not be there yet.
        kept: A file with rows of which `path` may have newer ones; it is only read.
    """

    def __init__(self, path: Path, kept: Path | None = None) -> None:
        self._path = path
        before = [] if kept is None else list(_read(kept))
        self.rows = {row.cell: row for row in (*before, *_read(path))}

    def __contains__(self, cell: Cell) -> bool:
        """Whether this code has run it."""
        return cell in self.rows and self.rows[cell].code == code_of(cell)

    def add(self, *rows: Row) -> None:
        self.rows |= {row.cell: row for row in rows}
        ordered = sorted(self.rows.values(), key=lambda each: msgspec.json.encode(each.cell))
        write_rows(self._path, ordered)


def _read(path: Path) -> Iterator[Row]:
    """Rows of another form than today's are of other code."""
    for line in path.read_bytes().splitlines() if path.exists() else ():
        try:
            yield msgspec.json.decode(line, type=Row)
        except msgspec.DecodeError:
            continue

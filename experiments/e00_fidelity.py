"""`python -m experiments.e00_fidelity`: the model of vLLM against vLLM.

Claim: the same workflows, arriving at the same instants, take as long on the model as on the
engines that it models. Aim: the mean end-to-end latency of workflows to 10 %, at 50, 80 and 95 %
of what the engines can do, all at once, with long shared prefixes, and where engines run out of
memory and preempt. The error is printed whatever it is, those of other figures beside it.

The real side: two vLLM instances on CPU (the model `large`: random weights, 16 layers of 1,280, so
that the engine is what takes time, and not its HTTP server, Kairos or its client), all processes of
each on one core; before them `kairos serve`, called by a replay (`fidelity_real.py`). Kairos and
the replay run on the same two cores and take less than a tenth of one. The model's side:
`kairos.simulate.world`, with the same policy and placement, on a profile that `kairos calibrate`
measured on these engines before, both busy (`fidelity_model.py`). The learner learns on both sides,
from nothing. What runs, and with which policy, stands in `fidelity_conditions.py` and
`fidelity_workloads.py`: Poisson arrivals for 20 s, answers as long as recorded. How sides are
compared: `fidelity_errors.py`.

The capacity is measured: 100 workflows at once, the oldest first; what the engines do in a second
while all their slots are taken (`capacity_per_s`). This run is compared, too. Near the capacity
small errors are large ones: an engine that is 5 % quicker than the real one has at 80 % load a
quarter more room, and so much shorter latency.

Takes a quarter of an hour, and the machine for itself: what others use of it, printed for each run,
slows the engines down, and no model can know. Writes results/fidelity.jsonl and its picture, and
figures of report.json; with fewer than three seeds, or broken off, nothing.

`--quick` is for CI: three runs of workflows of two calls, at 80 % of the capacity, on a smaller
model where the processor has no AVX-512. Some 5 minutes; ends with 1 where the median error of the
mean end-to-end latency is above 25 %.
"""

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Sequence

import msgspec
from rich.console import Console

from experiments import fidelity_show as show
from experiments.command import ending
from experiments.fidelity_conditions import (
    LOADS,
    PREEMPTING,
    PREFIXES,
    QUICK,
    QUICK_SATURATED,
    SATURATED,
    Condition,
    Row,
)
from experiments.fidelity_engines import ENGINES, MODEL_FOR_CI, Limits, calibrated, engines
from experiments.fidelity_errors import capacity_per_s, compare, median_error
from experiments.fidelity_model import simulate
from experiments.fidelity_real import play
from experiments.report import RESULTS, add_figures, commit, write_rows
from kairos.core import CallRow, EngineProfile

SEEDS = 3
TOLERATED_PERCENT = 25.0
OTHERS_CORES = 0.2  # a tenth of the machine on which the engines have a core each
TIME_LIMIT_S = 300.0  # of a run


class Experiment:
    """Makes runs on both sides, and keeps what they gave."""

    def __init__(self, console: Console) -> None:
        self.rows: list[Row] = []
        self._console = console
        self._commit = commit()
        self._began_at = time.monotonic()

    def tell(self, line: str) -> None:
        self._console.print(f"{time.monotonic() - self._began_at:5.0f} s  {line}", highlight=False)

    async def full(self, seeds: int) -> None:
        async with engines(SATURATED.limits, self.tell) as urls:
            profile = await self._loaded(urls, SATURATED, (*LOADS, PREFIXES), seeds)
        async with engines(PREEMPTING.limits, self.tell) as urls:
            for seed in range(1, seeds + 1):
                await self._run(PREEMPTING, seed, urls, profile)

    async def quick(self, seeds: int) -> None:
        async with engines(QUICK.limits, self.tell, model=MODEL_FOR_CI) as urls:
            await self._loaded(urls, QUICK_SATURATED, (QUICK,), seeds)

    async def _loaded(
        self,
        urls: Sequence[str],
        saturated: Condition,
        conditions: Sequence[Condition],
        seeds: int,
    ) -> EngineProfile:
        """Calibrate the engines, find what they can do, and give them shares of it."""
        self.tell("calibrating")
        profile = await calibrated(urls, saturated.limits)
        real = await self._run(saturated, 1, urls, profile)
        capacity = capacity_per_s(real, _slots(saturated.limits))
        self.tell(f"the engines end {capacity:.2f} workflows per second")
        for seed in range(1, seeds + 1):
            for condition in conditions:
                await self._run(condition, seed, urls, profile, capacity)
        return profile

    async def _run(
        self,
        condition: Condition,
        seed: int,
        urls: Sequence[str],
        measured: EngineProfile,
        capacity: float | None = None,
    ) -> list[CallRow]:
        """Returns the calls of the real side."""
        submissions = condition.submissions(capacity or 0.0, seed)
        profile = condition.limits.of(measured)
        self.tell(f"{condition.name}, seed {seed}: {len(submissions)} workflows")
        played = await play(
            urls,
            submissions,
            max_num_seqs=condition.limits.max_num_seqs,
            policy=condition.policy,
            placement=condition.placement,
            time_limit_s=TIME_LIMIT_S,
        )
        modelled = simulate(
            profile, len(urls), submissions, policy=condition.policy, placement=condition.placement
        )
        row = Row(
            commit=self._commit,
            condition=condition.name,
            seed=seed,
            policy=condition.policy,
            placement=condition.placement,
            workload=condition.workload.name,
            workflows=len(submissions),
            calls=len(played.rows),
            load=condition.load or None,
            capacity_per_s=capacity,
            limits=condition.limits,
            profile=profile,
            cores=played.cores,
            late_starts=played.late_starts,
            prompt_tokens_off=played.prompt_tokens_off,
            sides=compare(played.rows, modelled, real_preemptions=played.preemptions),
        )
        self.rows.append(row)
        self.tell(show.line(row))
        return played.rows


def _slots(limits: Limits) -> int:
    return ENGINES * limits.max_num_seqs


def main() -> None:
    parser = argparse.ArgumentParser(description="The model of vLLM against vLLM.")
    parser.add_argument("--quick", action="store_true", help="the form for CI: a verdict, no files")
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"of each condition [{SEEDS}]")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON instead")
    options = parser.parse_args()
    console = Console(stderr=options.json)
    if not console.is_terminal:
        console.width = 120
    experiment = Experiment(console)
    run = experiment.quick if options.quick else experiment.full
    try:
        with ending("e00_fidelity"):
            asyncio.run(run(options.seeds))
    finally:
        if experiment.rows:
            _report(experiment.rows, console, as_json=options.json)
    if options.quick:
        sys.exit(_verdict(experiment.rows, console))
    if options.seeds >= SEEDS:
        _write(experiment.rows)


def _report(rows: Sequence[Row], console: Console, *, as_json: bool) -> None:
    if as_json:
        sys.stdout.buffer.write(msgspec.json.encode(rows) + b"\n")
    else:
        console.print(show.table(rows))


def _verdict(rows: Sequence[Row], console: Console) -> int:
    """The status with which CI ends."""
    loaded = [row for row in rows if row.load is not None]
    error = median_error(row.error_percent() for row in loaded)
    others = statistics.median(row.cores.others for row in loaded)
    console.print(
        f"median error of the mean end-to-end latency: {error:.1f} % ({TOLERATED_PERCENT:g} % is "
        f"tolerated); others used {others:.2f} cores"
        + (", too many to judge the model by: run it again" if others > OTHERS_CORES else "")
    )
    return 0 if error <= TOLERATED_PERCENT else 1


def _write(rows: Sequence[Row]) -> None:
    write_rows(RESULTS / "fidelity.jsonl", rows)
    add_figures(show.figures(rows))
    show.draw(rows, RESULTS / "fidelity")


if __name__ == "__main__":
    main()

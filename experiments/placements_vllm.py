"""`python -m experiments.placements_vllm`: every placement on real vLLM that runs out of memory.

Claims, on the same workflows at the same instants: the default placement has at most a tenth of
round-robin's preemptions, and no other placement is quicker by its mean end-to-end latency beyond
noise. Expect round-robin to preempt every fourth call, and to compute a tenth of its tokens again;
and means that lie within a few percent of each other: a token of a prompt takes these engines a
fifth of the time that a token of an answer takes, so that a preemption costs little, and memory
that is kept free costs something too.

Two vLLM instances on CPU, a core each (the model `mid`: random weights, 8 layers of 1,024), whose
KV memory holds some twelve of the 48 calls that they would take. Workflows of the Kairos paper's
three applications come in bursts, faster than the engines can end them
(`placements_vllm_workload.py`). Nobody tells how long answers will be: each call carries what makes
the engine end its answer at the recorded length, in fields that Kairos does not read.

All placements have the same policy, `kairos`, and the same knowledge: what a Kairos learnt, from
nothing, of a run before that counts for none. A run begins a new `kairos serve` with a copy of
that. The engines are shared; the replay salts its texts, so that no run finds those of another in
their prefix caches. In each repetition, which has its own workflows and instants, the placements
run in a random order, so that what else happens on the machine falls on all alike; intervals are
of the differences within repetitions (`kairos/core/confidence.py`).

What engines counted, and how many tokens they recomputed: `placements_vllm_counts.py`.

Takes 25 minutes, and the machine for itself. Writes results/placements_vllm.jsonl and its picture,
and figures of report.json; with fewer repetitions, or broken off, nothing.

`--quick` is for CI: round-robin, least-kv and the default, one run each, on a smaller model, in
under three minutes.
Ends with 1 where round-robin preempts too little to compare with, or the default has more than a
tenth of its preemptions. Times are printed, and judged by nobody.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
from random import Random
from typing import TypeVar

import msgspec
from rich.console import Console

from experiments import placements_vllm_show as show
from experiments.baseline_placements import PLACEMENTS
from experiments.command import ending
from experiments.placements_vllm_rows import Row, by_placement, preemptions_per_call, row_of
from experiments.placements_vllm_run import pool
from experiments.placements_vllm_workload import offered
from experiments.report import RESULTS, add_figures, commit, write_rows
from kairos.settings import Settings

T = TypeVar("T")

DEFAULT = Settings().placement
BASELINE = "round-robin"
ALL = (DEFAULT, *(name for name in PLACEMENTS if name != DEFAULT))
REPETITIONS = 8
RATE_PER_S = 32.0  # many times what the engines end
LEARNT_OF = 1000  # the repetition of which all learn before
ENOUGH = 0.05  # preemptions per request of round-robin, to be compared with


class Form(msgspec.Struct, frozen=True, kw_only=True):
    """What is compared, and on what."""

    placements: tuple[str, ...]
    model: str
    workflows: int


# With this model the engine takes the time, not its API's process.
FULL = Form(placements=ALL, model="mid", workflows=48)
# A smaller one plays more calls in the same time: of few, preemptions are too few to be counted on.
QUICK = Form(
    placements=tuple(dict.fromkeys((DEFAULT, BASELINE, "least-kv"))), model="small", workflows=80
)


class Experiment:
    """Makes runs, and keeps what they gave."""

    def __init__(self, console: Console, form: Form) -> None:
        self.rows: list[Row] = []
        self._console, self._form = console, form
        self._commit = commit()
        self._began_at = time.monotonic()

    def tell(self, line: str) -> None:
        self._console.print(f"{time.monotonic() - self._began_at:5.0f} s  {line}", highlight=False)

    async def run(self, repetitions: int) -> None:
        form = self._form
        before = offered(form.workflows, RATE_PER_S, LEARNT_OF)
        async with pool(form.model, before, DEFAULT, self.tell) as running:
            for repetition in range(1, repetitions + 1):
                self.tell(f"repetition {repetition} of {repetitions}")
                submissions = offered(form.workflows, RATE_PER_S, repetition)
                for place, placement in enumerate(in_turn(form.placements, repetition), 1):
                    row = row_of(
                        await running.run(submissions, placement),
                        commit=self._commit,
                        repetition=repetition,
                        place=place,
                        placement=placement,
                        rate_per_s=RATE_PER_S,
                    )
                    self.rows.append(row)
                    self.tell(show.line(row))


def in_turn(compared: Sequence[T], repetition: int) -> list[T]:
    """The order in which they run: another in each repetition, the same whenever asked."""
    random = Random(repetition)  # noqa: S311  (an order, no secret)
    return random.sample(compared, len(compared))


def main() -> None:
    parser = argparse.ArgumentParser(description="Every placement on real vLLM.")
    parser.add_argument("--quick", action="store_true", help="a short form: a verdict, no files")
    parser.add_argument(
        "--repetitions", type=int, default=REPETITIONS, help=f"of all placements [{REPETITIONS}]"
    )
    parser.add_argument("--json", action="store_true", help="print the rows as JSON instead")
    options = parser.parse_args()
    console = Console(stderr=options.json)
    if not console.is_terminal:
        console.width = 140
    experiment = Experiment(console, QUICK if options.quick else FULL)
    repetitions = 1 if options.quick else options.repetitions
    try:
        with ending("placements_vllm"):
            asyncio.run(experiment.run(repetitions))
    finally:
        if experiment.rows:
            _report(experiment.rows, console, as_json=options.json)
    if options.quick:
        sys.exit(verdict(experiment.rows, console))
    if options.repetitions >= REPETITIONS:
        _write(experiment.rows)


def _report(rows: Sequence[Row], console: Console, *, as_json: bool) -> None:
    if as_json:
        sys.stdout.buffer.write(msgspec.json.encode(rows) + b"\n")
    else:
        console.print(show.table(rows, DEFAULT))


def verdict(rows: Sequence[Row], console: Console) -> int:
    """The status with which CI ends."""
    found = by_placement(rows)
    baseline, ours = preemptions_per_call(found[BASELINE]), preemptions_per_call(found[DEFAULT])
    most = show.MOST_OF_PREEMPTIONS * baseline
    console.print(
        f"preemptions per request: {BASELINE} {baseline:.3f} ({ENOUGH} is enough to compare with), "
        f"{DEFAULT} {ours:.3f} ({most:.3f} is tolerated)",
        highlight=False,
    )
    return 0 if baseline >= ENOUGH and ours <= most else 1


def _write(rows: Sequence[Row]) -> None:
    write_rows(RESULTS / "placements_vllm.jsonl", rows)
    add_figures(show.figures(rows, DEFAULT))
    show.draw(rows, RESULTS / "placements_vllm")
    from experiments.headlines import placements_line  # which imports this module, by way of e29

    print(placements_line(rows))


if __name__ == "__main__":
    main()

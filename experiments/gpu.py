"""`python -m experiments.gpu`: policies before two real vLLM that share one GPU (`e31_gpu.py`).

    python -m experiments.gpu play --seconds 540     as many runs as end in that time
    python -m experiments.gpu calibrate              the profile of one vLLM that has the GPU alone

vLLM is that of the virtual environment KAIROS_VLLM. Each ends by itself in time, and goes on where
it was when it is called again: rows, profiles and what Kairos learnt are kept in the directory
--into, rows after each run, so that whatever ends it costs that run alone.

    play        calibrates both instances, busy at once; has a Kairos learn of a run that counts for
                none; then plays repetitions, in each all combinations in a random order
    calibrate   writes DEVICE-MODEL.toml, for `kairos simulate --profile`

Without a GPU, or with --cpu, it is vLLM for CPUs and a tiny model: to see that all of it works.
Options that are not ours go to vLLM, such as --enforce-eager, and win over what it gets from here.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import Awaitable, Sequence
from pathlib import Path

import msgspec

from experiments.command import ending
from experiments.e29_live import line
from experiments.e31_gpu import COMPARED, Row, missing
from experiments.fidelity_engines import calibrate
from experiments.gpu_run import ENGINES, Pair, Setting, engines, gpu, setting
from experiments.placements_vllm import in_turn
from experiments.report import EXPERIMENTS, commit, write_rows
from kairos.core import SetupError
from kairos.engines import load_profile
from kairos.host import atomic_write

INTO = EXPERIMENTS.parent / ".gpu" / "run"
ROWS, LEARNT, SHARED = "e31_gpu.jsonl", "learnt.json", "shared.toml"
REPETITIONS, SECONDS = 8, 3600.0
END_S = 15.0  # for engines to end in


class Kept:
    """What earlier commands have left in the directory, and what this one adds."""

    def __init__(self, directory: Path, at_commit: str, device: str) -> None:
        """Raises SetupError: what is there was measured elsewhere, or of other code."""
        self.directory, self.commit = directory, at_commit
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / ROWS
        lines = path.read_bytes().splitlines() if path.exists() else []
        self.rows = [msgspec.json.decode(each, type=Row) for each in lines]
        here = {(at_commit, device)}
        if others := {(row.commit, row.device) for row in self.rows} - here:
            raise SetupError(f"{path} has rows of {others}, this is {here}: name another --into")

    def add(self, row: Row) -> None:
        self.rows.append(row)
        write_rows(self.directory / ROWS, self.rows)


class Clock:
    """The time that a command has, and what a run of it takes."""

    def __init__(self, seconds: float, run_s: float) -> None:
        """`run_s`: for so long the engines have work. Until a run was made, twice that is expected
        of it."""
        self._began_at = time.monotonic()
        self._ends_at = self._began_at + seconds - END_S
        self._longest_s = 2 * run_s

    @property
    def left_s(self) -> float:
        return self._ends_at - time.monotonic()

    async def timed(self, run: Awaitable[Row]) -> Row:
        began_at = time.monotonic()
        row = await run
        self._longest_s = max(self._longest_s, time.monotonic() - began_at)
        return row

    @property
    def has_room(self) -> bool:
        """Whether another run ends in time, if it takes as long as the longest so far."""
        return self._longest_s < self.left_s

    def tell(self, text: str) -> None:
        passed_s = time.monotonic() - self._began_at
        print(f"{passed_s:5.0f} s  {text}", file=sys.stderr, flush=True)


async def play(
    on: Setting, kept: Kept, repetitions: int, others: Sequence[str], clock: Clock
) -> None:
    """Make runs that are missing, while there is time for another.

    Raises:
        SetupError: engines or Kairos did not start, or some workflow did not come to its end.
    """
    file, known = kept.directory / SHARED, kept.directory / LEARNT
    async with engines(on, ENGINES, others, clock.tell) as urls:
        if not file.exists():
            await calibrate(urls, file, *on.limits, f"--name={on.name}-shared", "--quick")
        pair = Pair(urls, on, load_profile(str(file)))
        clock.tell(f"{pair.load.workflows} workflows, {pair.load.rate_per_s:g} a second")
        if not known.exists():
            with atomic_write(known) as learnt:
                learnt.write(await pair.learn())
        for repetition, place, name in to_make(kept.rows, repetitions):
            if not clock.has_room:
                return
            run = pair.run(known.read_bytes(), kept.commit, repetition, place, name)
            kept.add(await clock.timed(run))
            clock.tell(line(kept.rows[-1]))


def to_make(rows: Sequence[Row], repetitions: int) -> list[tuple[int, int, str]]:
    """In their order: repetition, place in it, and combination."""
    left = set(missing(rows, repetitions))
    return [
        (repetition, place, name)
        for repetition in range(1, repetitions + 1)
        for place, name in enumerate(in_turn(COMPARED, repetition), 1)
        if (repetition, name) in left
    ]


async def calibrate_alone(
    on: Setting, kept: Kept, others: Sequence[str], clock: Clock, *, quick: bool
) -> None:
    """Write the profile of one engine. Raises SetupError: it cannot be measured."""
    file = kept.directory / f"{on.name}.toml"
    options = (*on.limits, f"--name={on.name}", *(["--quick"] if quick else []))
    async with engines(on, 1, others, clock.tell) as urls:
        await calibrate(urls, file, *options)
    clock.tell(f"wrote {file}")


async def _in_time(work: Awaitable[None], clock: Clock) -> None:
    """Cut the work off where it does not end by itself: engines need a while to end."""
    limit = asyncio.timeout(clock.left_s)
    try:
        async with limit:
            await work
    except TimeoutError:
        if not limit.expired():
            raise
        clock.tell("time is up: what was under way is lost")


def main() -> None:
    options, others = _parser().parse_known_args()
    device = None if options.cpu else gpu()
    on = setting(device, shared=options.what == "play")
    clock = Clock(options.seconds, on.run_s)
    with ending("gpu"):
        kept = Kept(options.into, options.commit or commit(), on.device)
        if options.what == "calibrate":
            work = calibrate_alone(on, kept, others, clock, quick=options.quick)
            asyncio.run(_in_time(work, clock))
            return
        if to_make(kept.rows, options.repetitions):
            asyncio.run(_in_time(play(on, kept, options.repetitions, others, clock), clock))
    left = len(to_make(kept.rows, options.repetitions))
    clock.tell(f"{len(kept.rows)} runs in {kept.directory / ROWS}, {left} still to be made")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.gpu",
        description="Policies before two real vLLM that share one GPU.",
        epilog="Other options are vLLM's.",
        allow_abbrev=False,
    )
    parser.add_argument("what", choices=("play", "calibrate"))
    parser.add_argument("--into", type=Path, default=INTO, help="what is kept [.gpu/run]")
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help=f"ends before that [{SECONDS:g}]"
    )
    parser.add_argument("--repetitions", type=int, default=REPETITIONS, help=f"[{REPETITIONS}]")
    parser.add_argument("--commit", help="of this code, where git cannot tell")
    parser.add_argument(
        "--quick", action="store_true", help="calibrate: one round instead of three"
    )
    parser.add_argument("--cpu", action="store_true", help="even where there is a GPU")
    return parser


if __name__ == "__main__":
    main()

"""`python -m experiments.flows_vllm`: declared workflows on two real vLLM.

What is claimed and run: `e47_flows_real.py`. Each engine has a core, so it wants the machine for
itself. Rows are kept as each run ends, in results/e47_flows_real.jsonl; a measurement that was
broken off goes on where it was, at the same commit.

`--quick` is for CI: one case, few rows, once; nothing is kept. Times are printed, and judged by
nobody.
"""

import argparse
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from functools import partial

import uvloop
from rich.console import Console

from experiments.command import ending
from experiments.e47_flows_real import REPETITIONS, STUDY, Row, figures, section
from experiments.flows_vllm_cases import (
    CASES,
    QUICK,
    DevicesCase,
    Outcome,
    Pool,
    PoolCase,
    small_pool,
    tiny_pool,
)
from experiments.placements_vllm import in_turn
from experiments.report import add_figures, commit, write_rows
from experiments.sections import read_rows, rows_file
from kairos.host import tuning

NAME = "e47_flows_real"

Case = PoolCase | DevicesCase
PoolOf = Callable[[Callable[[str], None]], AbstractAsyncContextManager[Pool]]
Keep = Callable[[Sequence[Row]], None]


class Measurement:
    """Makes the runs that are missing, and keeps what they gave."""

    def __init__(self, console: Console, rows: Sequence[Row], keep: Keep) -> None:
        """`keep` is given all rows after each run."""
        self.rows = list(rows)
        self._keep, self._console, self._commit = keep, console, commit()
        self._began_at = time.monotonic()

    def tell(self, line: str) -> None:
        self._console.print(f"{time.monotonic() - self._began_at:5.0f} s  {line}", highlight=False)

    async def run(self, cases: Sequence[Case], repetitions: int, pool_of: PoolOf) -> None:
        """`pool_of`: engines of one model, for cases that need them.

        Raises:
            SetupError: an engine did not start, or some row did not come to its end.
        """
        pools = [each for each in cases if isinstance(each, PoolCase)]
        if any(any(self._missing(case, repetitions)) for case in pools):
            async with pool_of(self.tell) as pool:
                for each in pools:
                    for repetition, system in self._missing(each, repetitions):
                        run = partial(each.run, system, pool=pool)
                        await self._made(each, repetition, system, run)
        for case in cases:
            if isinstance(case, DevicesCase):
                for repetition, system in self._missing(case, repetitions):
                    await self._made(case, repetition, system, partial(case.run, system))

    def _missing(self, case: Case, repetitions: int) -> Iterator[tuple[int, str]]:
        made = {(row.repetition, row.system) for row in self.rows if row.case == case.name}
        for repetition in range(1, repetitions + 1):
            for system in in_turn(case.systems, repetition):
                if (repetition, system) not in made:
                    yield repetition, system

    async def _made(
        self, case: Case, repetition: int, system: str, run: Callable[[int], Awaitable[Outcome]]
    ) -> None:
        outcome = await run(repetition)
        ran = outcome.ran
        row = Row(
            commit=self._commit,
            date=datetime.now(UTC).date().isoformat(),
            case=case.name,
            system=system,
            repetition=repetition,
            rows=outcome.rows,
            s=round(ran.s, 3),
            simulated_s=round(outcome.simulated_s, 3),
            calls=ran.calls,
            loads=ran.loads,
            cached_share=round(ran.cached_share, 4),
            others=None if ran.loads else ran.others,
            busiest=None if ran.busiest is None else round(ran.busiest, 4),
        )
        self.rows.append(row)
        self._keep(self.rows)
        self.tell(
            f"{case.name}, repetition {repetition}, {system}: {row.s:.1f} s for {row.rows} rows, "
            f"{row.calls} calls, {row.cached_share:.0%} cached (simulated {row.simulated_s:.1f} s)"
        )


def kept_rows(rows: Sequence[Row], cases: Sequence[Case]) -> list[Row]:
    """Without those of these cases that are of another commit."""
    here, names = commit(), {case.name for case in cases}
    return [row for row in rows if row.case not in names or row.commit == here]


def _run(measuring: Coroutine[None, None, None]) -> None:
    """As `kairos run` does."""
    tuning.collect_less_often()
    tuning.switch_threads_often()
    uvloop.run(measuring)


def main() -> None:
    parser = argparse.ArgumentParser(description="Declared workflows on two real vLLM.")
    names = [case.name for case in CASES]
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"{', '.join(names)} [all]")
    parser.add_argument("--quick", action="store_true", help="a short form: nothing is kept")
    parser.add_argument(
        "--repetitions", type=int, default=REPETITIONS, help=f"of each case [{REPETITIONS}]"
    )
    options = parser.parse_args()
    if unknown := set(options.cases) - set(names):
        parser.error(f"no case {', '.join(sorted(unknown))}: there are {', '.join(names)}")
    console = Console()
    if not console.is_terminal:
        console.width = 140
    with ending("flows_vllm"):
        if options.quick:
            measurement = Measurement(console, (), lambda _: None)
            _run(measurement.run(QUICK, 1, tiny_pool))
        else:
            chosen = [each for each in CASES if not options.cases or each.name in options.cases]
            kept = kept_rows(read_rows(NAME, STUDY, quick=False), chosen)
            path = rows_file(NAME, quick=False)
            measurement = Measurement(console, kept, partial(write_rows, path))
            _run(measurement.run(chosen, options.repetitions, small_pool))
            add_figures(figures(measurement.rows))
    console.print(section(measurement.rows), markup=False, highlight=False)


if __name__ == "__main__":
    main()

"""`python -m experiments`: list the experiments, run them, and write the report of what they found.

    python -m experiments list
    python -m experiments run e15_colocated e18_ablation    the missing runs of two claims
    python -m experiments run --quick                       a reduced grid of all, in minutes
    python -m experiments confirm                           runs of earlier code that are still good
    python -m experiments report                            REPORT.md anew, from the rows there are

A grid that was broken off goes on where it was, as long as the code is the same; what other code
ran counts after `confirm` found that it would come out the same now. A section that measures for
itself is measured again where the commit is another. The rates of the three loads are kept; `rates`
finds those of new workloads. Sections of REPORT.md whose rows are not here stay as they are.
"""

import argparse
import os
import sys
from collections.abc import Iterable, Sequence

from bench.report import Figure
from experiments import headlines
from experiments.claim import Claim, Study, View
from experiments.confirm import confirm
from experiments.grids import KEPT, Grid, results, run_missing
from experiments.page import write_page
from experiments.rates import Rates, find, rates
from experiments.report import add_figures, commit, write_rows
from experiments.runs import Cell
from experiments.sections import CLAIMS, SECTIONS, first_line, read_rows, rows_file
from experiments.workloads import WORKLOADS


def main() -> None:
    options = _parser().parse_args()
    match options.what:
        case "list":
            for name in SECTIONS:
                print(f"{name:24} {first_line(name)}")
        case "rates":
            for name in options.names or [each for each in WORKLOADS if each not in rates()]:
                find(WORKLOADS[name], options.processes, lambda line: print(line, flush=True))
        case "run":
            _run(options.names or list(SECTIONS), options.quick, options.processes)
            _report(options.quick, options.names)
        case "confirm":
            cells = [cell for claim in CLAIMS.values() for cell in _cells(claim.grids, rates())]
            for line in confirm(cells, results(quick=False), options.processes):
                print(line, flush=True)
        case "report":
            _report(options.quick)


def _cells(grids: Iterable[Grid], known: Rates, quick: bool = False) -> list[Cell]:
    return [cell for grid in grids for _, cell in grid.cells(known, quick)]


def _run(names: list[str], quick: bool, processes: int) -> None:
    known = rates()
    grids = [grid for name in names if name in CLAIMS for grid in CLAIMS[name].grids]
    if unknown := {each for grid in grids for each in grid.without_rates(known)}:
        sys.exit(f"no rates of {', '.join(sorted(unknown))}: python -m experiments rates")
    for name in names:
        section = SECTIONS[name]
        if isinstance(section, Study) and section.measure is not None:
            if _is_measured(name, section, quick):
                continue
            print(f"{name}: measuring", file=sys.stderr)
            write_rows(rows_file(name, quick), section.measure(quick))
    run_missing(_cells(grids, known, quick), results(quick), processes)


def _is_measured(name: str, study: Study, quick: bool) -> bool:
    """Whether its rows are of the code that is checked out."""
    commits = {row.commit.rstrip("+") for row in read_rows(name, study, quick)}
    return commits == {commit().rstrip("+")}


def _report(quick: bool, names: Sequence[str] = ()) -> None:
    """Write the report of what there is, and print the README's rows of these sections.

    Sections whose runs are not complete stay as the report has them, and are named. Without
    `names`: of all. Named sections that measure for themselves are printed, too.
    """
    view = View(rates(), results(quick).rows, quick)
    path, incomplete = write_page(view)
    if not quick:
        whole = [(name, each) for name, each in SECTIONS.items() if name not in incomplete]
        add_figures([figure for name, each in whole for figure in _figures(name, each, view)])
        write_rows(KEPT, [view.rows[each] for each in headlines.runs(view)])
    print(path)
    for name in names:
        section = SECTIONS[name]
        if isinstance(section, Study) and (rows := read_rows(name, section, quick)):
            print(f"\n{section.title}\n\n{section.section(rows)}\n")
    if not quick:
        print("\n".join(headlines.lines(view, names or tuple(headlines.HEADLINES))))
    if incomplete:
        what = "left out" if quick else "as they were"
        print(f"without all of their rows, so {what}: {', '.join(incomplete)}", file=sys.stderr)


def _figures(name: str, section: Claim | Study, view: View) -> list[Figure]:
    if isinstance(section, Study):
        return section.figures(read_rows(name, section, view.quick))
    return section.figures(view)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m experiments", description="Claims, measured: run them, and report."
    )
    commands = parser.add_subparsers(dest="what", required=True)
    commands.add_parser("list", help="names, and what each is about")
    for what, about in (("run", "what is missing"), ("report", "write the report anew")):
        command = commands.add_parser(what, help=about)
        command.add_argument("--quick", action="store_true", help="a reduced grid, kept apart")
        if what == "run":
            command.add_argument("names", nargs="*", metavar="NAME", choices=[[], *SECTIONS])
            _processes(command)
    _processes(commands.add_parser("confirm", help="keep runs that today's code gives again"))
    command = commands.add_parser("rates", help="find the rates of the loads")
    command.add_argument(
        "names",
        nargs="*",
        metavar="WORKLOAD",
        choices=[[], *WORKLOADS],
        help="[those that have none]",
    )
    _processes(command)
    return parser


def _processes(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--processes", type=int, default=os.cpu_count() or 1, help="at once [as many as cores]"
    )


if __name__ == "__main__":
    main()

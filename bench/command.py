"""What the commands of benches have in common: `--quick`, where figures go, and how they end."""

import argparse
import os
import sys
from collections.abc import Callable, Coroutine

import uvloop
from rich.console import Console

from bench import load, report, rows
from bench.report import Figure
from bench.servers import NotStarted

ONE_CORE = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


class Bench:
    """`columns`: of what is shown, by their names in the figures' details. `quick`: what is less
    with `--quick`; nothing is kept then."""

    def __init__(self, name: str, about: str | None, columns: dict[str, str], quick: str) -> None:
        self._name, self._about, self._columns, self._less = name, about, columns, quick
        self._console = report.console()

    def of_servers(
        self, measure: Callable[[Console, bool], Coroutine[None, None, list[Figure]]]
    ) -> None:
        quick = self._is_quick()
        try:
            found = uvloop.run(measure(self._console, quick))
        except* (NotStarted, load.Broken, TimeoutError) as group:
            sys.exit(f"bench: {group.exceptions[0]!r}")
        except* KeyboardInterrupt:
            sys.exit(130)
        self._end(found, quick=quick)

    def on_one_core(self, measure: Callable[[Console, bool], list[Figure]]) -> None:
        """In CPU time of this process, whose libraries compute in one thread."""
        if not ONE_CORE.items() <= os.environ.items():  # numpy's read them as they load
            command = [sys.executable, "-m", f"bench.{self._name}", *sys.argv[1:]]
            os.execve(sys.executable, command, os.environ | ONE_CORE)
        quick = self._is_quick()
        if os.getloadavg()[0] > 1:
            self._console.print("the machine is busy with something else: figures will be noisy")
        self._end(measure(self._console, quick), quick=quick)

    def _is_quick(self) -> bool:
        parser = argparse.ArgumentParser(
            prog=f"python -m bench.{self._name}", description=self._about
        )
        parser.add_argument("--quick", action="store_true", help=f"{self._less}; kept nowhere")
        quick: bool = parser.parse_args().quick
        return quick

    def _end(self, found: list[Figure], *, quick: bool) -> None:
        if not quick:
            rows.keep(found, self._name)
        report.show(found, self._console, self._columns)

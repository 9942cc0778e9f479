"""`python -m bench.startup`: the CPU time that commands take until they are of use.

`--version`, `--help`, and the help of each command, until they end; `kairos serve` in front of one
engine, which is not there, and the same with `--workers 2`, until it says that it serves. In user
and kernel mode, of all processes of the command together, with compiled files of Python on disk.
Rounds by turns. Keeps its figures (`bench/rows.py`); takes a minute. `--quick`: two rounds, not
kept.
"""

import asyncio
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterable
from statistics import median

from rich.console import Console

from bench import report
from bench.command import Bench
from bench.report import Figure
from bench.servers import NotStarted, Server
from kairos.cli.commands import COMMANDS, load
from kairos.host import start_child

ROUNDS, QUICK_ROUNDS = 7, 2
START_S = 60.0
SYSTEMS = {"kairos": "Kairos"}

VERSION, HELP = "CPU until `kairos --version` ends", "CPU until `kairos --help` ends"
WORST = "CPU until the slowest command's `--help` ends"
SERVE = "CPU until `kairos serve` serves"
WORKERS = "CPU until `kairos serve --workers 2` serves, all processes"
# In ms; of what a slow machine may take.
TARGETS = {VERSION: 300.0, HELP: 300.0, WORST: 300.0, SERVE: 900.0, WORKERS: 2_500.0}

_KAIROS = (sys.executable, "-m", "kairos.cli.main")
_SERVE = ("serve", "--engine", "http://127.0.0.1:9", "--port", "0", "--admin-port", "0")
_SERVES = b"kairos: serving on"


def helps() -> list[tuple[str, ...]]:
    """The arguments of each command's and each group's help."""
    found: list[tuple[str, ...]] = []
    for name in COMMANDS:
        found.append((name, "--help"))
        found += [(name, each, "--help") for each in getattr(load(name), "commands", {})]
    return found


def until_ended(*arguments: str) -> float:
    """CPU time in ms. Raises NotStarted."""
    before = _children_s()
    ran = subprocess.run([*_KAIROS, *arguments], stdout=subprocess.DEVNULL, check=False)
    if ran.returncode:
        raise NotStarted(f"kairos {' '.join(arguments)} ended with status {ran.returncode}")
    return 1_000 * (_children_s() - before)


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


async def until_served(*arguments: str) -> float:
    """CPU time in ms. Raises NotStarted, TimeoutError."""
    process = await start_child(
        *(*_KAIROS, *_SERVE, *arguments),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(START_S):
            said = await process.stdout.readline()
        if not said.startswith(_SERVES):
            raise NotStarted(f"kairos serve {' '.join(arguments)} said {said!r}")
        return 1_000 * Server(0, process.pid).cpu_s()
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        await process.communicate()


async def measure(console: Console, quick: bool) -> list[Figure]:
    rounds = QUICK_ROUNDS if quick else ROUNDS
    values: dict[str, list[float]] = {}
    by_help: dict[str, list[float]] = {}
    every = helps()
    await _round({}, {}, every)  # which writes compiled files where there are none
    for number in range(rounds):
        console.print(f"round {number + 1} of {rounds}")
        await _round(values, by_help, every)
    worst = max(by_help, key=lambda each: median(by_help[each]))
    console.print(f"the slowest help is that of kairos {worst}")
    return [
        *(_figure(name, values[name]) for name in (VERSION, HELP)),
        _figure(WORST, by_help[worst], of=worst),
        *(_figure(name, values[name]) for name in (SERVE, WORKERS)),
    ]


async def _round(
    values: dict[str, list[float]],
    by_help: dict[str, list[float]],
    every: Iterable[tuple[str, ...]],
) -> None:
    values.setdefault(VERSION, []).append(until_ended("--version"))
    values.setdefault(HELP, []).append(until_ended("--help"))
    for each in every:
        by_help.setdefault(" ".join(each[:-1]), []).append(until_ended(*each))
    values.setdefault(SERVE, []).append(await until_served())
    values.setdefault(WORKERS, []).append(await until_served("--workers", "2"))


def _figure(name: str, each: list[float], of: str | None = None) -> Figure:
    """`of`: which command it is."""
    spread = report.spread(each)
    detail = {"kairos": spread} | ({} if of is None else {"command": of})
    return Figure(name=name, value=spread.median, unit="ms", target=TARGETS[name], detail=detail)


def shown() -> list[str]:
    """Names of the figures for the documentation."""
    return list(TARGETS)


def main() -> None:
    Bench("startup", __doc__, SYSTEMS, "two rounds").of_servers(measure)


if __name__ == "__main__":
    main()

"""Who used the machine's cores during a run: what an engine did not get, no model can know."""

import os
from pathlib import Path

import msgspec

PROC = Path("/proc")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Cores(msgspec.Struct, frozen=True, kw_only=True):
    """Used on average by whom."""

    engines: float
    kairos: float
    client: float  # the experiment itself
    others: float  # whatever else runs on the machine


class _Process(msgspec.Struct, frozen=True):
    """One that runs."""

    parent: int
    cpu_s: float


class Meter:
    """Reads what has been used so far, in CPU seconds; two readings and the time between them say
    the rest."""

    def __init__(self, kairos_pid: int) -> None:
        """The engines are what else this process has started."""
        self._kairos = kairos_pid

    def read(self) -> dict[str, float]:
        running = _processes()
        of: dict[str, float] = {"engines": 0.0, "kairos": 0.0, "client": 0.0}
        for pid, process in running.items():
            whose = self._whose(pid, running)
            if whose is not None:
                of[whose] += process.cpu_s
        return {**of, "others": _all_cpu_s() - sum(of.values())}

    def _whose(self, pid: int, running: dict[int, _Process]) -> str | None:
        if pid == os.getpid():
            return "client"
        while pid in running:
            if pid == self._kairos:
                return "kairos"
            pid = running[pid].parent
            if pid == os.getpid():
                return "engines"
        return None


def cores(before: dict[str, float], after: dict[str, float], elapsed_s: float) -> Cores:
    used = {whose: (after[whose] - before[whose]) / elapsed_s for whose in after}
    return Cores(**{whose: round(max(0.0, each), 3) for whose, each in used.items()})


def _processes() -> dict[int, _Process]:
    """Those that have not ended, by their ids."""
    found: dict[int, _Process] = {}
    for directory in PROC.iterdir():
        if not directory.name.isdigit():
            continue
        try:
            stat = (directory / "stat").read_text()
        except OSError:
            continue  # it has just ended
        fields = stat[stat.rindex(")") + 2 :].split()  # its name may hold anything
        if fields[0] != "Z":
            cpu_s = (int(fields[11]) + int(fields[12])) / TICKS_PER_S
            found[int(directory.name)] = _Process(int(fields[1]), cpu_s)
    return found


def _all_cpu_s() -> float:
    """Of all processes since the machine started, without the time in which cores were idle."""
    times = [int(field) for field in (PROC / "stat").read_text().split("\n", 1)[0].split()[1:9]]
    idle, waiting = times[3], times[4]
    return (sum(times) - idle - waiting) / TICKS_PER_S

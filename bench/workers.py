"""`python -m bench.workers`: calls per second of one process, and of `kairos serve --workers N`.

On two cores that the engines and the clients use too, calls per second say little of what workers
add: the load takes its part of both. So besides raw calls per second there is the *capacity*: calls
for each second of CPU time of the busiest process of Kairos. It is what Kairos would do if each of
its processes had a core of its own and the load ran elsewhere. Nothing is pinned. The same load,
rounds by turns.

With --workers 1 there are two processes already, one of which decides for all workers. Once that
is the busiest, more workers do not raise the capacity: its calls per CPU second are the most that
one host decides. Keeps its figures (`bench/rows.py`); takes 45 s. `--quick`: one round, not kept.
"""

import tempfile
import time

from rich.console import Console

from bench import load, report, talk
from bench.command import Bench
from bench.report import Figure
from bench.servers import Server, server
from bench.systems import MANY, free_ports, kairos_command, upstream_command, warm_up
from bench.upstream import Mode

ALONE = 0  # one process that does everything, the default
WORKERS = (ALONE, 1, 2)
ROUNDS, QUICK_ROUNDS = 3, 1
SECONDS = 4.0
CONCURRENCY = 64
ENGINES = 2
SYSTEMS = {"kairos": "Kairos"}

RAW = "calls per second, {}"
CAPACITY = "calls per CPU second of the busiest process, {}"
CPU = "CPU per call of all processes, {}"
# Of two workers' capacity: over whose, and what it is to be.
GAINS = {ALONE: 1.7, 1: None}
GAIN = "capacity of --workers 2, times that of {}"

Values = dict[str, list[float]]


async def measure(console: Console, quick: bool) -> list[Figure]:
    values: Values = {}
    rounds = QUICK_ROUNDS if quick else ROUNDS
    for number in range(rounds):
        for workers in WORKERS:
            console.print(f"round {number + 1} of {rounds}: {_named(workers)}")
            for name, value in (await one_round(workers)).items():
                values.setdefault(name, []).append(value)
    return figures(values)


async def one_round(workers: int) -> dict[str, float]:
    """Of a Kairos that was started for it. Raises NotStarted."""
    *engines, port = free_ports(ENGINES + 1)
    with tempfile.TemporaryDirectory() as log:
        command = kairos_command(port, engines, MANY, log)
        if workers:
            command += ["--workers", str(workers)]
        async with (
            server(upstream_command(engines, metrics=True), engines[0], None),
            load.connected(engines[0]) as client,
            server(command, port, None) as kairos,
        ):
            control = load.Control(client)
            await warm_up(port, control)
            await control.set(Mode())
            return await _loaded(kairos, workers)


async def _loaded(kairos: Server, workers: int) -> dict[str, float]:
    before, began = kairos.cpu_s_by_process(), time.monotonic()
    answered = await load.for_a_while(kairos.port, SECONDS, CONCURRENCY, talk.named())
    took_s, after = time.monotonic() - began, kairos.cpu_s_by_process()
    taken_s = [cpu_s - before.get(pid, 0.0) for pid, cpu_s in after.items()]
    calls = len(answered)
    return {
        RAW.format(_named(workers)): calls / took_s,
        CAPACITY.format(_named(workers)): calls / max(taken_s),
        CPU.format(_named(workers)): sum(taken_s) / calls * 1e6,
    }


def figures(values: Values) -> list[Figure]:
    two = values[CAPACITY.format(_named(2))]
    found = [_figure(name, each) for name, each in values.items()]
    for workers, target in GAINS.items():
        less = values[CAPACITY.format(_named(workers))]
        spread = spread_of([b / a for a, b in zip(less, two, strict=True)])
        name = GAIN.format(_named(workers))
        detail = {"kairos": spread}
        found.append(
            Figure(
                name=name,
                value=spread.median,
                unit="times",
                target=target,
                better="higher",
                detail=detail,
            )
        )
    return found


def _named(workers: int) -> str:
    return f"--workers {workers}" if workers else "one process"


def spread_of(gains: list[float]) -> report.Spread:
    """With two decimals, which `report.spread` leaves out."""
    hundred = report.spread([100 * gain for gain in gains])
    shares = (hundred.median / 100, hundred.lowest / 100, hundred.highest / 100)
    return report.Spread(*shares, hundred.rounds)


def _figure(name: str, each: list[float]) -> Figure:
    spread = report.spread(each)
    unit = "us" if name.startswith("CPU") else "/s"
    return Figure(
        name=name,
        value=spread.median,
        unit=unit,
        target=None,
        better="lower" if unit == "us" else "higher",
        detail={"kairos": spread},
    )


def shown() -> list[str]:
    """Names of the figures for the documentation."""
    capacities = [CAPACITY.format(_named(workers)) for workers in WORKERS]
    return [*capacities, *(GAIN.format(_named(workers)) for workers in GAINS)]


def main() -> None:
    Bench("workers", __doc__, SYSTEMS, "one round").of_servers(measure)


if __name__ == "__main__":
    main()

"""`python -m bench.workers`: calls per second of `kairos serve --workers N`, one against two.

On two cores that the engines and the clients use too, calls per second say little of what workers
add: the load takes its part of both. So besides raw calls per second there is the *capacity*: calls
for each second of CPU time of the busiest process of Kairos. It is what Kairos would do if each of
its processes had a core of its own and the load ran elsewhere. Nothing is pinned. The same load,
rounds by turns. Keeps its figures (`bench/rows.py`); takes half a minute. `--quick`: one round, not
kept.
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

WORKERS = (1, 2)
ROUNDS, QUICK_ROUNDS = 3, 1
SECONDS = 4.0
CONCURRENCY = 64
ENGINES = 2
SYSTEMS = {"kairos": "Kairos"}

RAW = "calls per second, --workers {}"
CAPACITY = "calls per CPU second of the busiest process, --workers {}"
CPU = "CPU per call of all processes, --workers {}"
GAIN = "two workers' capacity, times one's"
GAIN_TARGET = 1.7

Values = dict[str, list[float]]


async def measure(console: Console, quick: bool) -> list[Figure]:
    values: Values = {}
    rounds = QUICK_ROUNDS if quick else ROUNDS
    for number in range(rounds):
        for workers in WORKERS:
            console.print(f"round {number + 1} of {rounds}: --workers {workers}")
            for name, value in (await one_round(workers)).items():
                values.setdefault(name, []).append(value)
    return figures(values)


async def one_round(workers: int) -> dict[str, float]:
    """Of a Kairos that was started for it. Raises NotStarted."""
    *engines, port = free_ports(ENGINES + 1)
    with tempfile.TemporaryDirectory() as log:
        command = [*kairos_command(port, engines, MANY, log), "--workers", str(workers)]
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
        RAW.format(workers): calls / took_s,
        CAPACITY.format(workers): calls / max(taken_s),
        CPU.format(workers): sum(taken_s) / calls * 1e6,
    }


def figures(values: Values) -> list[Figure]:
    one, two = (values[CAPACITY.format(workers)] for workers in WORKERS)
    gains = [b / a for a, b in zip(one, two, strict=True)]
    found = [_figure(name, each) for name, each in values.items()]
    spread = spread_of(gains)
    return [
        *found,
        Figure(
            name=GAIN,
            value=spread.median,
            unit="times",
            target=GAIN_TARGET,
            better="higher",
            detail={"kairos": spread},
        ),
    ]


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


def main() -> None:
    Bench("workers", __doc__, SYSTEMS, "one round").of_servers(measure)


if __name__ == "__main__":
    main()

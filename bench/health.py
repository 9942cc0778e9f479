"""`python -m bench.health`: is Kairos still there for its operators when it is full?

10,000 calls wait and 64 instances answer at once, so that calls end as fast as Kairos lets them;
each that has ended is followed by another. Meanwhile a process of its own asks /health. The
instances hold their first calls until all others wait. Keeps its figures (`bench/rows.py`); takes
40 s. `--quick`: 1,000 calls, 5 s, not kept.
"""

import asyncio
import sys
import tempfile
import time
from pathlib import Path

import msgspec
from rich.console import Console

from bench import load, report, talk
from bench.asking import told
from bench.command import Bench
from bench.report import Figure
from bench.servers import Server, server
from bench.systems import free_ports, kairos_command, take_core, upstream_command
from bench.upstream import Mode
from kairos.host import allow_many_connections, start_child

INSTANCES = 64
SEQS = 2  # calls that each runs at once
WAITING, QUICK_WAITING = 10_000, 1_000
SECONDS, QUICK_SECONDS = 15.0, 5.0
START_LIMIT_S = 30.0
CONNECTIONS_PER_S = 1_500
HOLD = 1.5  # times what connecting takes
SHARE = 0.95  # of the calls that are to wait: then it begins
SYSTEMS = {"kairos": "Kairos"}

HEALTH = "/health while 10,000 calls wait: p{}"
WAITING_STILL = "calls that wait at the end of it"
ENDED = "calls that ended a second meanwhile"
CPU = "CPU per call meanwhile"


class Load:
    """So many clients, each of which asks again as soon as it is answered, until it is stopped."""

    def __init__(self, port: int, clients: int) -> None:
        self.answered = 0
        self._port = port
        self._clients = clients

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(self._clients):
                group.create_task(self._client(number))

    async def _client(self, first: int) -> None:
        await asyncio.sleep(first / CONNECTIONS_PER_S)  # not all connections at once
        number = first
        async with load.connected(self._port) as client:
            while True:
                await client.send(talk.chat(number, stream=False))
                self.answered += 1
                number += self._clients


async def measure(console: Console, quick: bool) -> list[Figure]:
    waiting = QUICK_WAITING if quick else WAITING
    seconds = QUICK_SECONDS if quick else SECONDS
    system_core, rest_core = take_core(console)
    allow_many_connections()
    *engines, port = free_ports(INSTANCES + 1)
    with tempfile.TemporaryDirectory() as log:
        async with (
            server(upstream_command(engines, metrics=True), engines[0], rest_core),
            server(
                [*kairos_command(port, engines, SEQS, log), *_room(log)], port, system_core
            ) as kairos,
            load.connected(engines[0]) as client,
        ):
            clients = waiting + INSTANCES * SEQS
            control = load.Control(client)
            await control.set(Mode(delay_s=HOLD * clients / CONNECTIONS_PER_S))
            asked = Load(port, clients)
            running = asyncio.create_task(asked.run())
            try:
                await _until_waiting(port, int(waiting * SHARE), running)
                console.print(f"{waiting:,} calls wait")
                await control.set(Mode())
                await _until_answered(asked)
                return await _asked_meanwhile(kairos, asked, seconds)
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)


def _room(directory: str) -> list[str]:
    """Settings by which the queue takes all of them."""
    path = Path(directory) / "kairos.toml"
    path.write_text(f"max_waiting = {2 * WAITING}\n")
    return ["--config", str(path)]


async def _until_waiting(port: int, number: int, running: asyncio.Task[None]) -> None:
    async with asyncio.timeout(START_LIMIT_S), load.connected(port) as client:
        while sum(await told(client, "kairos_requests_waiting")) < number:
            if running.done():
                running.result()
            await asyncio.sleep(0.2)


async def _until_answered(asked: Load) -> None:
    """The calls that the instances held, and as many more."""
    async with asyncio.timeout(START_LIMIT_S):
        while asked.answered < 2 * INSTANCES * SEQS:
            await asyncio.sleep(0.05)


async def _asked_meanwhile(kairos: Server, asked: Load, seconds: float) -> list[Figure]:
    before, before_s, began = asked.answered, kairos.cpu_s(), time.monotonic()
    process = await start_child(
        *(sys.executable, "-m", "bench.probe", str(kairos.port), str(seconds)),
        stdout=asyncio.subprocess.PIPE,
    )
    said, _ = await process.communicate()
    times_us = msgspec.json.decode(said, type=list[float])
    ended, took_s = max(1, asked.answered - before), time.monotonic() - began
    cpu_us = (kairos.cpu_s() - before_s) / ended * 1e6
    p50, p99 = (report.percentile(times_us, percent) / 1e3 for percent in (50, 99))
    async with load.connected(kairos.port) as client:
        still = sum(await told(client, "kairos_requests_waiting"))
    return [
        _figure(WAITING_STILL, still, "calls", None),
        _figure(HEALTH.format(50), p50, "ms", None),
        _figure(HEALTH.format(99), p99, "ms", 20),
        _figure(ENDED, ended / took_s, "/s", None),
        _figure(CPU, cpu_us, "us", None),
    ]


def _figure(name: str, value: float, unit: str, target: float | None) -> Figure:
    spread = report.spread([value])
    detail = {"kairos": spread}
    return Figure(name=name, value=spread.median, unit=unit, target=target, detail=detail)


def shown() -> list[str]:
    """Names of the figures for the documentation."""
    return [HEALTH.format(50), HEALTH.format(99), ENDED]


def main() -> None:
    Bench("health", __doc__, SYSTEMS, "1,000 calls, 5 s").of_servers(measure)


if __name__ == "__main__":
    main()

"""`python -m bench.bus`: what Kafka costs, beside the bus in memory and beside HTTP, in one run.

Messages from agent to agent, LLM calls over Kafka and over HTTP, and a minute in which agents get
twice what they can do. The broker and `kairos serve` have core 0; the engines, the agents and the
clients share core 1. Adds its figures to bench/results.json; takes about five minutes. Kafka comes
from scripts/kafka.sh, or is the one that KAIROS_BENCH_BUS=kafka://HOST:PORT names.

`--quick`: fewer rounds and an overload of five seconds, to see that it works.
"""

import argparse
import gc
import os
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec
import uvloop
from rich.console import Console

from bench import bus_calls, bus_servers, messages, overload, report, rows
from bench.bus_servers import Names
from bench.load import Broken
from bench.report import Figure
from bench.scenarios import Measured
from bench.servers import NotStarted
from bench.systems import BUSY, cores
from kairos.core import KairosError

SYSTEMS = {"memory": "without Kafka", "http": "HTTP, on Kafka", "kafka": "over Kafka"}
ADDED_CALL = "added p50 LLM call, Kafka instead of HTTP without a bus"
ADDED_SAME = "added p50 LLM call, Kafka instead of HTTP, same server"
ADDED_GATEWAY = "added p50 bare HTTP call, --bus kafka"
ADDED = (  # name, of what, how much more it is on one system than on another
    (ADDED_CALL, bus_calls.CALL.format("p50"), "kafka", "memory"),
    (ADDED_SAME, bus_calls.CALL.format("p50"), "kafka", "http"),
    (ADDED_GATEWAY, bus_calls.GATEWAY, "http", "memory"),
)

# name of the figure, unit, target
FIGURES: tuple[tuple[str, str, float | None], ...] = (
    *(
        (leg.format(p, which), "us", None)
        for leg in (messages.PUBLISHED, messages.HANDED_ON)
        for which in messages.IN_FLIGHT.values()
        for p in ("p50", "p99")
    ),
    (messages.COMMIT, "us", None),
    (messages.AFTER_COMMIT, "us", None),
    (messages.RATE, "/s", None),
    (messages.RELAYED_RATE, "/s", None),
    (bus_calls.CALL.format("p50"), "us", None),
    (bus_calls.CALL.format("p99"), "us", None),
    (ADDED_CALL, "us", 5_000),
    (ADDED_SAME, "us", 5_000),
    (bus_calls.GATEWAY, "us", None),
    (ADDED_GATEWAY, "us", None),
    (bus_calls.CPU, "us", None),
    (overload.PUBLISHED, "tasks", None),
    (overload.LOST, "tasks", None),
    (overload.TWICE, "tasks", None),
    (overload.RATE, "/s", None),
    (overload.LAG, "tasks", None),
    (overload.LAG_MIB, "MiB", None),
    (overload.MEMORY_BEFORE, "MiB", None),
    (overload.MEMORY_HALF, "MiB", None),
    (overload.MEMORY_GREATEST, "MiB", None),
    (overload.DRAIN, "s", None),
)
HIGHER_IS_BETTER = {messages.RATE, messages.RELAYED_RATE, overload.RATE}


class Scale(msgspec.Struct, frozen=True):
    """How much of everything."""

    rounds: int
    trips: int  # of messages, one at a time; four times as many where there are 64
    messages: int
    calls: int
    overload_s: float


FULL = Scale(rounds=5, trips=500, messages=20_000, calls=500, overload_s=60)
QUICK = Scale(rounds=2, trips=100, messages=2_000, calls=100, overload_s=5)


class Values:
    """What the rounds gave, by figure and system."""

    def __init__(self) -> None:
        self._values: dict[str, dict[str, list[float]]] = {}

    def add(self, system: str, measured: Measured) -> None:
        for name, value in measured.items():
            self._values.setdefault(name, {}).setdefault(system, []).append(value)

    def figures(self) -> list[Figure]:
        values = self._values
        for name, figure, system, other in ADDED:
            both = zip(values[figure][system], values[figure][other], strict=True)
            values[name] = {system: [more - less for more, less in both]}
        return [self._figure(*row) for row in FIGURES]

    def _figure(self, name: str, unit: str, target: float | None) -> Figure:
        """Its value is that on Kafka; the reference that without."""
        detail = {each: report.spread(value) for each, value in self._values[name].items()}
        return Figure(
            name=name,
            value=detail["kafka" if "kafka" in detail else "http"].median,
            unit=unit,
            target=target,
            better="higher" if name in HIGHER_IS_BETTER else "lower",
            reference=detail["memory"].median if "memory" in detail else None,
            detail=dict(detail),
        )


async def measure(scale: Scale, console: Console) -> list[Figure]:
    system_core, rest_core = cores()
    if rest_core is None:
        console.print("one core only: broker, servers and clients share it")
    else:
        os.sched_setaffinity(0, {rest_core})
    if os.getloadavg()[0] > BUSY:
        console.print("the machine is busy with something else: figures will be noisy")
    gc.freeze()  # pauses to look through what was imported are no cost of a bus
    names, values = Names(), Values()
    async with AsyncExitStack() as stack:
        connection = await stack.enter_async_context(bus_servers.broker(system_core))
        ports = await stack.enter_async_context(bus_servers.engines(rest_core))
        serving = bus_servers.serving(connection, names.pool, ports, system_core)
        serves = await stack.enter_async_context(serving)
        # All processes start before there are clients of Kafka here: those have threads.
        async with bus_servers.agents(connection, names.app, ports[0], rest_core) as agents:
            await stack.enter_async_context(bus_servers.topics(connection, names))
            console.print(f"an overload of {scale.overload_s:g} s, and the drain")
            load = overload.overload(connection, names.app, agents, scale.overload_s)
            values.add("kafka", await load)
        async with messages.relays(connection, names.relay) as relays:
            for number in range(scale.rounds):
                console.print(f"round {number + 1} of {scale.rounds}: messages between agents")
                for system, relay in relays.items():
                    values.add(system, await messages.measure(relay, scale.trips, scale.messages))
        async with bus_calls.callers(connection, names, serves) as callers:
            for number in range(scale.rounds):
                console.print(f"round {number + 1} of {scale.rounds}: LLM calls")
                for system, measured in (await callers.measure(scale.calls)).items():
                    values.add(system, measured)
    return values.figures()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.bus", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, a shorter overload")
    parser.add_argument("--results", type=Path, help="the file that gets the figures")
    arguments = parser.parse_args()
    console = report.console()
    try:
        found = uvloop.run(measure(QUICK if arguments.quick else FULL, console))
    except* (NotStarted, Broken, KairosError) as group:
        sys.exit(f"bench: {_first(group)}")
    except* KeyboardInterrupt:
        sys.exit(130)
    if arguments.results is not None:
        report.add(found, arguments.results)
    elif not arguments.quick:
        rows.keep(found, "bus")
    report.show(found, console, SYSTEMS)
    if wrong := [each.name for each in found if each.name in overload.MUST_BE_NONE and each.value]:
        sys.exit(f"bench: {', '.join(wrong)}")


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error


if __name__ == "__main__":
    main()

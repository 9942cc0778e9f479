"""`python -m bench.gateway`: engines alone, Kairos and vllm-router side by side, in one run.

Each scenario is measured on every system in turn, round by round, so that what else the machine
does hits all alike. The system under test has core 0, the engines and the clients share core 1.
Keeps its figures (`bench/rows.py`); takes about four minutes. `--quick`: two rounds, not kept.
"""

import tempfile
import time
from contextlib import AsyncExitStack

from rich.console import Console

from bench import report
from bench.command import Bench
from bench.load import Control
from bench.report import Figure
from bench.scenarios import (
    ADDED,
    FIGURES,
    LATENCY,
    ON_GATEWAYS,
    SCENARIOS,
    abort_in_queue,
)
from bench.servers import free_port, server
from bench.systems import System, cores, kairos_command, side_by_side

SYSTEMS = {"direct": "direct", "vllm-router": "vllm-router", "kairos": "Kairos"}
ROUNDS, QUICK_ROUNDS = 5, 2


async def measure(console: Console, quick: bool) -> list[Figure]:
    async with side_by_side(console) as made:
        values = await run_rounds(
            made.systems, made.control, console, QUICK_ROUNDS if quick else ROUNDS
        )
        console.print("leaving the queue")
        delays = await leave_the_queue(made.engines[0], made.control)
        queued = report.percentile(delays, 99)
        values["kairos"]["p99 leave to abort, in the queue"] = [queued]
    return figures(values)


async def leave_the_queue(engine: int, control: Control) -> list[float]:
    """Of a Kairos whose only engine runs one call at a time."""
    async with AsyncExitStack() as stack:
        log = stack.enter_context(tempfile.TemporaryDirectory())
        port = free_port()
        command = kairos_command(port, [engine], 1, log)
        await stack.enter_async_context(server(command, port, cores()[0]))
        return await abort_in_queue(port, control)


async def run_rounds(
    under_test: list[System], control: Control, console: Console, rounds: int
) -> dict[str, dict[str, list[float]]]:
    """Every scenario on every system, so many times. Values by system and figure."""
    values: dict[str, dict[str, list[float]]] = {system.name: {} for system in under_test}
    for number in range(rounds):
        for scenario in SCENARIOS:
            started = time.monotonic()
            for system in under_test[scenario in ON_GATEWAYS :]:  # the first is no gateway
                for name, value in (await scenario(system, control)).items():
                    values[system.name].setdefault(name, []).append(value)
            took_s = time.monotonic() - started
            console.print(f"round {number + 1} of {rounds}: {scenario.__name__} ({took_s:.1f} s)")
    return values


def figures(values: dict[str, dict[str, list[float]]]) -> list[Figure]:
    alone = values["direct"][LATENCY]
    for system in ("kairos", "vllm-router"):
        through = values[system][LATENCY]
        values[system][ADDED] = [a - b for a, b in zip(through, alone, strict=True)]
    found = []
    for name, unit, target in FIGURES:
        detail = {system: report.spread(v[name]) for system, v in values.items() if name in v}
        medians = {system: spread.median for system, spread in detail.items()}
        value, reference = medians.get("kairos"), medians.get("vllm-router")
        found.append(
            Figure(
                name=name, value=value, unit=unit, target=target, reference=reference, detail=detail
            )
        )
    return found


def main() -> None:
    Bench("gateway", __doc__, SYSTEMS, "two rounds").of_servers(measure)


if __name__ == "__main__":
    main()

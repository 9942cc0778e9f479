"""`python -m bench.gateway`: engines alone, Kairos and vllm-router side by side, in one run.

Each scenario is measured on every system in turn, round by round, so that what else the machine
does hits all alike. The system under test has core 0, the engines and the clients share core 1.
Adds its figures to bench/results.json; takes about three minutes.
"""

import os
import subprocess
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path

import uvloop
from rich.console import Console

from bench import load, report
from bench.load import Control
from bench.report import Figure
from bench.scenarios import (
    CONCURRENCY,
    LATENCY,
    ON_GATEWAYS,
    SCENARIOS,
    System,
    abort_in_queue,
)
from bench.servers import NotStarted, free_port, server
from bench.upstream import HOST, Mode

SYSTEMS = {"direct": "direct", "vllm-router": "vllm-router", "kairos": "Kairos"}
ROUNDS = 5
ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results.json"
PEER_VENV = ROOT / ".venv-bench"
PEER_LOCK = ROOT / "bench" / "requirements.lock"
ADDED = "added p50 latency, one call at a time"
BUSY = 0.5  # load average
MANY = 512  # sequences at once on an engine: never the limit here


# name of the figure, unit, target for Kairos
FIGURES = (
    (LATENCY, "us", None),
    (ADDED, "us", None),
    ("CPU per JSON call", "us", 300),
    ("CPU per stream, 16 chunks at once", "us", 500),
    ("CPU per stream, 16 chunks 20 ms apart", "us", None),
    ("p99 delay of a chunk, 256 streams", "ms", 50),
    ("p50 delay of a chunk, 256 streams", "ms", None),
    ("p99 leave to abort, before the first byte", "ms", 100),
    ("p99 leave to abort, in mid-stream", "ms", 100),
    ("p99 leave to abort, in the queue", "ms", 100),
)


def install_peer(console: Console) -> str:
    """The vllm-router of requirements.lock, in an environment of its own. Returns its path."""
    program = PEER_VENV / "bin" / "vllm-router"
    stamp = PEER_VENV / ".installed"
    if not stamp.exists() or stamp.read_bytes() != PEER_LOCK.read_bytes():
        console.print(f"installing vllm-router into {PEER_VENV.name}")
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(PEER_VENV)], check=True)
        python = str(PEER_VENV / "bin" / "python")
        pip = [python, "-m", "pip", "--disable-pip-version-check", "--quiet"]
        options = ["--require-hashes", "--only-binary", ":all:", "-r", str(PEER_LOCK)]
        subprocess.run([*pip, "install", *options], check=True)
        stamp.write_bytes(PEER_LOCK.read_bytes())
    return str(program)


def cores() -> tuple[int | None, int | None]:
    """For the system under test, and for the rest."""
    usable = sorted(os.sched_getaffinity(0))
    return (usable[0], usable[1]) if len(usable) > 1 else (None, None)


def kairos_command(port: int, engines: list[int], max_num_seqs: int, log: str) -> list[str]:
    """With its log written, as in production."""
    command = [f"{Path(sys.executable).parent}/kairos", "serve", "--port", str(port), "--log", log]
    for engine in engines:
        command += ["--engine", f"http://{HOST}:{engine},max_num_seqs={max_num_seqs}"]
    return [*command, "--admin-port", "0"]


def peer_command(program: str, port: int, engines: list[int]) -> list[str]:
    urls = [f"http://{HOST}:{engine}" for engine in engines]
    return [
        *(program, "--worker-urls", *urls, "--policy", "cache_aware"),
        *("--host", HOST, "--port", str(port), "--prometheus-port", str(free_port())),
        *("--log-level", "warning"),
    ]


async def measure(console: Console) -> list[Figure]:
    peer_program = install_peer(console)
    system_core, rest_core = cores()
    if rest_core is None:
        console.print("one core only: systems, engines and clients share it")
    else:
        os.sched_setaffinity(0, {rest_core})
    if os.getloadavg()[0] > BUSY:
        console.print("the machine is busy with something else: figures will be noisy")
    engines = [free_port(), free_port()]
    async with AsyncExitStack() as stack:
        log = stack.enter_context(tempfile.TemporaryDirectory())
        upstream = [sys.executable, "-m", "bench.upstream", *map(str, engines)]
        direct = await stack.enter_async_context(server(upstream, engines[0], rest_core))
        control = Control(await stack.enter_async_context(load.connected(engines[0])))
        under_test = [System("direct", direct, engines[0])]
        ports = [free_port(), free_port()]
        for name, port, command in (
            ("kairos", ports[0], kairos_command(ports[0], engines, MANY, f"{log}/many")),
            ("vllm-router", ports[1], peer_command(peer_program, ports[1], engines)),
        ):
            started = await stack.enter_async_context(server(command, port, system_core))
            under_test.append(System(name, started, port))
        values = await run_rounds(under_test, control, console)
        port = free_port()
        one_slot = kairos_command(port, engines[:1], 1, f"{log}/one")
        only = server(one_slot, port, system_core)
        async with only:
            console.print("leaving the queue")
            delays = await abort_in_queue(port, control)
        queued = report.percentile(delays, 99)
        values["kairos"]["p99 leave to abort, in the queue"] = [queued]
    return figures(values)


async def run_rounds(
    under_test: list[System], control: Control, console: Console
) -> dict[str, dict[str, list[float]]]:
    """Every scenario on every system, `ROUNDS` times. Values by system and figure."""
    values: dict[str, dict[str, list[float]]] = {system.name: {} for system in under_test}
    for system in under_test:
        await control.set(Mode())
        await load.closed_loop(system.port, 300, CONCURRENCY, stream=False)  # to warm up
    for number in range(ROUNDS):
        for scenario in SCENARIOS:
            started = time.monotonic()
            for system in under_test[scenario in ON_GATEWAYS :]:  # the first is no gateway
                for name, value in (await scenario(system, control)).items():
                    values[system.name].setdefault(name, []).append(value)
            took_s = time.monotonic() - started
            console.print(f"round {number + 1} of {ROUNDS}: {scenario.__name__} ({took_s:.1f} s)")
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
    console = Console()
    try:
        found = uvloop.run(measure(console))
    except* (NotStarted, load.Broken) as group:
        sys.exit(f"bench: {group.exceptions[0]}")
    except* KeyboardInterrupt:
        sys.exit(130)
    report.add(found, RESULTS)
    report.show(found, console, SYSTEMS)


if __name__ == "__main__":
    main()

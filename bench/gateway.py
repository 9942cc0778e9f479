"""`python -m bench.gateway`: engines alone, Kairos and vllm-router side by side, in one run.

Each scenario is measured on every system in turn, round by round, so that what else the machine
does hits all alike. The system under test has core 0, the engines and the clients share core 1.
Writes bench/results.json; takes about three minutes.
"""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec
import uvloop
from rich.console import Console

from bench import load, report
from bench.load import Control
from bench.report import Figure
from bench.servers import NotStarted, Server, free_port, server
from bench.upstream import HOST, Mode

ROUNDS = 5
ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results.json"
PEER_VENV = ROOT / ".venv-bench"
PEER_LOCK = ROOT / "bench" / "requirements.lock"
CONCURRENCY = 32
STREAM_CHUNKS = 16
STREAMS = 256
CHUNKS_PER_S = 30
STREAM_S = 4.0
LEAVERS = 40  # a round
LATENCY = "p50 latency, one call at a time"
ADDED = "added p50 latency, one call at a time"
LIMIT_S = 2.0  # an abort that takes longer counts as this
BUSY = 0.5  # load average
MANY = 512  # sequences at once on an engine: never the limit here


class System(msgspec.Struct):
    name: str
    server: Server
    port: int


Measured = dict[str, float]  # by name of the figure


async def latency(system: System, control: Control) -> Measured:
    await control.set(Mode())
    times = await load.closed_loop(system.port, 600, 1, stream=False)
    return {LATENCY: report.percentile(times, 50) * 1e6}


async def cpu_json(system: System, control: Control) -> Measured:
    await control.set(Mode())
    return {"CPU per JSON call": await _cpu_us(system, calls=2500, stream=False)}


async def cpu_stream(system: System, control: Control) -> Measured:
    await control.set(Mode(chunks=STREAM_CHUNKS))
    return {"CPU per stream, 16 chunks at once": await _cpu_us(system, calls=1500, stream=True)}


async def cpu_slow_stream(system: System, control: Control) -> Measured:
    await control.set(Mode(chunks=STREAM_CHUNKS, interval_s=0.020))
    return {"CPU per stream, 16 chunks 20 ms apart": await _cpu_us(system, calls=320, stream=True)}


async def _cpu_us(system: System, *, calls: int, stream: bool) -> float:
    before_s = system.server.cpu_s()
    await load.closed_loop(system.port, calls, CONCURRENCY, stream=stream)
    return (system.server.cpu_s() - before_s) / calls * 1e6


async def chunk_delay(system: System, control: Control) -> Measured:
    chunks = int(STREAM_S * CHUNKS_PER_S)
    await control.set(Mode(chunks=chunks, interval_s=1 / CHUNKS_PER_S))
    delays = await load.chunk_delays(system.port, STREAMS, spread_s=1.0)
    assert len(delays) == STREAMS * (chunks - 1)
    return {
        "p99 delay of a chunk, 256 streams": report.percentile(delays, 99) / 1e6,
        "p50 delay of a chunk, 256 streams": report.percentile(delays, 50) / 1e6,
    }


async def abort_before_first_byte(system: System, control: Control) -> Measured:
    delays = await _abort_delays(system, control, Mode(silent=True))
    return {"p99 leave to abort, before the first byte": report.percentile(delays, 99)}


async def abort_in_mid_stream(system: System, control: Control) -> Measured:
    mode = Mode(chunks=100_000, interval_s=1 / CHUNKS_PER_S)
    delays = await _abort_delays(system, control, mode)
    return {"p99 leave to abort, in mid-stream": report.percentile(delays, 99)}


async def _abort_delays(system: System, control: Control, mode: Mode) -> list[float]:
    """Milliseconds from a client's leaving to the engine's connection being closed."""
    await control.set(mode)
    delays = []
    for number in range(LEAVERS):
        await control.seen()
        async with load.connected(system.port) as client:
            client.send(load.chat(number, stream=True))
            if mode.chunks:
                await client.first_byte.wait()
            else:
                await _until(lambda: _called(control))
            left_ns = client.leave()
        delays.append(await _aborted_after_ms(control, left_ns))
    return delays


async def _called(control: Control) -> bool:
    return (await control.seen()).calls > 0


async def _until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not await condition():
            await asyncio.sleep(0.001)


async def _aborted_after_ms(control: Control, left_ns: int) -> float:
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        if aborted_ns := (await control.seen()).aborted_ns:
            return (aborted_ns[0] - left_ns) / 1e6
        await asyncio.sleep(0.001)
    return LIMIT_S * 1e3


# The engines' own CPU time is nobody's cost here, so that is measured on gateways alone.
ON_GATEWAYS = (cpu_json, cpu_stream, cpu_slow_stream)
SCENARIOS = (
    latency,
    *ON_GATEWAYS,
    chunk_delay,
    abort_before_first_byte,
    abort_in_mid_stream,
)


async def abort_in_queue(kairos_port: int, control: Control) -> list[float]:
    """Milliseconds from a waiting client's leaving to Kairos's queue being empty, as its own
    /metrics tells. The caller has given Kairos one engine of one sequence."""
    await control.set(Mode(silent=True))
    await control.seen()
    delays = []
    async with load.connected(kairos_port) as holder, load.connected(kairos_port) as metrics:

        async def waiting(count: int) -> bool:
            text = await metrics.send(load.http(b"GET", b"/metrics"))
            return b"\nkairos_requests_waiting %d.0\n" % count in text

        holder.send(load.chat(0, stream=True))
        await _until(lambda: _called(control))
        for number in range(1, LEAVERS + 1):
            async with load.connected(kairos_port) as client:
                client.send(load.chat(number, stream=True))
                await _until(lambda: waiting(1))
                left_ns = client.leave()
            await _until(lambda: waiting(0))
            delays.append((time.monotonic_ns() - left_ns) / 1e6)
    return delays


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
        subprocess.run([sys.executable, "-m", "venv", "--clear", PEER_VENV], check=True)
        pip = [PEER_VENV / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "--quiet"]
        options = ["--require-hashes", "--only-binary", ":all:", "-r", PEER_LOCK]
        subprocess.run([*pip, "install", *options], check=True)
        stamp.write_bytes(PEER_LOCK.read_bytes())
    return str(program)


def cores() -> tuple[int | None, int | None]:
    """For the system under test, and for the rest."""
    usable = sorted(os.sched_getaffinity(0))
    return (usable[0], usable[1]) if len(usable) > 1 else (None, None)


def kairos_command(port: int, engines: list[int], max_num_seqs: int) -> list[str]:
    command = [f"{Path(sys.executable).parent}/kairos", "serve", "--port", str(port)]
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
        upstream = [sys.executable, "-m", "bench.upstream", *map(str, engines)]
        direct = await stack.enter_async_context(server(upstream, engines[0], rest_core))
        control = Control(await stack.enter_async_context(load.connected(engines[0])))
        under_test = [System("direct", direct, engines[0])]
        for name, command in (
            ("kairos", lambda port: kairos_command(port, engines, MANY)),
            ("vllm-router", lambda port: peer_command(peer_program, port, engines)),
        ):
            port = free_port()
            started = await stack.enter_async_context(server(command(port), port, system_core))
            under_test.append(System(name, started, port))
        values = await run_rounds(under_test, control, console)
        only = server(kairos_command(port := free_port(), engines[:1], 1), port, system_core)
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
    report.write(found, RESULTS)
    report.show(found, console)


if __name__ == "__main__":
    main()

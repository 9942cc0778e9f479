"""`python -m bench.tls`: what TLS between clients and Kairos costs, in CPU time of Kairos.

Three of the same: one without TLS, one with a certificate of an elliptic curve (P-256), one with
RSA of 2,048 bits. Calls on kept connections, whole and streamed; and each on a connection of its
own, with all that a handshake takes, which no client shortens by an earlier one. By turns, round
after round; medians. OpenSSL on both sides, TLS 1.3. Keeps its figures (`bench/rows.py`); takes
two minutes. `--quick`: one short round, not kept.
"""

import asyncio
import contextlib
import ssl
import subprocess
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from itertools import islice
from pathlib import Path

import msgspec
from rich.console import Console

from bench import load, report, talk
from bench.command import Bench
from bench.report import Figure
from bench.servers import Server, server
from bench.systems import (
    CONCURRENCY,
    MANY,
    free_ports,
    kairos_command,
    take_core,
    upstream_command,
    warm_up,
)
from bench.upstream import Mode

SYSTEMS = {"plain": "without TLS", "p256": "TLS, P-256", "rsa": "TLS, RSA-2048"}
KINDS = {"p256": ("ec", "ec_paramgen_curve:P-256"), "rsa": ("rsa", "rsa_keygen_bits:2048")}
ROUNDS, QUICK_ROUNDS = 7, 1
CALLS, QUICK_CALLS = 2_400, 300
AT_ONCE = 8  # calls on connections of their own

KEPT = "CPU per JSON call on a kept connection"
STREAMED = "CPU per stream of 16 chunks on a kept connection"
NEW = "CPU per JSON call on a connection of its own"
FIGURES = (KEPT, STREAMED, NEW)

Values = dict[str, dict[str, list[float]]]  # by figure and system


class Secured(msgspec.Struct):
    """A Kairos, and what its clients need to reach it."""

    server: Server
    tls: ssl.SSLContext | None


def certificate(directory: Path, kind: str) -> tuple[Path, Path]:
    """Signed by itself; and its key."""
    made, key = directory / f"{kind}.crt", directory / f"{kind}.key"
    algorithm, option = KINDS[kind]
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-nodes", "-days", "1", "-subj", "/CN=localhost"),
            *("-newkey", algorithm, "-pkeyopt", option),
            *("-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", str(key), "-out", str(made)),
        ],
        check=True,
        capture_output=True,
    )
    return made, key


@asynccontextmanager
async def all_three(console: Console) -> AsyncIterator[tuple[dict[str, Secured], load.Control]]:
    """Warm. Raises NotStarted."""
    system_core, rest_core = take_core(console)
    engine, *ports = free_ports(1 + len(SYSTEMS))
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        upstream = upstream_command([engine], metrics=True)
        await stack.enter_async_context(server(upstream, engine, rest_core))
        control = load.Control(await stack.enter_async_context(load.connected(engine)))
        made: dict[str, Secured] = {}
        for kind, port in zip(SYSTEMS, ports, strict=True):
            command, tls = (
                kairos_command(port, [engine], MANY, str(directory / f"{kind}-log")),
                None,
            )
            if kind in KINDS:
                shown, key = certificate(directory, kind)
                command += ["--tls-certificate", str(shown), "--tls-key", str(key)]
                tls = ssl.create_default_context(cafile=str(shown))
            started = server(command, port, system_core, partial(_is_well, tls))
            made[kind] = Secured(await stack.enter_async_context(started), tls)
            await warm_up(port, control, tls)
        yield made, control


async def _is_well(tls: ssl.SSLContext | None, port: int) -> bool:
    with contextlib.suppress(OSError, load.Broken):
        async with load.connected(port, tls) as client:
            await client.send(talk.http(b"GET", b"/health"))
            return True
    return False


async def measure(console: Console, quick: bool) -> list[Figure]:
    calls, rounds = (QUICK_CALLS, QUICK_ROUNDS) if quick else (CALLS, ROUNDS)
    values: Values = {name: {kind: [] for kind in SYSTEMS} for name in FIGURES}
    async with all_three(console) as (systems, control):
        for number in range(rounds):
            console.print(f"round {number + 1} of {rounds}")
            for name in FIGURES:
                await control.set(Mode())
                for kind, secured in systems.items():
                    values[name][kind].append(await _cpu_us(secured, name, calls))
    return [_figure(name, each) for name, each in values.items()]


async def _cpu_us(secured: Secured, name: str, calls: int) -> float:
    """For each call."""
    asked: dict[str, Callable[[], Awaitable[object]]] = {
        KEPT: lambda: _kept(secured, calls, talk.named()),
        STREAMED: lambda: _kept(secured, calls, talk.named_streams()),
        NEW: lambda: _new(secured, calls),
    }
    before_s = secured.server.cpu_s()
    await asked[name]()
    return (secured.server.cpu_s() - before_s) / calls * 1e6


async def _kept(secured: Secured, calls: int, new_client: talk.NewClient) -> None:
    await load.closed_loop(secured.server.port, calls, CONCURRENCY, new_client, secured.tls)


async def _new(secured: Secured, calls: int) -> None:
    numbers = islice(load.numbers(), calls)

    async def work() -> None:
        for number in numbers:
            async with load.connected(secured.server.port, secured.tls) as client:
                await client.send(talk.chat(number, stream=False))

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(work())


def _figure(name: str, values: dict[str, list[float]]) -> Figure:
    """`value` is that of P-256, `reference` that without TLS."""
    spreads = {kind: report.spread(each) for kind, each in values.items()}
    return Figure(
        name=name,
        value=spreads["p256"].median,
        unit="us",
        target=None,
        reference=spreads["plain"].median,
        detail=dict(spreads),
    )


def shown() -> list[str]:
    """Names of the figures for the documentation."""
    return list(FIGURES)


def main() -> None:
    Bench("tls", __doc__, SYSTEMS, "one short round").of_servers(measure)


if __name__ == "__main__":
    main()

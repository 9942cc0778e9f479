"""`python -m bench.tls`: what TLS between clients and Kairos costs, in CPU time of Kairos.

Three of the same: one without TLS, one with a certificate of an elliptic curve (P-256), one with
RSA of 2,048 bits. Calls on connections that are kept, whole and streamed; and each on a connection
of its own, with all that a handshake takes, which no client shortens by an earlier one. By turns, a
few hundred calls each, over many rounds, and what TLS adds is the median of rounds' differences: so
what else the machine does counts for all three alike. OpenSSL on both sides, TLS 1.3. Keeps its
figures (`bench/rows.py`); takes three minutes. `--quick`: two rounds, not kept.
"""

import asyncio
import contextlib
import ssl
import subprocess
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import quantiles

import msgspec
from rich.console import Console

from bench import load, report, talk
from bench.command import Bench
from bench.report import Figure
from bench.servers import Server, server
from bench.systems import (
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
ROUNDS, QUICK_ROUNDS = 30, 2
CALLS = 384  # of a round
NEW_CALLS = 128
AT_ONCE = 32  # calls

KEPT = "CPU per JSON call on a kept connection"
STREAMED = "CPU per stream of 16 chunks on a kept connection"
NEW = "CPU per JSON call on a connection of its own"
FIGURES = (KEPT, STREAMED, NEW)
ADDED = "what TLS adds to it: {}"
SHORT = {KEPT: "JSON call, kept", STREAMED: "stream, kept", NEW: "JSON call on its own"}

Values = dict[str, list[float]]  # of one figure, by system: one for each round


class Secured(msgspec.Struct):
    """A Kairos, what its clients need to reach it, and their connections."""

    server: Server
    tls: ssl.SSLContext | None
    kept: list[load.Client]


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
            process = await stack.enter_async_context(started)
            await warm_up(port, control, tls)
            kept = [
                await stack.enter_async_context(load.connected(port, tls)) for _ in range(AT_ONCE)
            ]
            made[kind] = Secured(process, tls, kept)
        yield made, control


async def _is_well(tls: ssl.SSLContext | None, port: int) -> bool:
    with contextlib.suppress(OSError, load.Broken):
        async with load.connected(port, tls) as client:
            await client.send(talk.http(b"GET", b"/health"))
            return True
    return False


async def measure(console: Console, quick: bool) -> list[Figure]:
    rounds = QUICK_ROUNDS if quick else ROUNDS
    values: dict[str, Values] = {name: {kind: [] for kind in SYSTEMS} for name in FIGURES}
    async with all_three(console) as (systems, control):
        await control.set(Mode())
        for number in range(rounds):
            console.print(f"round {number + 1} of {rounds}")
            for name in FIGURES:
                for kind, secured in systems.items():
                    values[name][kind].append(await _cpu_us(secured, name))
    return [
        each
        for name in FIGURES
        for each in (_figure(name, values[name]), _added(name, values[name]))
    ]


async def _cpu_us(secured: Secured, name: str) -> float:
    """For each call."""
    before_s = secured.server.cpu_s()
    if name == NEW:
        calls = NEW_CALLS
        await _at_once(calls, [partial(_on_its_own, secured)] * AT_ONCE)
    else:
        calls = CALLS
        asks = [partial(_kept, client, name == STREAMED) for client in secured.kept]
        await _at_once(calls, asks)
    return (secured.server.cpu_s() - before_s) / calls * 1e6


async def _at_once(calls: int, asks: Sequence[Callable[[int], Awaitable[object]]]) -> None:
    numbers = islice(load.numbers(), calls)

    async def work(ask: Callable[[int], Awaitable[object]]) -> None:
        for number in numbers:
            await ask(number)

    async with asyncio.TaskGroup() as group:
        for ask in asks:
            group.create_task(work(ask))


async def _kept(client: load.Client, stream: bool, number: int) -> None:
    await client.send(talk.chat(number, stream=stream))


async def _on_its_own(secured: Secured, number: int) -> None:
    async with load.connected(secured.server.port, secured.tls) as client:
        await client.send(talk.chat(number, stream=False))


def _figure(name: str, values: Values) -> Figure:
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


def _added(name: str, values: Values) -> Figure:
    """In each round beside the one without TLS. Between quartiles: of a machine that does other
    things too, the lowest and the highest say nothing."""
    spreads = {
        kind: _between_quartiles(
            [a - b for a, b in zip(values[kind], values["plain"], strict=True)]
        )
        for kind in KINDS
    }
    return Figure(
        name=ADDED.format(SHORT[name]),
        value=spreads["p256"].median,
        unit="us",
        target=None,
        detail=dict(spreads),
    )


def _between_quartiles(values: list[float]) -> report.Spread:
    low, middle, high = quantiles(values, n=4, method="inclusive")
    return report.Spread(round(middle, 1), round(low, 1), round(high, 1), len(values))


def shown() -> list[str]:
    """Names of the figures for the documentation."""
    return [each for name in FIGURES for each in (name, ADDED.format(SHORT[name]))]


def main() -> None:
    Bench("tls", __doc__, SYSTEMS, "two rounds").of_servers(measure)


if __name__ == "__main__":
    main()

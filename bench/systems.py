"""What is compared, started side by side: the engines alone, Kairos and vllm-router.

The system under test has core 0; the engines and the clients share core 1.
"""

import os
import ssl
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
from rich.console import Console

from bench import load, talk
from bench.load import Control
from bench.servers import Server, free_port, server
from bench.upstream import HOST, Mode

ROOT = Path(__file__).parents[1]
PEER_VENV = ROOT / ".venv-bench"
PEER_LOCK = ROOT / "bench" / "requirements.lock"
BUSY = 0.5  # load average
MANY = 512  # sequences at once on an engine: never the limit here
ENGINES = 2
WARM_UP = 300  # calls
CONCURRENCY = 32


class System(msgspec.Struct):
    name: str
    server: Server
    port: int


class SideBySide(msgspec.Struct):
    """All systems, before the same engines."""

    systems: list[System]  # the first is the engines alone
    control: Control
    engines: list[int]  # their ports


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


def take_core(console: Console) -> tuple[int | None, int | None]:
    """Move this process to the core of the rest, and say what will make figures noisy. Returns
    both cores."""
    system_core, rest_core = cores()
    if rest_core is None:
        console.print("one core only: systems, engines and clients share it")
    else:
        os.sched_setaffinity(0, {rest_core})
    if os.getloadavg()[0] > BUSY:
        console.print("the machine is busy with something else: figures will be noisy")
    return system_core, rest_core


def kairos_arguments(port: int, engines: list[int], max_num_seqs: int, log: str) -> list[str]:
    """With its log written, as in production."""
    arguments = ["serve", "--port", str(port), "--log", log, "--admin-port", "0"]
    for engine in engines:
        arguments += ["--engine", f"http://{HOST}:{engine},max_num_seqs={max_num_seqs}"]
    return arguments


def kairos_command(port: int, engines: list[int], max_num_seqs: int, log: str) -> list[str]:
    program = f"{Path(sys.executable).parent}/kairos"
    return [program, *kairos_arguments(port, engines, max_num_seqs, log)]


def upstream_command(engines: list[int], *, metrics: bool) -> list[str]:
    told = ["--metrics"] if metrics else []
    return [sys.executable, "-m", "bench.upstream", *map(str, engines), *told]


def peer_command(program: str, port: int, engines: list[int]) -> list[str]:
    urls = [f"http://{HOST}:{engine}" for engine in engines]
    return [
        *(program, "--worker-urls", *urls, "--policy", "cache_aware"),
        *("--host", HOST, "--port", str(port), "--prometheus-port", str(free_port())),
        *("--log-level", "warning"),
    ]


def free_ports(number: int) -> list[int]:
    """Different ones."""
    found: set[int] = set()
    while len(found) < number:
        found.add(free_port())
    return sorted(found)


@asynccontextmanager
async def side_by_side(console: Console) -> AsyncIterator[SideBySide]:
    """All systems, warm. The engines tell their metrics as vLLM does.

    Raises:
        NotStarted
    """
    peer_program = install_peer(console)
    system_core, rest_core = take_core(console)
    engines = free_ports(ENGINES)
    ports = free_ports(2)
    upstream = upstream_command(engines, metrics=True)
    with tempfile.TemporaryDirectory() as log:
        kairos = kairos_command(ports[0], engines, MANY, log)
        peer = peer_command(peer_program, ports[1], engines)
        async with (
            server(upstream, engines[0], rest_core) as direct,
            load.connected(engines[0]) as client,
            server(kairos, ports[0], system_core) as ours,
            server(peer, ports[1], system_core) as theirs,
        ):
            made = SideBySide(
                systems=[
                    System("direct", direct, engines[0]),
                    System("kairos", ours, ports[0]),
                    System("vllm-router", theirs, ports[1]),
                ],
                control=Control(client),
                engines=engines,
            )
            for system in made.systems:
                await warm_up(system.port, made.control)
            yield made


async def warm_up(port: int, control: Control, tls: ssl.SSLContext | None = None) -> None:
    await control.set(Mode())
    await load.closed_loop(port, WARM_UP, CONCURRENCY, talk.named(), tls)


if __name__ == "__main__":  # `make install-bench`
    install_peer(Console())

"""Measure what is between two operators of a served flow: `python -m bench.served_flow`.

A chain of 20 LLM operators before a stand-in that answers at once, and the same calls by a client
that makes one after the other: through Kairos, and to the stand-in. Printed are milliseconds of a
call, in the middle of 60 rounds of each, in turn. What a flow's call takes beyond a client's own
through Kairos is what issuing two operators together (Teola's pre-scheduling) could save at most.
Half a minute.
"""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import quantiles
from tempfile import TemporaryDirectory

import aiohttp
from rich.console import Console

from bench.servers import listens, server
from bench.systems import free_ports

OPERATORS, ROUNDS, WARM = 20, 60, 5
CHAT = "/v1/chat/completions"
JSON, YAML = {"content-type": "application/json"}, {"content-type": "application/yaml"}


def source() -> str:
    """Return the flow: each operator needs the one before."""
    lines = ["flow: chain", "operators:", "  row: {kind: input}"]
    for number in range(OPERATORS):
        before = f"s{number - 1}" if number else "row.text"
        prompt = f"step {number} {{{{ {before} }}}}"
        lines.append(f"  s{number}: {{kind: llm, prompt: '{prompt}', max_tokens: 1, on_cut: keep}}")
    return "\n".join([*lines, f"outputs: {{out: s{OPERATORS - 1}}}", ""])


async def _post(session: aiohttp.ClientSession, url: str, body: object) -> None:
    async with session.post(url, json=body) as answer:
        if answer.status != 200:
            raise SystemExit(f"{url}: {answer.status} {(await answer.text())[:200]}")
        await answer.read()


async def _measure(
    session: aiohttp.ClientSession, kairos: str, engine: str
) -> dict[str, list[float]]:
    async with session.put(f"{kairos}/v1/flows/chain", data=source(), headers=YAML) as answer:
        if answer.status != 200:
            raise SystemExit(await answer.text())

    async def invoked(number: int) -> None:
        await _post(session, f"{kairos}/v1/flows/chain/invoke", {"inputs": {"text": f"t{number}"}})

    def asked(base: str) -> Callable[[int], Awaitable[None]]:
        async def ask(number: int) -> None:
            for step in range(OPERATORS):
                message = {"role": "user", "content": f"step {step} t{number}"}
                body = {"model": "tiny", "max_tokens": 1, "messages": [message]}
                await _post(session, base + CHAT, body)

        return ask

    ways = {
        "operator of a served flow": invoked,
        "client's call through Kairos": asked(kairos),
        "client's call to the engine": asked(engine),
    }
    took: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(WARM + ROUNDS):
        for name, ask in ways.items():
            began_s = time.perf_counter()
            await ask(number)
            took[name].append((time.perf_counter() - began_s) / OPERATORS * 1_000)
    return {name: each[WARM:] for name, each in took.items()}


async def measure() -> dict[str, list[float]]:
    """Return the milliseconds of a call in each round, by way."""
    command = [sys.executable, "-m", "kairos.cli.main"]
    engine, port, admin = free_ports(3)
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        settings = folder / "kairos.toml"
        settings.write_text(
            f"port = {port}\nadmin_port = {admin}\n[[engine]]\nurl = 'http://127.0.0.1:{engine}'\n"
            f"[flows]\ndirectory = '{folder / 'flows'}'\nshare_s = 0\n"
        )
        standin = [*command, "standin", "--port", str(engine), "--model", "tiny", "--instant"]
        await stack.enter_async_context(server(standin, engine, None, listens))
        serve = [*command, "serve", "--config", str(settings)]
        await stack.enter_async_context(server(serve, port, None, listens))
        session = await stack.enter_async_context(aiohttp.ClientSession())
        return await _measure(session, f"http://127.0.0.1:{port}", f"http://127.0.0.1:{engine}")


def main() -> None:
    console = Console()
    for name, took in asyncio.run(measure()).items():
        low, middle, high = quantiles(took, n=4)
        console.print(f"{name}: {middle:.2f} ms [{low:.2f}-{high:.2f}]")


if __name__ == "__main__":
    main()

"""`python -m bench.ui`: what the operators' page costs, and how soon it shows something.

First the CPU of Kairos per call at 500 calls a second, with nobody at the page, and with five who
have it open, in turns. Then, in a real Chromium, each page of a Kairos that has 100,000 workflows
and 10,000 calls that wait: until its first paint, and until what it is about is there. Keeps its
figures (`bench/rows.py`); takes three minutes. `--quick`: a tenth of it, 30 s, not kept.
"""

import asyncio
import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from statistics import median

from rich.console import Console

from bench import load, report, talk
from bench.command import Bench
from bench.report import Figure
from bench.servers import NotStarted, Server, server
from bench.systems import ENGINES, MANY, free_ports, kairos_command, take_core, upstream_command
from bench.upstream import HOST, Mode

CALLS_PER_S, CLIENTS, VIEWERS = 500, 50, 5
ROUNDS, QUICK_ROUNDS = 6, 1
SECONDS, QUICK_SECONDS = 8.0, 3.0
WORKFLOWS, WAITING, LOADS = 100_000, 10_000, 3
FILL_S = 180.0
SYSTEMS = {"kairos": "Kairos"}

CPU = "CPU per call at 500 calls a second, {}"
RATIO = "CPU per call with the page open by five, times that with it closed"
PAINT = "first paint of {} with 100,000 workflows and 10,000 calls that wait"
SHOWN = "until {} shows what it is about, of the same"
# Each page, and what is there once it shows what it is about.
PAGES = {
    "/ui": "#queue tbody tr",
    "/ui/workflows": "#workflows tbody tr",
    "/ui/workflow?tenant=default&id=run-000007": "#calls tbody tr",
    "/ui/agents": "#found:not(:empty)",
    "/ui/past": "#when",
    "/ui/gained": "#no-log:not([hidden])",
    "/ui/operate": "#engines tbody tr",
}


async def measure(console: Console, quick: bool) -> list[Figure]:
    return [*await cpu(console, quick), *await paints(console, quick)]


async def cpu(console: Console, quick: bool) -> list[Figure]:
    rounds, seconds = (QUICK_ROUNDS, QUICK_SECONDS) if quick else (ROUNDS, SECONDS)
    system_core, rest_core = take_core(console)
    *engines, port, admin_port = free_ports(ENGINES + 2)
    closed: list[float] = []
    opened: list[float] = []
    with tempfile.TemporaryDirectory() as log:
        command = [*kairos_command(port, engines, MANY, log), "--admin-port", str(admin_port)]
        async with (
            server(upstream_command(engines, metrics=True), engines[0], rest_core),
            server(command, port, system_core) as kairos,
        ):
            await _calls(kairos, seconds / 2)  # what is done for the first time takes longer
            for number in range(rounds):
                # The one that goes first changes: a machine grows warm, and memory full.
                for is_open in (False, True) if number % 2 else (True, False):
                    async with _viewers(admin_port, VIEWERS if is_open else 0):
                        (opened if is_open else closed).append(await _calls(kairos, seconds))
    ratios = [one / other for one, other in zip(opened, closed, strict=True)]
    return [
        _figure(CPU.format("page closed"), closed, "us", None),
        _figure(CPU.format("page open by five"), opened, "us", None),
        _figure(RATIO, ratios, "times", 1.03),
    ]


async def _calls(kairos: Server, seconds: float) -> float:
    """At their pace, for so long. Returns Kairos's CPU time per call, µs."""
    loop, made = asyncio.get_running_loop(), 0
    end = loop.time() + seconds

    async def client(place: int) -> None:
        nonlocal made
        each_s = CLIENTS / CALLS_PER_S
        due = loop.time() + each_s * place / CLIENTS
        async with load.connected(kairos.port) as client:
            while due < end:
                await asyncio.sleep(max(0.0, due - loop.time()))
                await client.send(talk.chat(made, stream=False))
                made += 1
                due += each_s

    before_s = kairos.cpu_s()
    async with asyncio.TaskGroup() as group:
        for place in range(CLIENTS):
            group.create_task(client(place))
    return (kairos.cpu_s() - before_s) / made * 1e6


@contextlib.asynccontextmanager
async def _viewers(port: int, number: int) -> AsyncIterator[None]:
    """So many who watch, and read what comes."""
    tasks = [asyncio.create_task(_watch(port)) for _ in range(number)]
    await asyncio.sleep(1.0)
    for task in tasks:
        if task.done():
            task.result()
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _watch(port: int) -> None:
    reader, writer = await asyncio.open_connection(HOST, port)
    try:
        writer.write(f"GET /ui/live HTTP/1.1\r\nHost: {HOST}:{port}\r\n\r\n".encode())
        status = await reader.readline()
        if b" 200 " not in status:
            raise load.Broken(f"the page answers {status!r}")
        while await reader.read(1 << 16):
            pass
        raise load.Broken("the page's events have ended")
    finally:
        writer.close()


async def paints(console: Console, quick: bool) -> list[Figure]:
    scale = 10 if quick else 1
    os.sched_setaffinity(0, range(os.cpu_count() or 1))  # a browser is no client of one core
    engine, admin_port = free_ports(2)
    numbers = [str(number) for number in (WORKFLOWS // scale, WAITING // scale)]
    full = [sys.executable, "-m", "bench.ui_service", str(engine), str(admin_port), *numbers]
    async with (
        server(upstream_command([engine], metrics=True), engine, None),
        load.connected(engine) as client,
    ):
        await load.Control(client).set(Mode(delay_s=3600))
        async with server(full, admin_port, None):
            console.print("filling it")
            async with asyncio.timeout(FILL_S):
                while not await _is_full(admin_port, int(numbers[1])):
                    await asyncio.sleep(0.5)
            return await _in_browser(admin_port, 1 if quick else LOADS)


async def _is_full(port: int, waiting: int) -> bool:
    async with load.connected(port) as client:
        said = await client.send(talk.http(b"GET", b"/ui/data/queue"))
    return b'"total":%d,' % waiting in said


async def _in_browser(port: int, loads: int) -> list[Figure]:
    from playwright.async_api import async_playwright

    program = os.environ.get("KAIROS_BROWSER") or shutil.which("chromium")
    if program is None:
        raise NotStarted("there is no Chromium: scripts/install-browser.sh, or KAIROS_BROWSER=PATH")
    found: list[Figure] = []
    async with async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        for path, there in PAGES.items():
            painted: list[float] = []
            shown: list[float] = []
            for _ in range(loads):
                page = await (await browser.new_context()).new_page()
                await page.goto(f"http://{HOST}:{port}{path}")
                await page.wait_for_selector(there, state="attached", timeout=30_000)
                shown.append(await page.evaluate("performance.now()"))
                painted.append(await page.evaluate(_FIRST_PAINT))
                await page.context.close()
            name = path.partition("?")[0]
            found += [
                _figure(PAINT.format(name), painted, "ms", 1_000),
                _figure(SHOWN.format(name), shown, "ms", None),
            ]
        await browser.close()
    return found


_FIRST_PAINT = """new Promise((resolve) => new PerformanceObserver((list, observer) => {
  observer.disconnect();
  resolve(list.getEntries()[0].startTime);
}).observe({ type: "paint", buffered: true }))"""


def _figure(name: str, values: Sequence[float], unit: str, target: float | None) -> Figure:
    spread = report.spread([*values])
    return Figure(
        name=name, value=median(values), unit=unit, target=target, detail={"kairos": spread}
    )


def main() -> None:
    Bench("ui", __doc__, SYSTEMS, "a tenth of it, 30 s").of_servers(measure)


if __name__ == "__main__":
    main()

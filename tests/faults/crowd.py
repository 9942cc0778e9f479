"""What others notice of one caller's thousands of connections: `python -m tests.faults.crowd`.

Each of them makes a call that no engine answers, all at once; they wait; and they leave at once, as
their process is killed. Meanwhile another process asks /health, and makes another caller's calls
one after the other, of a model with an engine of its own. Takes 30 s. `--connections N`.
"""

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

import aiohttp
import msgspec
import uvloop

from kairos.host import allow_many_connections
from tests.support.ports import free_ports
from tests.support.processes import Process

HOST, CROWDS = "127.0.0.1", "127.0.0.2"  # which the crowd comes from, so it is another caller
CONNECTIONS = 4_000
RUNNING = 256  # of their calls, on their engine; the others wait in the queue
PHASE_S = 4.0
PAUSE_S = 0.01  # between two questions
ALL_THERE = "all there"
LIMIT_S = 60

_HEALTH = b"GET /health HTTP/1.1\r\nhost: a\r\n\r\n"


class Took(msgspec.Struct):
    """How long others' questions took in one phase, in milliseconds."""

    health_ms: list[float] = []
    calls_ms: list[float] = []
    failed: int = 0  # answers other than 200


class Meanwhile:
    """What others see, phase by phase."""

    def __init__(self, port):
        self._port = int(port)
        self._took = Took()

    async def run(self):
        call = call_of("tiny", max_tokens=4, min_tokens=4)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._ask(_HEALTH, lambda took: took.health_ms))
            tasks.create_task(self._ask(call, lambda took: took.calls_ms))

    async def _ask(self, request, times):
        reader, writer = await asyncio.open_connection(HOST, self._port)
        with closing(writer):
            while True:
                began, took = time.perf_counter(), self._took
                writer.write(request)
                took.failed += await _status(reader) != 200
                times(took).append(1e3 * (time.perf_counter() - began))
                await asyncio.sleep(PAUSE_S)

    async def during(self, phase):
        """Return what they saw from its beginning to its end, or the first answer of each kind."""
        self._took = took = Took()
        await phase
        while not (took.health_ms and took.calls_ms):
            await asyncio.sleep(PAUSE_S)
        return took


async def _status(reader):
    """Of an answer, which is read whole."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    await reader.readexactly(int(head.partition(b"content-length:")[2].split()[0]))
    return int(head.split()[1])


def call_of(model, **fields):
    told = {"model": model, "messages": [{"role": "user", "content": "Hello"}]} | fields
    body = json.dumps(told).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n"
    head += "content-type: application/json\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


async def watched(*, connections=CONNECTIONS, phase_s=PHASE_S):
    """`Took`, by phase."""
    others_port, crowds_port, port, admin_port = free_ports(4)
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))

        def started(name, module, *arguments):
            return stack.enter_context(Process(directory, name, *arguments, module=module))

        engines, urls = [], []
        for model, seqs, at in (("tiny", 16, others_port), ("crowd", RUNNING, crowds_port)):
            told = "--instant", "--model", model, "--max-num-seqs", seqs, "--port", at
            engines.append(started(model, "kairos.simulate.standin.server", *told))
            urls += ["--engine", f"http://{HOST}:{at}"]
        for each in engines:
            await each.until_it_says("ready")
        told = "serve", "--port", port, "--admin-port", admin_port, *urls
        kairos = started("kairos", "kairos.cli.main", *told)
        for model in ("tiny", "crowd"):
            await kairos.until_it_says(f" serves {model}")
        crowd = partial(started, "crowd", __spec__.name, "--crowd", port, "--connections")
        meanwhile = Meanwhile(port)

        async def all_come():
            comes = crowd(connections)
            await comes.until_it_says(ALL_THERE)
            await _until_taken(admin_port, connections)
            return comes

        async with asyncio.TaskGroup() as tasks:
            asking = tasks.create_task(meanwhile.run())
            took = await _phases(meanwhile, all_come, phase_s)
            asking.cancel()
        return took


async def _phases(meanwhile, all_come, phase_s):
    await meanwhile.during(asyncio.sleep(0))
    quiet = await meanwhile.during(asyncio.sleep(phase_s))
    coming = asyncio.ensure_future(all_come())
    come = await meanwhile.during(coming)
    wait = await meanwhile.during(asyncio.sleep(phase_s))
    coming.result().kill()
    leave = await meanwhile.during(asyncio.sleep(phase_s))
    return {"nobody": quiet, "they come": come, "they wait": wait, "they leave": leave}


async def _until_taken(admin_port, calls):
    """Return once that number of calls run or wait."""
    names = {"kairos_requests_running", "kairos_requests_waiting"}
    async with asyncio.timeout(LIMIT_S), aiohttp.ClientSession() as session:
        while True:
            async with session.get(f"http://{HOST}:{admin_port}/metrics") as response:
                lines = (await response.text()).splitlines()
            values = [line.rsplit(" ", 1) for line in lines if not line.startswith("#")]
            if sum(float(of) for name, of in values if name.partition("{")[0] in names) >= calls:
                return
            await asyncio.sleep(PAUSE_S)


async def be_the_crowd(port, connections):
    """Until killed."""
    call = call_of("crowd", fail="hang")
    made = await asyncio.gather(
        *(asyncio.open_connection(HOST, port, local_addr=(CROWDS, 0)) for _ in range(connections))
    )
    for _, writer in made:
        writer.write(call)
    await asyncio.gather(*(writer.drain() for _, writer in made))
    print(ALL_THERE, flush=True)
    await asyncio.get_running_loop().create_future()


async def _main(connections):
    heads = ("asked", "p50 ms", "p99 ms", "longest")
    print(f"{connections} connections     ", *(f"{each:>9}" for each in heads))
    for name, took in (await watched(connections=connections)).items():
        for what, times in (("/health", took.health_ms), ("calls", took.calls_ms)):
            ms = sorted(times)
            told = len(ms), statistics.median(ms), ms[int(0.99 * len(ms))], ms[-1]
            print(f"{name:14}{what:8}", *(f"{each:9.4g}" for each in told))
        if took.failed:
            print(f"{took.failed} were not answered by 200")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--connections", type=int, default=CONNECTIONS)
    parser.add_argument("--crowd", type=int, metavar="PORT", help="be the crowd")
    options = parser.parse_args()
    allow_many_connections()
    if options.crowd is None:
        uvloop.run(_main(options.connections))
    else:
        uvloop.run(be_the_crowd(options.crowd, options.connections))


if __name__ == "__main__":
    main()

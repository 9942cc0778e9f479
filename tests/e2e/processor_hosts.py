"""`kairos process` as processes, each behind a relay that sees what passes."""

import asyncio
import re
from contextlib import AsyncExitStack

import aiohttp

from tests.e2e.test_flow_processors import Embedders
from tests.support.processes import READY_S, Process

FETCH = b"GET /v1/held/"


class Relay:
    """Before one processor. While `gate` is not set, what is sent waits."""

    def __init__(self):
        self.gate = asyncio.Event()
        self.gate.set()
        self.port = self._to = self._server = None
        self._seen, self._tasks = [], set()

    async def start(self):
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def lead_to(self, port):
        self._to = port

    async def stop(self):
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def of_peers(self):
        """What went over connections by which other processors fetched values."""
        return b"".join(bytes(each) for each in self._seen if FETCH in each)

    @property
    def of_coordinator(self):
        return b"".join(bytes(each) for each in self._seen if FETCH not in each)

    def _connected(self, reader, writer):
        task = asyncio.create_task(self._relayed(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _relayed(self, reader, writer):
        seen = bytearray()
        self._seen.append(seen)
        try:
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._to)
            there = self._pass_on(reader, up_writer, seen)
            back = self._pass_on(up_reader, writer, seen)
            await asyncio.gather(there, back)
        except OSError:
            pass
        finally:
            writer.close()

    async def _pass_on(self, reader, writer, seen):
        try:
            while part := await reader.read(1 << 16):
                await self.gate.wait()
                seen += part
                writer.write(part)
                await writer.drain()
        finally:
            writer.close()


class Hosts:
    """Of several processors, which know each other. A context manager."""

    def __init__(self, directory):
        self.directory, self._stack = directory, AsyncExitStack()
        self.relays, self._names = {}, []
        self.embedders = Embedders(directory)

    async def __aenter__(self):
        self._stack.enter_context(self.embedders)
        return self

    async def __aexit__(self, *_):
        await self._stack.aclose()

    async def start(self, **options):
        """By name the options of each, beside those that all have. Returns the processes."""
        for name in options:
            self.relays[name] = await Relay().start()
            self._stack.push_async_callback(self.relays[name].stop)
        started = {}
        for name, told in options.items():
            peers = [
                each for other in options if other != name for each in ("--peer", self.url(other))
            ]
            process = Process(self.directory, name, "process", "--port", 0, *told, *peers)
            started[name] = self._stack.enter_context(process)
        for name, process in started.items():
            await process.until_it_says("processing on ", READY_S)
            process.port = int(re.search(r"processing on \S+:(\d+)", process.said)[1])
            self.relays[name].lead_to(process.port)
        return started.values()

    def url(self, name):
        return f"http://127.0.0.1:{self.relays[name].port}"

    @property
    def urls(self):
        return tuple(map(self.url, self.relays))


async def figure(process, name):
    """Of a processor's metrics."""
    url = f"http://127.0.0.1:{process.port}/metrics"
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        text = await answer.text()
    found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
    return float(found[1]) if found else 0.0


async def until_figure(process, name, least):
    async with asyncio.timeout(READY_S):
        while await figure(process, name) < least:
            await asyncio.sleep(0.02)

"""Measure what Kairos's HTTP server and client cost, and others': `python -m bench.http_stack`.

Three proxies that only forward: one with Kairos's server and client; one with Kairos's server and
aiohttp's client; one with uvicorn (httptools, uvloop) and aiohttp. Each takes a chat call of 2 KB
or a stream of 64 chunks from 32 clients at once. Printed is the CPU time of the proxy for a call.
It takes a minute, and needs a uvicorn that nothing else here does: `.venv/bin/pip install uvicorn`.
"""

import asyncio
import importlib
import sys
from contextlib import AsyncExitStack
from statistics import median
from typing import Any

import aiohttp
import uvloop
from rich.console import Console

from bench import load, talk
from bench.servers import Server, listens, server
from bench.systems import CONCURRENCY, free_ports, take_core, upstream_command
from bench.upstream import HOST, Mode
from kairos.gateway import HttpServer, listening_socket
from kairos.gateway.server.exchange import Asking
from kairos.host import LoopPace
from kairos.proxy import EngineClient, Upstream, header_lines
from kairos.proxy.engine_answer import EngineAnswer, Limit
from kairos.settings import STALL_S

KINDS = {
    "own": "own server, own client",
    "aiohttp": "own server, aiohttp",
    "uvicorn": "uvicorn, aiohttp",
}
ROUNDS, CALLS, STREAMS, CHUNKS = 5, 2_000, 400, 64
SCENARIOS = (
    ("JSON call of 2 KB", Mode(), talk.named(), CALLS),
    ("stream of 64 chunks at once", Mode(chunks=CHUNKS), talk.named_streams(), STREAMS),
    (
        "stream of 64 chunks, 5 ms apart",
        Mode(chunks=CHUNKS, interval_s=0.005),
        talk.named_streams(),
        STREAMS,
    ),
)
DROPPED = (b"host", b"content-length", b"transfer-encoding", b"connection")


class Forwarding:
    """A call on its way through Kairos's server and client."""

    def __init__(self, asked: Asking, client: EngineClient) -> None:
        self._asked, self._client = asked, client
        self._body: list[bytes] = []
        asked.read_body_by(self)

    def body_came(self) -> None:
        part, is_whole = self._asked.take_body()
        self._body.append(part)
        if not is_whole:
            return
        asked, body = self._asked, b"".join(self._body)
        asked.read_body_by(None)
        lines = [b"%b: %b" % each for each in asked.headers if each[0] not in DROPPED]
        lines.append(b"content-length: %d" % len(body))
        upstream = self._client.upstreams["a"]
        head = upstream.head(asked.method, asked.path, asked.query)
        head += header_lines(lines) + b"\r\n"
        self._client.send(EngineAnswer(self, head, body, Limit(STALL_S)), upstream)

    def begun(self, answer: EngineAnswer) -> None:
        self._asked.start(answer.status, [e for e in answer.headers if e[0] not in DROPPED])

    def came(self, data: bytes) -> None:
        self._asked.write(data, more=True)

    def ended(self) -> None:
        self._asked.write(b"", more=False)

    def broke(self, error: Exception) -> None:
        raise error


class Taker:
    """Takes all requests, as the gateway does calls."""

    def __init__(self, client: EngineClient | aiohttp.ClientSession, url: str) -> None:
        self.pace = LoopPace()
        self.targets: dict[bytes, str] = {}
        self._client, self._url = client, url
        self._tasks: set[asyncio.Task[None]] = set()

    def takes(self, _: Asking) -> bool:
        return True

    def caller_of(self, asked: Asking) -> str:
        return asked.caller

    def start_call(self, asked: Asking) -> None:
        if isinstance(self._client, EngineClient):
            Forwarding(asked, self._client)
            return
        task = asyncio.create_task(self._forward(asked, self._client))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _forward(self, asked: Asking, client: aiohttp.ClientSession) -> None:
        body, is_whole = asked.take_body()
        while not is_whole:
            await asyncio.sleep(0)
            part, is_whole = asked.take_body()
            body += part
        headers = {n.decode(): v.decode() for n, v in asked.headers if n not in DROPPED}
        async with client.post(self._url + asked.path, data=body, headers=headers) as answer:
            raw = [(n.lower(), v) for n, v in answer.raw_headers]
            asked.start(answer.status, [each for each in raw if each[0] not in DROPPED])
            async for part in answer.content.iter_any():
                asked.write(part, more=True)
        asked.write(b"", more=False)


def asgi(url: str) -> Any:
    """The same as an ASGI application."""
    kept: list[aiohttp.ClientSession] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if not kept:
            kept.append(aiohttp.ClientSession(auto_decompress=False))
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        headers = {n.decode(): v.decode() for n, v in scope["headers"] if n not in DROPPED}
        async with kept[0].post(url + scope["path"], data=body, headers=headers) as answer:
            raw = [(n.lower(), v) for n, v in answer.raw_headers]
            shown = [each for each in raw if each[0] not in DROPPED]
            begun = {"type": "http.response.start", "status": answer.status, "headers": shown}
            await send(begun)
            async for part in answer.content.iter_any():
                await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    return app


async def serve(kind: str, port: int, engine: int) -> None:
    url = f"http://{HOST}:{engine}"
    made: EngineClient | aiohttp.ClientSession = EngineClient([Upstream("a", url)])
    if kind == "aiohttp":
        made = aiohttp.ClientSession(auto_decompress=False)
    async with made as client:
        with listening_socket(HOST, port) as sock:
            taker: Any = Taker(client, url)
            await HttpServer(asgi(url), taker).serve(sock)


def serve_by_uvicorn(port: int, engine: int) -> None:
    importlib.import_module("uvicorn").run(
        asgi(f"http://{HOST}:{engine}"),
        host=HOST,
        port=port,
        http="httptools",
        loop="uvloop",
        lifespan="off",
        access_log=False,
        log_level="warning",
    )


async def measure(console: Console) -> None:
    system_core, rest_core = take_core(console)
    engine, *ports = free_ports(1 + len(KINDS))
    async with AsyncExitStack() as stack:
        upstream = upstream_command([engine], metrics=False)
        await stack.enter_async_context(server(upstream, engine, rest_core))
        control = load.Control(await stack.enter_async_context(load.connected(engine)))
        under_test: dict[str, Server] = {}
        for kind, port in zip(KINDS, ports, strict=True):
            command = [sys.executable, "-m", "bench.http_stack", kind, str(port), str(engine)]
            started = server(command, port, system_core, listens)
            under_test[kind] = await stack.enter_async_context(started)
        for name, mode, new_client, calls in SCENARIOS:
            await control.set(mode)
            found: dict[str, list[float]] = {kind: [] for kind in KINDS}
            for _ in range(ROUNDS + 1):  # the first is to get warm
                for kind, each in under_test.items():
                    before_s = each.cpu_s()
                    await load.closed_loop(each.port, calls, CONCURRENCY, new_client)
                    found[kind].append((each.cpu_s() - before_s) / calls * 1e6)
            for kind, values in found.items():
                us = values[1:]
                spread = f"{median(us):5.0f} us [{min(us):.0f}-{max(us):.0f}]"
                console.print(f"{name:32} {KINDS[kind]:24} {spread}", markup=False)


if __name__ == "__main__":
    if len(sys.argv) == 1:
        uvloop.run(measure(Console()))
    elif sys.argv[1] == "uvicorn":
        serve_by_uvicorn(int(sys.argv[2]), int(sys.argv[3]))
    else:
        uvloop.run(serve(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))

"""The clients: bare HTTP over asyncio, so that little of what is measured is their own."""

import asyncio
import random
import re
import ssl
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import count, islice, takewhile
from typing import cast

import httptools
import msgspec

from bench.talk import NewClient, chat, http
from bench.upstream import HOST, Mode, Seen

STAMP = re.compile(rb'"@(\d{20}) "')


class Broken(Exception):
    """A call that was to succeed did not: the figures would mean nothing."""


class Client(asyncio.Protocol):
    """One connection, kept alive, one call at a time."""

    _transport: asyncio.Transport  # once it is made
    _done: asyncio.Future[bytes]  # of the last call, as the parser: once one was sent
    _parser: httptools.HttpResponseParser

    def __init__(self) -> None:
        self.delays_ns: list[int] = []  # of each stamped chunk, where `stamped` is set
        self.stamped = False
        self.first_byte = asyncio.Event()
        self._body = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        if self._has_called and not self._done.done():
            self._done.set_exception(Broken(f"the connection broke: {error}"))

    @property
    def _has_called(self) -> bool:
        return hasattr(self, "_done")

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, data: bytes) -> None:
        self.first_byte.set()
        self._body += data
        if self.stamped:
            self._note_delays()

    def _note_delays(self) -> None:
        now = time.monotonic_ns()
        whole = self._body.rfind(b"\n\n") + 1
        for match in STAMP.finditer(self._body, 0, whole):
            self.delays_ns.append(now - int(match[1]))
        self._body = self._body[whole:]

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        if self._done.done():  # nobody waits for it any more
            return
        if status == 200:
            self._done.set_result(self._body)
        else:
            self._done.set_exception(Broken(f"status {status}: {self._body[:300]!r}"))

    def send(self, request: bytes) -> asyncio.Future[bytes]:
        self._parser = httptools.HttpResponseParser(self)
        self._body = b""
        self._done = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return self._done

    def leave(self) -> int:
        """Close the connection as it is. Returns when."""
        if self._has_called:
            self._done.cancel()
        left_ns = time.monotonic_ns()
        self._transport.close()
        return left_ns


@asynccontextmanager
async def connected(port: int, tls: ssl.SSLContext | None = None) -> AsyncIterator[Client]:
    loop = asyncio.get_running_loop()
    _, client = await loop.create_connection(Client, HOST, port, ssl=tls)
    try:
        yield client
    finally:
        client.leave()


async def closed_loop(
    port: int,
    calls: int,
    concurrency: int,
    new_client: NewClient,
    tls: ssl.SSLContext | None = None,
) -> list[float]:
    """Keep this many calls going until all are answered. Returns each one's time in seconds."""
    return await _keep_going(port, islice(numbers(), calls), concurrency, new_client, tls)


async def for_a_while(
    port: int, seconds: float, concurrency: int, new_client: NewClient
) -> list[float]:
    """The same, until the time is up."""
    ends_at = time.monotonic() + seconds
    in_time = takewhile(lambda _: time.monotonic() < ends_at, numbers())
    return await _keep_going(port, in_time, concurrency, new_client)


def numbers() -> Iterator[int]:
    """No other load has calls of the same numbers, so workflows end with the load."""
    return count(random.randrange(10**8) * 10**6)


async def _keep_going(
    port: int,
    numbers: Iterator[int],
    concurrency: int,
    new_client: NewClient,
    tls: ssl.SSLContext | None = None,
) -> list[float]:
    times: list[float] = []

    async def work() -> None:
        made = new_client()
        async with connected(port, tls) as client:
            for number in numbers:
                request = made.ask(number)
                started = time.perf_counter()
                answer = await client.send(request)
                times.append(time.perf_counter() - started)
                made.hear(answer)

    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(work())
    return times


async def chunk_delays(port: int, streams: int, spread_s: float) -> list[int]:
    """Read this many streams at once, begun evenly over a time. Nanoseconds from the engine's
    send to our receipt, of every chunk but each stream's first, which waits for the call itself."""

    numbered = numbers()

    async def read(place: int) -> list[int]:
        await asyncio.sleep(spread_s * place / streams)
        async with connected(port) as client:
            client.stamped = True
            await client.send(chat(next(numbered), stream=True))
            return client.delays_ns[1:]

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(read(place)) for place in range(streams)]
    return [delay for task in tasks for delay in task.result()]


class Control:
    """Tells the engines how to answer, and asks what they saw, past any gateway."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def set(self, mode: Mode) -> None:
        await self._client.send(http(b"PUT", b"/mode", msgspec.json.encode(mode)))

    async def seen(self) -> Seen:
        return msgspec.json.decode(await self._client.send(http(b"GET", b"/seen")), type=Seen)

"""A proxy before one engine, by which a test hurts the requests that it chooses.

    async with Proxy(standin.url) as proxy:
        proxy.hurt(Stall(after_events=3))               # the next call
        proxy.hurt(Delay(seconds=1), times=None)        # all that come, until `heal`
        await proxy.refuse()                            # nobody listens, until `listen`

What is not a call (health, metrics, models) is let through, unless `when` says otherwise: an engine
that hangs seems well. Everything ends with the block. Of requests one a connection is held.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from contextlib import aclosing, suppress
from typing import Self, assert_never
from urllib.parse import urlsplit

from tests.faults.faults import (
    Cut,
    Delay,
    Drip,
    EngineDies,
    Fault,
    Gate,
    HangUp,
    Noise,
    Stall,
    Status,
    Stop,
    WrongBody,
)
from tests.faults.wire import (
    HEAD_LIMIT_BYTES,
    LAST_CHUNK,
    Request,
    answer_to,
    is_chunked,
    keeps_open,
    read_request,
)

HOST = "127.0.0.1"
_NO_JSON = b'{"choices": [{"message": {"content": "The answ'
ENGINE_DIED = (
    b'data: {"error": {"message": "EngineCore encountered an issue. See stack trace (above) for the'
    b' root cause.", "type": "Internal Server Error", "param": null, "code": 500}}\n\n'
    b"data: [DONE]\n\n"
)
_NO_EVENTS = b"event: \xff\xfe\n\ndata: {not json\n\n<html>\n\n"

When = Callable[[Request], bool]
OnHurt = Callable[[Request, str], None]


def is_call(request: Request) -> bool:
    return request.method == "POST"


class Rule:
    """One fault, for so many of the requests to come that it is meant for; None: for all."""

    def __init__(self, fault: Fault, times: int | None, when: When) -> None:
        self.fault, self.times, self.when = fault, times, when


class Proxy:
    """Stands at `url` before the engine.

    `on_hurt` hears of each request that something is done to, and what; also when the engine itself
    breaks off. `hurts` counts these.
    """

    def __init__(
        self, engine_url: str, *, port: int = 0, seed: int = 0, on_hurt: OnHurt = lambda *_: None
    ) -> None:
        """`port`: 0 is any free one."""
        engine = urlsplit(engine_url)
        self._engine = engine.hostname, engine.port
        self._port = port
        self._dice = random.Random(seed)
        self._on_hurt = on_hurt
        self._rules: list[Rule] = []
        self._server: asyncio.Server | None = None
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._busy = set[asyncio.StreamWriter]()
        self.accept_delay_s = 0.0  # before anything is read from a new connection
        self.hurts = Counter[str]()

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self._port}"

    @property
    def listens(self) -> bool:
        return self._server is not None

    async def __aenter__(self) -> Self:
        await self.listen()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.refuse()

    async def listen(self) -> None:
        """From now on connections are taken, always at the same port."""
        assert self._server is None
        self._server = await asyncio.start_server(
            self._connected, HOST, self._port, limit=HEAD_LIMIT_BYTES
        )
        self._port = self._server.sockets[0].getsockname()[1]

    async def refuse(self) -> None:
        """Nobody listens, and all connections are cut, as when the engine's process dies."""
        if self._server is not None:
            self._server.close()
            self._server = None
            await asyncio.sleep(0)  # for what was accepted last
        tasks = list(self._connections)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def hurt(self, fault: Fault, *, times: int | None = 1, when: When = is_call) -> Rule:
        """Do this to the next requests; of several rules the first that is meant for one."""
        rule = Rule(fault, times, when)
        self._rules.append(rule)
        return rule

    def heal(self, rule: Rule | None = None) -> None:
        """Hurt no more requests; by this rule, or at all. Those that are hurt already stay so."""
        self._rules = [each for each in self._rules if rule is not None and each is not rule]

    def close_idle(self) -> int:
        """Close the connections that are kept for later requests. Returns how many."""
        idle = [each for each in self._connections.values() if each not in self._busy]
        for writer in idle:
            writer.close()
        return len(idle)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._server is None:  # accepted before it was closed
            writer.close()
            return
        task = asyncio.create_task(self._serve(reader, writer))
        self._connections[task] = writer
        task.add_done_callback(self._disconnected)

    def _disconnected(self, task: asyncio.Task[None]) -> None:
        """Close the connection of a task that may have been cancelled before it began."""
        self._connections.pop(task).close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.accept_delay_s:
            await asyncio.sleep(self.accept_delay_s)
        # Read ahead, the first byte of a next request tells whether the client is still there.
        ahead = asyncio.create_task(_byte(reader))
        try:
            while first := await ahead:
                self._busy.add(writer)
                request = await read_request(first, reader)
                ahead = asyncio.create_task(_byte(reader))
                if not await self._served(request, writer, ahead):
                    break
                self._busy.discard(writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
            pass  # the client left, or what it says is no request
        finally:
            self._busy.discard(writer)
            ahead.cancel()
            writer.close()

    async def _served(
        self, request: Request, writer: asyncio.StreamWriter, ahead: asyncio.Task[bytes]
    ) -> bool:
        """Answer, as long as the client is there. Returns whether the connection is kept."""
        answering = asyncio.create_task(self._answer(request, writer))
        try:
            await asyncio.wait({answering, ahead}, return_when=asyncio.FIRST_COMPLETED)
            if not answering.done() and not ahead.result():
                return False
            return await answering
        except asyncio.CancelledError:
            self._hurts(request, "Refused")
            raise
        finally:
            answering.cancel()
            await asyncio.wait({answering})

    async def _answer(self, request: Request, writer: asyncio.StreamWriter) -> bool:
        fault = self._fault_for(request)
        match fault:
            case Noise():
                writer.write(self._dice.randbytes(self._dice.randrange(1, 512)))
                return False
            case WrongBody(streamed=streamed):
                kind = "text/event-stream" if streamed else "application/json"
                writer.write(_whole("200 OK", kind, _NO_EVENTS if streamed else _NO_JSON))
                return True
            case EngineDies(after_events=0):
                writer.write(_whole("200 OK", "text/event-stream", ENGINE_DIED))
                return True
            case Status(status=status, retry_after_s=retry_after_s):
                writer.write(_error(status, retry_after_s))
                return True
            case Delay(seconds=seconds):
                await asyncio.sleep(seconds)
            case None | Cut() | Stall() | Stop() | EngineDies() | Drip() | HangUp():
                pass
            case _:
                assert_never(fault)
        try:
            kept = await self._forward(request, writer, fault)
        except (OSError, asyncio.IncompleteReadError):
            self._hurts(request, "EngineBrokeOff")
            return False
        return kept and not isinstance(fault, HangUp)

    async def _forward(
        self, request: Request, writer: asyncio.StreamWriter, fault: Fault | None
    ) -> bool:
        engine_reader, engine_writer = await asyncio.open_connection(*self._engine)
        head, gate = None, None
        try:
            engine_writer.write(request.raw)
            async with aclosing(answer_to(request, engine_reader)) as pieces:
                async for piece in pieces:
                    if head is None:
                        head, gate = piece, _gate_of(fault, piece)
                    passes = piece if gate is None else gate.take(piece)
                    await _pass(passes, writer)
                    if isinstance(fault, Drip):
                        await _drip(piece[len(passes) :], fault.bytes_per_s, writer)
                    elif gate is not None and gate.is_shut:
                        return await _end(fault, writer)
        finally:
            engine_writer.close()
        return head is not None and keeps_open(head)

    def _fault_for(self, request: Request) -> Fault | None:
        rule = next((each for each in self._rules if each.when(request)), None)
        if rule is None:
            return None
        if rule.times is not None:
            rule.times -= 1
            if rule.times <= 0:
                self._rules.remove(rule)
        self._hurts(request, type(rule.fault).__name__)
        return rule.fault

    def _hurts(self, request: Request, how: str) -> None:
        self.hurts[how] += 1
        self._on_hurt(request, how)


def _gate_of(fault: Fault | None, head: bytes) -> Gate | None:
    if isinstance(fault, Stop | EngineDies) and not is_chunked(head):
        return None
    if isinstance(fault, Cut | Stall | Stop | EngineDies | Drip):
        return Gate(fault)
    return None


async def _pass(piece: bytes, writer: asyncio.StreamWriter) -> None:
    writer.write(piece)
    with suppress(ConnectionError):  # that the client left is noticed elsewhere
        await writer.drain()


async def _drip(piece: bytes, bytes_per_s: float, writer: asyncio.StreamWriter) -> None:
    for byte in piece:
        writer.write(bytes([byte]))
        await asyncio.sleep(1 / bytes_per_s)


async def _end(fault: Fault | None, writer: asyncio.StreamWriter) -> bool:
    """What comes at the place of the fault. Returns whether the connection is kept."""
    if isinstance(fault, Stall):
        await asyncio.get_running_loop().create_future()  # until the client leaves
    if isinstance(fault, EngineDies):
        writer.write(b"%x\r\n%b\r\n" % (len(ENGINE_DIED), ENGINE_DIED))
    if isinstance(fault, Stop | EngineDies):
        writer.write(LAST_CHUNK)
        return True
    return False


async def _byte(reader: asyncio.StreamReader) -> bytes:
    """The next one; none where the client has left."""
    try:
        return await reader.read(1)
    except OSError:
        return b""


def _error(status: int, retry_after_s: int | None) -> bytes:
    body = b'{"error": {"message": "The engine is not well.", "type": "InternalServerError", '
    body += b'"param": null, "code": %d}}' % status
    more = () if retry_after_s is None else (f"Retry-After: {retry_after_s}",)
    return _whole(f"{status} Not Well", "application/json", body, *more)


def _whole(status: str, kind: str, body: bytes, *more: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Type: {kind}", f"Content-Length: {len(body)}", *more]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body

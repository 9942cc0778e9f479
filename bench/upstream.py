"""Two engines that cost next to nothing, as one process: what the gateways under test call.

`python -m bench.upstream PORT PORT` answers chat completions as `PUT /mode` says, from both ports
alike, and stamps each chunk of a stream with the time at which it was sent. `GET /seen`
tells, and forgets, how many calls came and when calls were aborted. Times are CLOCK_MONOTONIC in
nanoseconds, which all processes of a machine share.
"""

import asyncio
import sys
import time
from typing import cast

import httptools
import msgspec
import uvloop

HOST = "127.0.0.1"
MODEL = "bench"
ANSWER = msgspec.json.encode(
    {
        "id": "chatcmpl-bench",
        "object": "chat.completion",
        "created": 0,
        "model": MODEL,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "word " * 16},
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 500, "completion_tokens": 16, "total_tokens": 516},
    }
)
MODELS = msgspec.json.encode(
    {"object": "list", "data": [{"id": MODEL, "object": "model", "max_model_len": 8192}]}
)
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)
CHUNK = (
    b'data: {"id":"chatcmpl-bench","object":"chat.completion.chunk","created":0,"model":"bench",'
    b'"choices":[{"index":0,"delta":{"content":"@%020d "},"finish_reason":null}]}\n\n'
)
USAGE = (
    b'data: {"id":"chatcmpl-bench","object":"chat.completion.chunk","created":0,"model":"bench",'
    b'"choices":[],"usage":{"prompt_tokens":500,"completion_tokens":16,"total_tokens":516}}\n\n'
)
STREAM_END = USAGE + b"data: [DONE]\n\n"


class Mode(msgspec.Struct, forbid_unknown_fields=True):
    """How calls are answered: as JSON, or by this many chunks."""

    chunks: int | None = None
    interval_s: float = 0.0  # between chunks; 0: all at once
    silent: bool = False  # answer nothing, or nothing more once the chunks are out


class Seen(msgspec.Struct):
    calls: int = 0
    aborted_ns: list[int] = msgspec.field(default_factory=list)


class State:
    def __init__(self) -> None:
        self.mode = Mode()
        self.seen = Seen()


class Connection(asyncio.Protocol):
    _transport: asyncio.Transport  # once it is made

    def __init__(self, state: State) -> None:
        self._state = state
        self._parser = httptools.HttpRequestParser(self)
        self._timer: asyncio.TimerHandle | None = None
        self._answering = False
        self._path = b""
        self._body = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, _: Exception | None) -> None:
        if self._answering:
            self._state.seen.aborted_ns.append(time.monotonic_ns())
        if self._timer:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self._path = url

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        body, self._body = bytes(self._body), bytearray()
        match self._path:
            case b"/health":
                self._answer(b"{}")
            case b"/v1/models":
                self._answer(MODELS)
            case b"/mode":
                self._state.mode = msgspec.json.decode(body, type=Mode)
                self._answer(b"{}")
            case b"/seen":
                seen, self._state.seen = self._state.seen, Seen()
                self._answer(msgspec.json.encode(seen))
            case b"/v1/chat/completions":
                self._call(self._state.mode)
            case _:
                self._answer(b"{}", b"404 Not Found")

    def _answer(self, body: bytes, status: bytes = b"200 OK") -> None:
        self._transport.write(
            b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
            % (status, len(body), body)
        )

    def _call(self, mode: Mode) -> None:
        self._state.seen.calls += 1
        self._answering = True
        if mode.chunks is None:
            if not mode.silent:
                self._answering = False
                self._answer(ANSWER)
            return
        self._transport.write(STREAM_HEAD)
        if mode.interval_s:
            self._next_chunk(mode, mode.chunks, time.monotonic())
            return
        for _ in range(mode.chunks):
            self._transport.write(_framed(CHUNK % time.monotonic_ns()))
        self._end(mode)

    def _next_chunk(self, mode: Mode, left: int, due: float) -> None:
        """Send one and plan the next: at a fixed rate, however late this one is."""
        if not left:
            self._end(mode)
            return
        self._transport.write(_framed(CHUNK % time.monotonic_ns()))
        due += mode.interval_s
        delay = max(0.0, due - time.monotonic())
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(delay, self._next_chunk, mode, left - 1, due)

    def _end(self, mode: Mode) -> None:
        if not mode.silent:
            self._answering = False
            self._transport.write(_framed(STREAM_END) + b"0\r\n\r\n")


def _framed(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def main(ports: list[int]) -> None:
    state = State()
    loop = asyncio.get_running_loop()
    for port in ports:
        await loop.create_server(lambda: Connection(state), HOST, port, backlog=1024)
    await loop.create_future()


if __name__ == "__main__":
    uvloop.run(main([int(port) for port in sys.argv[1:]]))

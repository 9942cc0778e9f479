"""Engines that cost next to nothing, as one process: what the gateways under test call.

`python -m bench.upstream PORT...` answers chat completions as `PUT /mode` says, from all ports
alike. Each answer has a number of its own, so no two conversations have the same history. Each
chunk of a stream is stamped with the time at which it was sent. `GET /seen` tells, and forgets, how
many calls came and when calls were aborted. Times are CLOCK_MONOTONIC in nanoseconds, which all
processes of a machine share. With `--metrics` each port also tells `/metrics` as vLLM does: its
load, and how much its KV cache holds.
"""

import argparse
import asyncio
import time
from functools import partial
from typing import cast

import httptools
import msgspec
import uvloop

from kairos.host import allow_many_connections

HOST = "127.0.0.1"
MODEL = "bench"
ANSWER = (
    b'{"id":"chatcmpl-%08d","object":"chat.completion","created":0,"model":"bench","choices":'
    b'[{"index":0,"message":{"role":"assistant","content":"answer %08d: '
    + b"word "
    * 14
    + b'"},"finish_reason":"stop"}],"usage":'
    b'{"prompt_tokens":500,"completion_tokens":16,"total_tokens":516}}'
)
ANSWER_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    % len(ANSWER % (0, 0))
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

KV_BLOCKS = 20_001  # of 16 tokens; one is vLLM's own
# The lines that are read of what vLLM 0.26 tells, in its order.
METRICS = """\
process_start_time_seconds 1.79517615793e+09
vllm:num_requests_running{{engine="0",model_name="bench"}} {running:.1f}
vllm:num_requests_waiting{{engine="0",model_name="bench"}} 0.0
vllm:num_requests_waiting_by_reason{{engine="0",model_name="bench",reason="capacity"}} 0.0
vllm:num_requests_waiting_by_reason{{engine="0",model_name="bench",reason="deferred"}} 0.0
vllm:kv_cache_usage_perc{{engine="0",model_name="bench"}} {used:.6f}
vllm:prefix_cache_queries_total{{engine="0",model_name="bench"}} {queried:.1f}
vllm:prefix_cache_hits_total{{engine="0",model_name="bench"}} 0.0
vllm:num_preemptions_total{{engine="0",model_name="bench"}} 0.0
vllm:cache_config_info{{block_size="16",enable_prefix_caching="True",engine="0",\
kv_cache_size_tokens="{tokens}",num_gpu_blocks="{blocks}"}} 1.0
"""
CALL_BLOCKS = 33  # of a call: 516 tokens


class Mode(msgspec.Struct, forbid_unknown_fields=True):
    """How calls are answered: as JSON, or by this many chunks."""

    chunks: int | None = None
    interval_s: float = 0.0  # between chunks; 0: all at once
    delay_s: float = 0.0  # before the answer, or its first chunk
    silent: bool = False  # answer nothing, or nothing more once the chunks are out


class Seen(msgspec.Struct):
    calls: int = 0
    aborted_ns: list[int] = msgspec.field(default_factory=list)


class State:
    """What all ports share."""

    def __init__(self) -> None:
        self.mode = Mode()
        self.seen = Seen()
        self.answers = 0


class Engine:
    """What one port tells of itself."""

    def __init__(self) -> None:
        self.calls = 0
        self.running = 0

    def metrics(self) -> bytes:
        blocks = KV_BLOCKS - 1
        return METRICS.format(
            running=self.running,
            used=min(1.0, self.running * CALL_BLOCKS / blocks),
            queried=self.calls * 500,
            tokens=KV_BLOCKS * 16,
            blocks=KV_BLOCKS,
        ).encode()


class Connection(asyncio.Protocol):
    _transport: asyncio.Transport  # once it is made

    def __init__(self, state: State, engine: Engine, *, has_metrics: bool) -> None:
        self._state = state
        self._engine = engine
        self._has_metrics = has_metrics
        self._parser = httptools.HttpRequestParser(self)
        self._timer: asyncio.TimerHandle | None = None
        self._answering = False
        self._path = b""
        self._body = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, _: Exception | None) -> None:
        if self._answering:
            self._over()
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
            case b"/metrics" if self._has_metrics:
                self._answer(self._engine.metrics())
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
        self._engine.calls += 1
        self._engine.running += 1
        if mode.delay_s:
            self._timer = asyncio.get_running_loop().call_later(mode.delay_s, self._begin, mode)
        else:
            self._begin(mode)

    def _begin(self, mode: Mode) -> None:
        if mode.chunks is None:
            if not mode.silent:
                self._answer_call()
            return
        self._transport.write(STREAM_HEAD)
        if mode.interval_s:
            self._next_chunk(mode, mode.chunks, time.monotonic())
            return
        for _ in range(mode.chunks):
            self._transport.write(_framed(CHUNK % time.monotonic_ns()))
        self._end(mode)

    def _over(self) -> None:
        self._answering = False
        self._engine.running -= 1

    def _answer_call(self) -> None:
        self._over()
        self._state.answers += 1
        number = self._state.answers % 10**8
        self._transport.write(ANSWER_HEAD + ANSWER % (number, number))

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
            self._over()
            self._transport.write(_framed(STREAM_END) + b"0\r\n\r\n")


def _framed(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def main(ports: list[int], *, has_metrics: bool) -> None:
    state = State()
    loop = asyncio.get_running_loop()
    for port in ports:
        made = partial(Connection, state, Engine(), has_metrics=has_metrics)
        await loop.create_server(made, HOST, port, backlog=2048)
    await loop.create_future()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m bench.upstream")
    parser.add_argument("ports", type=int, nargs="+")
    parser.add_argument("--metrics", action="store_true", help="tell /metrics as vLLM does")
    arguments = parser.parse_args()
    allow_many_connections()
    uvloop.run(main(arguments.ports, has_metrics=arguments.metrics))

"""What is measured, each on one system at a time: the engines alone, or through a gateway."""

import asyncio
import time
from collections.abc import Awaitable, Callable

from bench import load, report, talk
from bench.load import Control
from bench.systems import CONCURRENCY, System
from bench.talk import NewClient
from bench.upstream import Mode

STREAM_CHUNKS = 16
SLOW_MODE = Mode(chunks=STREAM_CHUNKS, interval_s=0.020)
STREAMS = 256
CHUNKS_PER_S = 30
STREAM_S = 4.0
LEAVERS = 40  # a round
LIMIT_S = 2.0  # an abort that takes longer counts as this

LATENCY = "p50 latency, one call at a time"
ADDED = "added p50 latency, one call at a time"
NAMED = "CPU per JSON call, named"
ANONYMOUS = "CPU per JSON call, anonymous"
CONVERSATION = "CPU per call of a conversation, 20 messages and 20 KB, anonymous"
STREAM = "CPU per stream, 16 chunks at once"
SLOW_STREAM = "CPU per stream, 16 chunks 20 ms apart"

# name of the figure, unit, target for Kairos
FIGURES = (
    (LATENCY, "us", None),
    (ADDED, "us", None),
    (NAMED, "us", 300),
    (ANONYMOUS, "us", None),
    (CONVERSATION, "us", None),
    (STREAM, "us", 500),
    (SLOW_STREAM, "us", None),
    ("p99 delay of a chunk, 256 streams", "ms", 1),
    ("p50 delay of a chunk, 256 streams", "ms", None),
    ("p99 leave to abort, before the first byte", "ms", 100),
    ("p99 leave to abort, in mid-stream", "ms", 100),
    ("p99 leave to abort, in the queue", "ms", 100),
)

Measured = dict[str, float]  # by name of the figure


async def latency(system: System, control: Control, calls: int = 600) -> Measured:
    await control.set(Mode())
    times = await load.closed_loop(system.port, calls, 1, talk.named())
    return {LATENCY: report.percentile(times, 50) * 1e6}


async def cpu_json(system: System, control: Control, calls: int = 2500) -> Measured:
    await control.set(Mode())
    return {NAMED: await _cpu_us(system, calls, talk.named())}


async def cpu_anonymous(system: System, control: Control, calls: int = 1500) -> Measured:
    await control.set(Mode())
    return {ANONYMOUS: await _cpu_us(system, calls, talk.anonymous())}


async def cpu_conversation(system: System, control: Control, calls: int = 1000) -> Measured:
    await control.set(Mode())
    return {CONVERSATION: await _cpu_us(system, calls, talk.conversations())}


async def cpu_stream(system: System, control: Control, calls: int = 1500) -> Measured:
    await control.set(Mode(chunks=STREAM_CHUNKS))
    return {STREAM: await _cpu_us(system, calls, talk.named_streams())}


async def cpu_slow_stream(system: System, control: Control, calls: int = 320) -> Measured:
    await control.set(SLOW_MODE)
    return {SLOW_STREAM: await _cpu_us(system, calls, talk.named_streams())}


async def _cpu_us(system: System, calls: int, new_client: NewClient) -> float:
    before_s = system.server.cpu_s()
    await load.closed_loop(system.port, calls, CONCURRENCY, new_client)
    return (system.server.cpu_s() - before_s) / calls * 1e6


async def chunk_delay(system: System, control: Control) -> Measured:
    chunks = int(STREAM_S * CHUNKS_PER_S)
    await control.set(Mode(chunks=chunks, interval_s=1 / CHUNKS_PER_S))
    delays = await load.chunk_delays(system.port, STREAMS, spread_s=1.0)
    assert len(delays) == STREAMS * (chunks - 1)
    return {
        "p99 delay of a chunk, 256 streams": report.percentile(delays, 99) / 1e6,
        "p50 delay of a chunk, 256 streams": report.percentile(delays, 50) / 1e6,
    }


async def abort_before_first_byte(system: System, control: Control) -> Measured:
    delays = await _abort_delays(system, control, Mode(silent=True))
    return {"p99 leave to abort, before the first byte": report.percentile(delays, 99)}


async def abort_in_mid_stream(system: System, control: Control) -> Measured:
    mode = Mode(chunks=100_000, interval_s=1 / CHUNKS_PER_S)
    delays = await _abort_delays(system, control, mode)
    return {"p99 leave to abort, in mid-stream": report.percentile(delays, 99)}


async def _abort_delays(system: System, control: Control, mode: Mode) -> list[float]:
    """Milliseconds from a client's leaving to the engine's connection being closed."""
    await control.set(mode)
    delays = []
    for number in range(LEAVERS):
        await control.seen()
        async with load.connected(system.port) as client:
            client.send(talk.chat(number, stream=True))
            if mode.chunks:
                await client.first_byte.wait()
            else:
                await _until(lambda: _called(control))
            left_ns = client.leave()
        delays.append(await _aborted_after_ms(control, left_ns))
    return delays


async def _called(control: Control) -> bool:
    return (await control.seen()).calls > 0


async def _until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not await condition():
            await asyncio.sleep(0.001)


async def _aborted_after_ms(control: Control, left_ns: int) -> float:
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        if aborted_ns := (await control.seen()).aborted_ns:
            return (aborted_ns[0] - left_ns) / 1e6
        await asyncio.sleep(0.001)
    return LIMIT_S * 1e3


# The engines' own CPU time is nobody's cost here, so that is measured on gateways alone.
ON_GATEWAYS = (cpu_json, cpu_anonymous, cpu_conversation, cpu_stream, cpu_slow_stream)
SCENARIOS = (
    latency,
    *ON_GATEWAYS,
    chunk_delay,
    abort_before_first_byte,
    abort_in_mid_stream,
)


async def abort_in_queue(kairos_port: int, control: Control) -> list[float]:
    """Milliseconds from a waiting client's leaving to Kairos's queue being empty, as its own
    /metrics tells. The caller has given Kairos one engine of one sequence."""
    await control.set(Mode(silent=True))
    await control.seen()
    delays = []
    async with load.connected(kairos_port) as holder, load.connected(kairos_port) as metrics:

        async def waiting(count: int) -> bool:
            text = await metrics.send(talk.http(b"GET", b"/metrics"))
            return b"\nkairos_requests_waiting %d.0\n" % count in text

        holder.send(talk.chat(0, stream=True))
        await _until(lambda: _called(control))
        for number in range(1, LEAVERS + 1):
            async with load.connected(kairos_port) as client:
                client.send(talk.chat(number, stream=True))
                await _until(lambda: waiting(1))
                left_ns = client.leave()
            await _until(lambda: waiting(0))
            delays.append((time.monotonic_ns() - left_ns) / 1e6)
    return delays

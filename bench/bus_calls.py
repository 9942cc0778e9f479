"""LLM calls over Kafka; over HTTP through the same `kairos serve`; and through one without a bus.

By system: `kafka`, `http`, `memory`.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from bench import load, talk
from bench.bus_servers import Names
from bench.report import percentile
from bench.scenarios import Measured
from bench.servers import Server
from bench.upstream import HOST, MODEL
from kairos.agent import LLM
from kairos.agents.bus_llm import BusLLM
from kairos.cluster import KafkaCluster
from kairos.proxy import HttpLLM

CONCURRENCY = 32
WARM_UP = 200
TURN = 20
CALL = "{} LLM call, one at a time"
GATEWAY = "p50 bare HTTP call, one at a time"
CPU = "CPU of kairos serve per call"


class Calls:
    """An agent's calls, no two of one name, five to a workflow."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._number = 0

    def next(self) -> tuple[dict[str, Any], Mapping[str, str]]:
        """As large as those of `talk.chat`."""
        number = self._number
        self._number += 1
        text = f"{number:08d} " + talk.WORDS.decode() * (talk.PROMPT_BYTES // len(talk.WORDS))
        body = {"model": MODEL, "max_tokens": 16, "messages": [{"role": "user", "content": text}]}
        return body, {
            "X-Request-Id": f"{self._run}-{number}",
            "X-Kairos-Workflow-Id": f"{self._run}-{number // 5}",
            "X-Kairos-App": "bench",
            "X-Kairos-Agent": "writer",
            "X-Kairos-Upstream": "researcher",
        }


async def by_turns(llms: Mapping[str, LLM], calls: Calls, number: int) -> dict[str, Measured]:
    """So many calls over each, one at a time, a few before it is the next one's turn: work that a
    call leaves behind, such as its record, is not to be in another system's way."""
    times_us: dict[str, list[float]] = {system: [] for system in llms}
    for _ in range(number // TURN):
        for system, llm in llms.items():
            for _ in range(TURN):
                body, headers = calls.next()
                started = time.perf_counter()
                await llm.complete(body, headers)
                times_us[system].append((time.perf_counter() - started) * 1e6)
    return {
        system: {CALL.format(f"p{percent}"): percentile(took, percent) for percent in (50, 99)}
        for system, took in times_us.items()
    }


async def over_http(server: Server, number: int) -> Measured:
    """Calls from a client that costs little."""
    times = await load.closed_loop(server.port, number, 1, talk.named())
    before_s = server.cpu_s()
    await load.closed_loop(server.port, 3 * number, CONCURRENCY, talk.named())
    cpu_s = server.cpu_s() - before_s
    return {GATEWAY: percentile(times, 50) * 1e6, CPU: cpu_s / (3 * number) * 1e6}


async def cpu_over_bus(server: Server, llm: LLM, calls: Calls, number: int) -> Measured:
    async def work(turns: Iterator[int]) -> None:
        for _ in turns:
            await llm.complete(*calls.next())

    turns = iter(range(number))
    before_s = server.cpu_s()
    async with asyncio.TaskGroup() as group:
        for _ in range(CONCURRENCY):
            group.create_task(work(turns))
    return {CPU: (server.cpu_s() - before_s) / number * 1e6}


class Callers:
    """Clients of two `kairos serve`, one of which is on the bus."""

    def __init__(self, llms: Mapping[str, LLM], calls: Calls, serves: Mapping[str, Server]) -> None:
        self._llms = llms
        self._calls = calls
        self._serves = serves

    async def warm_up(self) -> None:
        await by_turns(self._llms, self._calls, WARM_UP)
        for serve in self._serves.values():
            await load.closed_loop(serve.port, WARM_UP, CONCURRENCY, talk.named())

    async def measure(self, number: int) -> dict[str, Measured]:
        """By system. Three times as many calls for the CPU time."""
        found = await by_turns(self._llms, self._calls, number)
        for system, serve in self._serves.items():
            found[system] |= await over_http(serve, number)
        on_bus = self._serves["http"]
        found["kafka"] |= await cpu_over_bus(on_bus, self._llms["kafka"], self._calls, 3 * number)
        return found


@asynccontextmanager
async def callers(
    connection: KafkaCluster, names: Names, serves: Mapping[str, Server]
) -> AsyncIterator[Callers]:
    """They have called for a while."""
    async with (
        HttpLLM(f"http://{HOST}:{serves['memory'].port}/v1") as without,
        HttpLLM(f"http://{HOST}:{serves['http'].port}/v1") as over_http,
        BusLLM(connection, pool=names.pool, name=names.replies) as over_bus,
    ):
        llms: dict[str, LLM] = {"memory": without, "http": over_http, "kafka": over_bus}
        made = Callers(llms, Calls(names.pool), serves)
        await made.warm_up()
        yield made

"""A tenant's calls to the real service beside another's, at a pace: a neighbour that says who makes
its calls, or a poisoned one, of whose calls each has names that nobody has had.

Of either every third call says nothing, so that it has to be inferred who makes it: the neighbour's
go on with a conversation; each of the poisoned ones has a system prompt, tools and words of its
own. Of the poisoned one's calls some are left before they are answered, and some workflows are
cancelled.
"""

import asyncio
import hashlib
import tempfile
import time
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Literal

import msgspec

from bench import load
from bench.load import Broken
from bench.servers import server
from bench.systems import free_ports, kairos_command, upstream_command
from bench.talk import CHAT, Words, http
from bench.upstream import MODEL, Mode

Kind = Literal["neighbour", "poisoned"]
HONEST, OTHER = "honest", "other"
CONNECTIONS = 48  # of each tenant
ENGINES, SEQS = 2, 512
DELAY_S = 0.02  # of the engines
CALLS_PER_WORKFLOW = 5
LEFT, CANCELLED = 10, 15  # of so many calls of the poisoned one, one
MESSAGE_WORDS = 60


class Measured(msgspec.Struct, frozen=True):
    mean_ms: float  # of the honest tenant's calls
    p99_ms: float
    cpu_us: float  # of the service, for each call of either


class Caller:
    """A tenant's calls. `numbers` make names, of which none is used twice."""

    def __init__(self, tenant: str, port: int, *, poisoned: bool = False) -> None:
        self._tenant, self._port, self._poisoned = tenant, port, poisoned
        self._words, self._numbers = Words(), count()
        self._systems = [self._words.say(MESSAGE_WORDS) for _ in range(8)]
        self.took_s: list[float] = []
        self.calls = 0

    async def play(self, per_s: float, seconds: float) -> None:
        """So many calls a second, evenly; as many as can be, where that is more."""
        began = time.monotonic()
        instants = (began + number / per_s for number in range(int(per_s * seconds)))

        async def work() -> None:
            for instant in instants:
                await asyncio.sleep(max(0.0, instant - time.monotonic()))
                if time.monotonic() > began + seconds:
                    return
                await self._call()

        async with asyncio.TaskGroup() as group:
            for _ in range(CONNECTIONS):
                group.create_task(work())

    async def _call(self) -> None:
        number = next(self._numbers)
        leaves = self._poisoned and number % LEFT == 0
        async with load.connected(self._port) as client:
            began = time.perf_counter()
            answer = client.send(self._request(number))
            self.calls += 1
            if leaves:
                await asyncio.sleep(DELAY_S / 4)
                return
            await answer
            self.took_s.append(time.perf_counter() - began)
            if self._poisoned and number % CANCELLED == 0:
                path = f"/v1/workflows/w-{number}"
                with suppress(Broken):
                    await client.send(http(b"DELETE", path.encode(), headers=self._key()))

    def _key(self) -> bytes:
        return b"authorization: Bearer %b\r\n" % self._tenant.encode()

    def _request(self, number: int) -> bytes:
        messages = [{"role": "user", "content": self._words.say(MESSAGE_WORDS)}]
        body = {"model": MODEL, "max_tokens": 16, "messages": messages}
        headers = self._key()
        if number % 3 == 0:
            system = self._words.say(MESSAGE_WORDS) if self._poisoned else self._systems[number % 8]
            messages.insert(0, {"role": "system", "content": system})
            name = f"tool-{number if self._poisoned else number % 8}"
            body["tools"] = [{"type": "function", "function": {"name": name}}]
        else:
            workflow = number if self._poisoned else number // CALLS_PER_WORKFLOW
            named = number if self._poisoned else number % 8
            headers += (
                f"x-kairos-workflow-id: w-{workflow}\r\nx-kairos-app: app-{named}\r\n"
                f"x-kairos-agent: agent-{named}\r\n"
            ).encode()
        return http(b"POST", CHAT.encode(), msgspec.json.encode(body), headers)


def settings(directory: str) -> list[str]:
    keys = [
        f'[[key]]\nsha256 = "{hashlib.sha256(tenant.encode()).hexdigest()}"\ntenant = "{tenant}"\n'
        for tenant in (HONEST, OTHER)
    ]
    path = Path(directory) / "kairos.toml"
    path.write_text("\n".join(keys))
    return ["--config", str(path)]


async def beside(
    kind: Kind, cores: tuple[int | None, int | None], per_s: float, seconds: float, before_s: float
) -> Measured:
    """`per_s`: calls of each tenant. The other plays for so long before, three times as quickly."""
    *engines, port = free_ports(ENGINES + 1)
    core, rest = cores
    with tempfile.TemporaryDirectory() as directory:
        command = [*kairos_command(port, engines, SEQS, directory), *settings(directory)]
        async with (
            server(upstream_command(engines, metrics=True), engines[0], rest),
            server(command, port, core) as kairos,
            load.connected(engines[0]) as client,
        ):
            await load.Control(client).set(Mode(delay_s=DELAY_S))
            other = Caller(OTHER, port, poisoned=kind == "poisoned")
            await other.play(3 * per_s, before_s)
            honest, calls, cpu_s = Caller(HONEST, port), other.calls, kairos.cpu_s()
            async with asyncio.TaskGroup() as group:
                for each in (honest, other):
                    group.create_task(each.play(per_s, seconds))
            cpu_s = kairos.cpu_s() - cpu_s
            took_ms = sorted(1e3 * each for each in honest.took_s)
            calls = honest.calls + other.calls - calls
    p99 = took_ms[int(0.99 * len(took_ms))]
    return Measured(sum(took_ms) / len(took_ms), p99, 1e6 * cpu_s / calls)

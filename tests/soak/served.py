"""`kairos serve` as a process, and how it stands, seen from outside."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import aiohttp
import msgspec

from tests.soak import verdict
from tests.soak.client import session
from tests.soak.verdict import Ending
from tests.support.ports import free_ports
from tests.support.processes import Process

SETTLE_S = 90.0  # for anything that must come to be once the last client has left
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Served:
    """One Kairos; a context manager that starts it and waits until all engines have joined, and
    kills it in the end."""

    def __init__(
        self, directory: Path, options: Sequence[object], environ: Mapping[str, str]
    ) -> None:
        """`options`: those that say which engines there are."""
        port, admin_port = free_ports(2)
        self.url, self._admin_url = (f"http://127.0.0.1:{each}" for each in (port, admin_port))
        self.facts = directory / "facts"
        places = ("--port", port, "--admin-port", admin_port, "--log", self.facts)
        self.process = Process(directory, "kairos", "serve", *places, *options, environ=environ)
        self._descriptors_before = 0

    async def __aenter__(self) -> Self:
        self.process.start()
        try:
            await self.process.until_it_says("serving")
            await self.until_all_joined()
        except BaseException:
            self.process.kill()
            raise
        self._descriptors_before = self._descriptors()
        return self

    async def __aexit__(self, *_raised: object) -> None:
        self.process.kill()

    async def status(self, asking: aiohttp.ClientSession) -> dict[str, Any]:
        async with asking.get(f"{self._admin_url}/admin/status") as response:
            status: dict[str, Any] = await response.json()
            return status

    async def until_all_joined(self) -> None:
        async def joined(asking: aiohttp.ClientSession) -> bool:
            return not (await self.status(asking))["not_in_use"]

        await self.until(joined)

    async def until(self, condition: Callable[[aiohttp.ClientSession], Awaitable[bool]]) -> None:
        """Wait for it, as long as that may take; what is not so then, the end will show."""
        async with session() as asking:
            deadline = time.monotonic() + SETTLE_S
            while not await condition(asking) and time.monotonic() < deadline:
                await asyncio.sleep(0.2)

    def resident_bytes(self) -> int:
        statm = Path(f"/proc/{self.process.pid}/statm")
        return int(statm.read_text().split()[1]) * PAGE_BYTES

    def cpu_s(self) -> float:
        """That it has taken so far."""
        stat = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(stat[11]) + int(stat[12])) / TICKS_PER_S

    async def ending(self, engines: Mapping[str, str]) -> Ending:
        """Wait until it is as before the first call, or for as long as that may take; then end it.

        `engines`: the URLs of their metrics, by name.
        """
        async with session() as asking:
            ending = None
            deadline = time.monotonic() + SETTLE_S
            while ending is None or (
                time.monotonic() < deadline and any(verdict.of_ending(ending))
            ):
                await asyncio.sleep(0.5)
                ending = Ending(
                    status=await self.status(asking),
                    descriptors_before=self._descriptors_before,
                    descriptors=self._descriptors(),
                    running_in_engines={
                        name: await _running(asking, url) for name, url in engines.items()
                    },
                    exit_status=0,
                    said="",
                )
        exit_status = await asyncio.to_thread(self.process.stop)
        said = self.process.log.read_text(errors="replace")
        return msgspec.structs.replace(ending, exit_status=exit_status, said=said)

    def _descriptors(self) -> int:
        return sum(1 for _ in Path(f"/proc/{self.process.pid}/fd").iterdir())


async def _running(asking: aiohttp.ClientSession, url: str) -> float:
    async with asking.get(f"{url}/metrics") as response:
        lines = (await response.text()).splitlines()
    counts = ("vllm:num_requests_running{", "vllm:num_requests_waiting{")
    return sum(float(line.split()[-1]) for line in lines if line.startswith(counts))

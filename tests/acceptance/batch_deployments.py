"""Kairos as it serves batches, of which each kind of process can be killed: over Kafka, and with
workers on one host. The engines are stand-ins; what they say is a function of the prompt."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, Self

import aiohttp

from kairos.core import Record
from kairos.observe import read_facts
from tests.support.host.forked import children
from tests.support.kafka import Broker
from tests.support.ports import free_ports
from tests.support.processes import Process

SLOTS = 8  # of one engine
SEED = 1  # of what the engines say
BROKER_DOWN_S = 30.0
AWAY_S = 1.0  # between the end of a process and its next start
START_S = 30.0

Blow = Callable[[], Awaitable[None]]


class Deployment:
    """Processes that share a directory of batches. A context manager that kills them in the end."""

    blows: Mapping[str, Blow]  # by what dies
    admin_urls: Sequence[str]  # of what may decide

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(exist_ok=True)
        self._stack = ExitStack()
        *ports, engine_1, engine_2 = free_ports(6)
        self._ports = ports
        self.processes: dict[str, Process] = {}
        self._engines = []
        for number, port in enumerate((engine_1, engine_2), 1):
            timing = ("--step-ms", 4, "--step-per-seq-ms", 1, "--max-num-seqs", SLOTS)
            given = ("--port", port, "--seed", SEED, *timing)
            self._add(f"engine-{number}", *given, module="kairos.simulate.standin.server")
            self._engines.append(f"http://127.0.0.1:{port}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self._stack.close()

    def _add(self, name: str, *command: object, module: str = "kairos.cli.main") -> None:
        process = Process(self.directory, name, *command, module=module)
        self.processes[name] = process
        self._stack.callback(process.kill)

    def _settings(self, name: str, **given: object) -> Path:
        """A file of them, for one process that serves."""
        told = {"log_dir": f'"{self._log(name)}"', **given}
        lines = [f"{each} = {value}" for each, value in told.items()]
        for url in self._engines:
            lines += ["[[engine]]", f'url = "{url}"', f"max_num_seqs = {SLOTS}"]
        lines += ["[batches]", f'directory = "{self.directory / "batches"}"']
        path = self.directory / f"{name}.toml"
        path.write_text("\n".join(lines))
        return path

    def _log(self, name: str) -> Path:
        return self.directory / f"facts-{name}"

    @property
    def url(self) -> str:
        """That clients use."""
        return f"http://127.0.0.1:{self._ports[0]}"

    def driver(self) -> int:
        """The process that drives the batches."""
        return int((self.directory / "batches" / "lock").read_text())

    def facts(self) -> Iterator[Record]:
        """What those that decide have logged; a second may be missing where one was killed."""
        for log in self.directory.glob("facts-*"):
            yield from read_facts(log)

    async def start(self) -> None:
        for name in ("engine-1", "engine-2"):
            self.processes[name].start()
            await self.processes[name].until_it_says("ready")

    async def crash(self, *names: str) -> None:
        """They die at once, and start again after a while."""
        for name in names:
            self.processes[name].kill()
        await asyncio.sleep(AWAY_S)
        for name in names:
            self.processes[name].start()

    async def is_at_rest(self) -> bool:
        """Nothing waits, nothing runs, and no engine is left out, as the process knows that
        decides."""
        async with aiohttp.ClientSession() as asking:
            for url in self.admin_urls:
                try:
                    scaling = await _json(asking, f"{url}/admin/scaling")
                except aiohttp.ClientError:  # it starts still
                    continue
                if not scaling["decides"]:
                    continue
                told = await _json(asking, f"{url}/admin/status")
                running = [each["running"] for each in told["instances"].values()]
                return told["waiting"] == 0 and running == [0, 0] and not told["not_in_use"]
        return False

    def state(self) -> str:
        """The last that each process said."""
        return "\n".join(
            f"== {name}\n{each.log.read_text()[-1500:]}" for name, each in self.processes.items()
        )


class OnKafka(Deployment):
    """Two gateways of one host, a balancer and an orchestrator, over a Kafka."""

    def __init__(self, directory: Path, broker_down_s: float = BROKER_DOWN_S) -> None:
        super().__init__(directory)
        self._broker_down_s = broker_down_s
        self._broker = self._stack.enter_context(Broker(directory / "kafka"))
        bus = ("--bus", self._broker.url)
        places = (self._ports[:2], self._ports[2:])
        balancer, orchestrator = free_ports(2)
        for name, (port, admin_port) in zip(("gateway-1", "gateway-2"), places, strict=True):
            where = ("--port", port, "--admin-port", admin_port)
            self._add(name, "serve", *bus, "--config", self._settings(name), *where)
        engines = [f"--engine={url},max_num_seqs={SLOTS}" for url in self._engines]
        log = ("--log", self._log("balancer"))
        self._add("balancer", "balance", *bus, *engines, "--port", balancer, *log)
        admin_ports = (places[0][1], places[1][1], balancer)
        self.admin_urls = [f"http://127.0.0.1:{port}" for port in admin_ports]
        self._add("orchestrator", "orchestrate", *bus, "--port", orchestrator)
        self.blows = {
            "the gateway that drives": self._crash_driver,
            "the balancer": partial(self.crash, "balancer"),
            "the gateway of the client": partial(self.crash, "gateway-1"),
            "the broker": self._crash_broker,
            "an engine": partial(self.crash, "engine-1"),
            "the orchestrator": partial(self.crash, "orchestrator"),
            "all that serve and decide": partial(self.crash, "gateway-1", "gateway-2", "balancer"),
            "both engines": partial(self.crash, "engine-1", "engine-2"),
        }

    async def start(self) -> None:
        await super().start()
        for name in ("balancer", "orchestrator", "gateway-1", "gateway-2"):
            self.processes[name].start()
        for name in ("gateway-1", "gateway-2"):
            await self.processes[name].until_it_says("serving on")

    async def _crash_driver(self) -> None:
        gateways = {name: self.processes[name] for name in ("gateway-1", "gateway-2")}
        await self.crash(next(n for n, each in gateways.items() if each.pid == self.driver()))

    async def _crash_broker(self) -> None:
        self._broker.kill()
        await asyncio.sleep(self._broker_down_s)
        await asyncio.to_thread(self._broker.start)


class OnOneHost(Deployment):
    """`kairos serve --workers 2`."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        port, admin_port = self._ports[:2]
        self.admin_urls = [f"http://127.0.0.1:{admin_port}"]
        where = {"port": port, "admin_port": admin_port, "workers": 2}
        self._add("serve", "serve", "--config", self._settings("serve", **where))
        self.blows = {
            "the worker that drives": lambda: self._kill(self.driver()),
            "the decider": lambda: self._kill(self._decider()),
            "the other worker": self._kill_other,
            "an engine": partial(self.crash, "engine-1"),
            "the worker that drives, and the decider": lambda: self._kill(
                self.driver(), self._decider()
            ),
            "all of it": partial(self.crash, "serve"),
            "both engines": partial(self.crash, "engine-1", "engine-2"),
        }

    async def start(self) -> None:
        await super().start()
        self.processes["serve"].start()
        await self.processes["serve"].until_it_says("serving on")

    def _children(self) -> set[int]:
        return set(children(self.processes["serve"].pid))

    def _decider(self) -> int:
        """The one that serves operators."""
        return next(pid for pid in self._children() if listens(pid, self._ports[1]))

    async def _kill_other(self) -> None:
        [other] = self._children() - {self.driver(), self._decider()}
        await self._kill(other)

    async def _kill(self, *pids: int) -> None:
        """Until others are there for them."""
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        async with asyncio.timeout(START_S):
            while {*pids} & self._children() or len(self._children()) < 3:
                await asyncio.sleep(0.05)


async def _json(asking: aiohttp.ClientSession, url: str) -> Any:
    async with asking.get(url) as response:
        return await response.json()


def listens(pid: int, port: int) -> bool:
    """Whether the process has a socket that takes connections on the port."""
    sockets = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, _, state, *_, inode = line.split()[:10]
        if state == "0A" and int(local.rpartition(":")[2], 16) == port:
            sockets.add(f"socket:[{inode}]")
    with suppress(FileNotFoundError, ProcessLookupError):  # it ends, or closes one meanwhile
        for each in list(Path(f"/proc/{pid}/fd").iterdir()):
            with suppress(FileNotFoundError):
                if str(each.readlink()) in sockets:
                    return True
    return False

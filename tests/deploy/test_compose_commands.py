"""The services of docker-compose.yml as local processes: their very commands, no containers.

A service's name with a port becomes a free port on loopback, and nothing else is changed. Kafka is
a real one. What only Docker does (images, users, read-only file systems) is not tested here.
"""

import asyncio
import json
import os
import re
import signal
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from kairos.host import start_child
from tests.deploy.files import DEPLOY, OURS, ROOT, compose, env_file, in_profile
from tests.deploy.test_monitoring import asked_for, exported
from tests.support.kafka import Broker
from tests.support.ports import free_ports

HEALTHY_S = 60.0
TASKS_S = 60.0
FEWEST_CALLS = 2 + 2 + 5  # of QA, RG and CG
TASKS = {
    "agents.qa": {"text": "What is 17 times 23?"},
    "agents.rg": {"text": "How tides come about"},
    "agents.cg": {
        "text": "Write a function add(a, b) that returns the sum of two numbers.",
        "entry_point": "add",
        "tests": "from solution import add\nassert add(2, 3) == 5\n",
    },
}


class Addresses:
    """Where `host:port` of the file is on this machine."""

    def __init__(self, services, broker):
        self._services = services
        self._port = {("kafka", 9092): broker.servers.rpartition(":")[2]}
        self._names = {
            alias: name
            for name, service in services.items()
            for alias in (name, *_aliases(service))
        }

    def here(self, name, text):
        """The text, a word of the service's, with its addresses replaced."""
        for alias, owner in self._names.items():
            text = re.sub(
                rf"\b{alias}:(\d+)\b", lambda m, o=owner: f"127.0.0.1:{self.port(o, m[1])}", text
            )
        text = re.sub(r"^--(admin-)?port=(\d+)$", lambda m: self._own(name, m), text)
        text = re.sub(
            r"127\.0\.0\.1:(\d+)/", lambda m: f"127.0.0.1:{self._known(name, m[1])}/", text
        )
        # As /proc/net/tcp shows the port of the brokers.
        return text.replace(f":{9092:04X} 01 ", f":{int(self.port('kafka', 9092)):04X} 01 ")

    def port(self, name, port):
        key = (name, int(port))
        if key not in self._port:
            (free,) = free_ports(1)
            self._port[key] = str(free)
        return self._port[key]

    def _own(self, name, match):
        return f"--{match[1] or ''}port={self.port(name, match[2])}"

    def _known(self, name, port):
        return self._port.get((name, int(port)), port)


def _aliases(service):
    networks = service["networks"]
    settings = networks.values() if isinstance(networks, dict) else ()
    return [alias for each in settings for alias in each["aliases"]]


class Stack:
    """Our services of a profile, started in the order that the file asks for."""

    def __init__(self, services, broker, directory):
        self.services = {name: s for name, s in services.items() if s["image"].startswith(OURS)}
        self.addresses = Addresses(services, broker)
        self.processes = {}
        self._directory = directory

    def waves(self):
        """Each after all that it waits for; those of one wave wait for none of each other."""
        placed, waves = ["kafka"], []
        waiting = dict(self.services)
        while waiting:
            ready = [
                name
                for name, service in waiting.items()
                if all(
                    each in placed or (each not in self.services and not how["required"])
                    for each, how in ({"kafka": {}} | service.get("depends_on", {})).items()
                )
            ]
            assert ready, f"these wait for each other: {sorted(waiting)}"
            placed += ready
            waves.append(ready)
            for name in ready:
                del waiting[name]
        return waves

    async def start(self, name):
        """Start it, and return once its health check passes."""
        service = self.services[name]
        entrypoint = service.get("entrypoint", ["kairos"])
        log = self.log(name).open("wb")
        process = await start_child(
            *self._words(name, [*entrypoint, *service["command"]], child=True),
            cwd=ROOT,
            env=_environment(service),
            stdin=asyncio.subprocess.PIPE,  # it ends when we do
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        log.close()
        self.processes[name] = process
        async with asyncio.timeout(HEALTHY_S):
            while not await self._is_healthy(name):
                assert process.returncode is None, self.said(name)
                await asyncio.sleep(0.2)

    async def stop(self, name):
        """SIGTERM. Returns its exit status."""
        process = self.processes[name]
        process.send_signal(signal.SIGTERM)
        grace_s = float(self.services[name]["stop_grace_period"].removesuffix("s"))
        async with asyncio.timeout(grace_s):
            return await process.wait()

    async def kill_all(self):
        for process in self.processes.values():
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()

    async def run(self, name, *words):
        """Run a command as `docker compose exec` would. Returns what it printed."""
        process = await start_child(
            *self._words(name, words),
            cwd=ROOT,
            env=_environment(self.services[name]),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        said, complained = await process.communicate()
        assert process.returncode == 0, complained.decode()
        return said.decode()

    def said(self, name):
        return f"{name} said:\n{self.log(name).read_text()}"

    def log(self, name):
        return self._directory / f"{name}.log"

    async def _is_healthy(self, name):
        _, *words = self.services[name]["healthcheck"]["test"]
        check = await start_child(*self._words(name, words), stderr=asyncio.subprocess.DEVNULL)
        return await check.wait() == 0

    def _words(self, name, words, *, child=False):
        """The command with our addresses, our Python and our `kairos`."""
        program, *rest = (self.addresses.here(name, word) for word in words)
        module = [program, *rest]
        if program == "kairos":
            module = [sys.executable, "-m", "kairos.cli.main", *rest]
        elif program in ("python", "python3"):
            module = [sys.executable, *rest]
        if child:
            assert module[1] == "-m"
            module[2:2] = ["kairos.engines.child"]
        return module


def _environment(service):
    ours = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return ours | {"PYTHONPATH": str(ROOT)} | service.get("environment", {})


@asynccontextmanager
async def running(broker, directory):
    services = in_profile(compose(env_file(DEPLOY / ".env"))["services"], "cpu")
    stack = Stack(services, broker, directory)
    try:
        for wave in stack.waves():
            await asyncio.gather(*(stack.start(name) for name in wave))
        yield stack
    except BaseException:
        for name in stack.processes:
            print(stack.said(name))
        raise
    finally:
        await stack.kill_all()


async def metrics(stack):
    """What Prometheus would get, of all services."""
    said = []
    async with aiohttp.ClientSession() as session:
        for name, port in (("gateway", 8000), ("balancer", 8003), ("orchestrator", 8002)):
            url = f"http://127.0.0.1:{stack.addresses.port(name, port)}/metrics"
            async with session.get(url) as response:
                assert response.status == 200
                said.append(await response.text())
    return "\n".join(said)


async def submit(stack, module):
    service = module.replace(".", "-")
    return await stack.run(
        service,
        *("kairos", "agents", "submit", module, json.dumps(TASKS[module])),
        *("--bus=kafka://kafka:9092", f"--wait={TASKS_S:g}"),
    )


@pytest.mark.kafka
async def test_three_applications_run_on_the_services_of_the_file(tmp_path):
    with Broker(tmp_path / "kafka") as broker:
        async with running(broker, tmp_path) as stack:
            results = await asyncio.gather(*(submit(stack, module) for module in TASKS))
            for module, said in zip(TASKS, results, strict=True):
                (line,) = said.splitlines()
                assert "error" not in json.loads(line)["value"], f"{module}: {line}"
            shown = await metrics(stack)
            finished = re.findall(r'^kairos_calls_total\{outcome="finished"\} (\S+)$', shown, re.M)
            assert sum(map(float, finished)) >= FEWEST_CALLS
            # Ranks are learnt once workflows have ended; without them there is no figure.
            assert asked_for() - {"kairos_rank_kendall_tau"} <= exported(shown)
            for wave in reversed(stack.waves()):
                ended = await asyncio.gather(*(stack.stop(name) for name in wave))
                for name, status in zip(wave, ended, strict=True):
                    # The stand-in has no way of ending but this.
                    expected = -signal.SIGTERM if name.startswith("standin") else 0
                    assert status == expected, stack.said(name)


def test_a_service_starts_after_what_it_waits_for():
    services = in_profile(compose()["services"], "cpu")
    order = [each for wave in Stack(services, Broker(Path()), Path()).waves() for each in wave]
    assert set(order) | {"kafka", "prometheus", "grafana"} == set(services)
    assert order.index("standin-1") < order.index("gateway") < order.index("agents-cg")

"""Engines of this machine's devices, one at a time on each, as the calls of a run need models.

Starts, drains and stops real vLLM and llama.cpp servers. `workflows/execute/model_turns.py`
decides, without a clock or a process; this module carries it out. The executor holds calls of a
model that no device has, so an engine is stopped once it has no calls. The measured time of a load
is used for the next decision.

The devices and models stand in a host file (`kairos plan --host`, `run --host`):

devices = 2

[models.small]
engine = "llama"                   # or "vllm"
options = ["--context", "4096"]    # of `python -m kairos.engines.llama`
profile = "cpu-tiny"               # for plans: how quick it is, as of kairos simulate
load_s = 4.0                       # until it serves; measured by a run

[cost]                             # factors of plans; without: as measured (kairos profile), or 1
reuse = 1.0                        # of contexts that prompts of a row share, the part that is found
sharing = 1.0                      # devices that share an operator: as quick as k to this power
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, Self

import msgspec

from kairos.core import InvalidFile, SetupError
from kairos.engines import EngineProcess, Fleet, end_all, start_process
from kairos.host import read_toml
from kairos.settings import EngineSettings
from kairos.workflows.compile.device_work import MOST_DEVICES, LoadTime, OperatorWork
from kairos.workflows.compile.flow_profile import UNKNOWN_FACTORS, CostFactors
from kairos.workflows.execute.facts import OperatorsOpened
from kairos.workflows.execute.model_turns import DeviceTurn, ModelTurns, SwitchModel
from kairos.workflows.run.driver import RunDriver

MOST_MODELS = 64
_MOST_LOAD_S, _MOST_OPTIONS = 86_400.0, 100
_S = 1_000_000


class HostedModel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Model of a host. `load_s`: seconds from the start of its engine until it serves."""

    engine: Literal["llama", "vllm"] = "vllm"
    options: tuple[str, ...] = ()
    profile: str = "a40-llama3-8b"
    load_s: float = 60.0

    @property
    def load(self) -> LoadTime:
        return LoadTime(load_us=self.load_s * _S)


class HostFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Host file. `models`: by their names in flows."""

    devices: int
    models: dict[str, HostedModel]
    cost: CostFactors = UNKNOWN_FACTORS

    @property
    def loads(self) -> dict[str, LoadTime]:
        return {name: each.load for name, each in self.models.items()}


def read_host(path: Path) -> HostFile:
    """Read a host file. Raises InvalidFile: it is not valid; the message says why."""
    found = read_toml(path, HostFile)
    if not 1 <= found.devices <= MOST_DEVICES:
        raise InvalidFile(path, f"devices is {found.devices}: give 1 to {MOST_DEVICES}")
    if not 1 <= len(found.models) <= MOST_MODELS:
        raise InvalidFile(path, f"{len(found.models)} models: give 1 to {MOST_MODELS}")
    for factor, given in msgspec.structs.asdict(found.cost).items():
        if given is not None and not 0 <= given <= 1:
            raise InvalidFile(path, f"{factor} of [cost] is {given}: give 0 to 1")
    for name, each in found.models.items():
        if not 0 < each.load_s <= _MOST_LOAD_S:
            raise InvalidFile(path, f"load_s of {name} is {each.load_s}: give seconds above 0")
        if len(each.options) > _MOST_OPTIONS:
            raise InvalidFile(
                path, f"{len(each.options)} options of {name}: {_MOST_OPTIONS} at most"
            )
    return found


LOOK_S = 0.1
START_S = 600.0  # until an engine serves; a large model from a slow disk
_READING_S = 2.0  # rows being read may delay a switch of models at most this long


class HostedEngine(NamedTuple):
    """Module of an engine. `named`: its option for the model's name."""

    module: str
    named: str


HOSTED_ENGINES: Mapping[str, HostedEngine] = {
    "llama": HostedEngine("kairos.engines.llama", "--alias"),
    "vllm": HostedEngine("kairos.engines.vllm", "--served-model-name"),
}


class _HostDevice:
    def __init__(self) -> None:
        self.process: EngineProcess | None = None
        self.instance_id: str | None = None


class EngineHost:
    """Async context manager of the engines: none outlives it. `follow` serves a run."""

    def __init__(
        self,
        host: HostFile,
        turns: Sequence[Sequence[DeviceTurn]],
        works: Sequence[OperatorWork],
        fleet: Fleet,
        on_note: Callable[[str], None],
        *,
        engines: Mapping[str, HostedEngine] = HOSTED_ENGINES,
    ) -> None:
        self._host, self._fleet, self._on_note = host, fleet, on_note
        self._engines = engines
        self._turns = ModelTurns(turns, works, host.loads)
        self._devices = [_HostDevice() for _ in turns]
        self._switching: dict[int, asyncio.Task[None]] = {}
        self._failure: str | None = None
        self._opened: frozenset[str] | None = None
        self._reading_since: float | None = None
        self.loads = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_raised: object) -> None:
        for task in self._switching.values():
            task.cancel()
        if self._switching:
            await asyncio.wait(self._switching.values())
        await end_all([each.process for each in self._devices if each.process is not None])

    async def follow(self, driver: RunDriver) -> None:
        """Load the models that the run's calls need, until cancelled.

        Raises:
            SetupError: an engine cannot be started, or exited. The run can be resumed.
        """
        self._tell(driver)
        for each in self._turns.begin():
            self._begin(each)
        while True:
            for number, task in list(self._switching.items()):
                if task.done():
                    del self._switching[number]
                    task.result()
            if self._failure is not None:
                raise SetupError(f"{self._failure}; kairos runs resume continues from here")
            if not self._is_reading(driver):
                gate = driver.executor.gate
                for each in self._turns.look(gate.wanted, gate.in_flight):
                    self._begin(each)
            self._tell(driver)
            await asyncio.sleep(LOOK_S)

    def _tell(self, driver: RunDriver) -> None:
        opened = self._turns.opened()
        if opened != self._opened:
            self._opened = opened
            driver.add_fact(OperatorsOpened(opened))

    def _is_reading(self, driver: RunDriver) -> bool:
        """Return whether rows are being read, so that calls may follow; false after 2 s."""
        now = time.monotonic()
        if not driver.executor.is_reading:
            self._reading_since = None
        elif self._reading_since is None:
            self._reading_since = now
        return self._reading_since is not None and now - self._reading_since < _READING_S

    def _begin(self, command: SwitchModel) -> None:
        assert command.device not in self._switching, f"device {command.device} switches already"
        self._switching[command.device] = asyncio.create_task(self._switch(command))

    async def _switch(self, command: SwitchModel) -> None:
        device, model = self._devices[command.device], command.turn.model
        await self._leave(device)
        began_s = time.monotonic()
        self._on_note(f"device {command.device + 1}: loading {model}")
        device.process = await self._start(command.device, model)
        url = await device.process.url(START_S)
        device.instance_id = self._fleet.add(EngineSettings(url=url)).id
        await self._in_use(device.instance_id)
        took_s = time.monotonic() - began_s
        self.loads += 1
        self._on_note(f"device {command.device + 1}: {model} serves after {took_s:.1f} s")
        self._turns.loaded(command.device, took_s * _S)

    async def _start(self, number: int, model: str) -> EngineProcess:
        hosted = self._host.models[model]
        engine = self._engines[hosted.engine]
        arguments = [engine.named, model, *hosted.options]
        if hosted.engine == "vllm":
            arguments = ["--number", str(number + 1), *arguments]
        name = f"{hosted.engine} with {model} on device {number + 1}"
        return await start_process(name, engine.module, arguments, self._failed)

    async def _leave(self, device: _HostDevice) -> None:
        """Drain the device's engine, and end it once its calls have ended."""
        if device.instance_id is not None:
            self._fleet.drain(device.instance_id)
            while True:
                if all(each.id != device.instance_id for each in self._fleet.views()):
                    break
                await asyncio.sleep(LOOK_S)
            device.instance_id = None
        if device.process is not None:
            await end_all([device.process])
            device.process = None

    async def _in_use(self, instance_id: str) -> None:
        """Wait until Kairos uses the engine. Raises SetupError: it does not."""
        until = time.monotonic() + START_S
        while time.monotonic() < until:
            view = next((each for each in self._fleet.views() if each.id == instance_id), None)
            if view is not None and view.state == "in_use":
                return
            await asyncio.sleep(LOOK_S / 5)
        raise SetupError(f"the engine {instance_id} serves, but cannot be used")

    def _failed(self, line: str) -> None:
        self._failure = self._failure or line

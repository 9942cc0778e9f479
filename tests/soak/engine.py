"""What is under load behind Kairos: engines as processes, each behind a proxy that can hurt."""

import os
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec

from tests.faults.faults import Cut
from tests.faults.poison import is_poison
from tests.faults.proxy import OnHurt, Proxy
from tests.support.ports import free_ports
from tests.support.processes import READY_S, Process
from tests.support.vllm import READY_S as VLLM_READY_S
from tests.support.vllm import vllm_process

ENGINE_SEED = 7  # the same of all stand-ins: it does not matter who answers

Starts = Callable[[Path, int, int], Process]  # the directory of its log, its number from 1, port


class EngineKind(msgspec.Struct, frozen=True, kw_only=True):
    """What all engines of a soak are, and what can be asked of them."""

    process: Starts
    ready_s: float  # until it has started, however slow this machine is
    model: str
    slots: int  # of one: the calls that it works on at once
    calls_per_s: float  # of which one is capable
    max_prompt_bytes: int
    is_scripted: bool  # its words are a function of the prompt, so known; it fails where asked to


def _standin(directory: Path, number: int, port: int) -> Process:
    options = {
        "--port": port,
        "--seed": ENGINE_SEED,
        "--max-num-seqs": STANDIN.slots,
        "--step-ms": 25,  # so that a call takes it somewhat less than a second
        "--max-model-len": 1 << 17,
        "--kv-tokens": 1 << 20,
        "--prefill-tokens-per-s": 1_000_000,
    }
    arguments = [each for option in options.items() for each in option]
    return Process(
        directory, f"engine-{number}", *arguments, module="kairos.simulate.standin.server"
    )


def _vllm(directory: Path, number: int, port: int) -> Process:
    return vllm_process(
        directory,
        number,
        port=port,
        model=VLLM.model,
        max_num_seqs=VLLM.slots,
        # Of those that are killed things stay there; with the soak's own directory they go.
        scratch=tempfile.mkdtemp(prefix="v", dir=directory),
    )


STANDIN = EngineKind(
    process=_standin,
    ready_s=READY_S,
    model="standin",
    slots=8,
    calls_per_s=9.0,
    max_prompt_bytes=240_000,
    is_scripted=True,
)
VLLM = EngineKind(
    process=_vllm,
    ready_s=VLLM_READY_S,
    model="tiny",
    slots=8,
    calls_per_s=9.0,
    # A conversation has at most one and a half of it, and 4,096 tokens are all that it may have.
    max_prompt_bytes=2_400,
    is_scripted=False,
)
KINDS = {"standin": STANDIN, "vllm": VLLM}


class Engine:
    """One that can be killed, frozen and hurt, and breaks the connection at poisonous calls."""

    def __init__(
        self, kind: EngineKind, directory: Path, number: int, *, seed: int, on_hurt: OnHurt
    ) -> None:
        """`number`: from 1. `seed`: of what is done to its calls."""
        engine_port, port = free_ports(2)
        self.process = kind.process(directory, number, engine_port)
        self.url = f"http://127.0.0.1:{engine_port}"  # past the proxy
        self.proxy = Proxy(self.url, port=port, seed=seed, on_hurt=on_hurt)
        self._ready_s = kind.ready_s
        self.is_frozen = False
        self._break_at_poison()

    def _break_at_poison(self) -> None:
        self.proxy.hurt(Cut(), times=None, when=is_poison)

    async def start(self) -> None:
        self.process.start()
        await self._until_ready()
        await self.proxy.listen()

    async def crash(self) -> None:
        """Its processes die: nobody listens."""
        self.process.kill()
        await self.proxy.refuse()

    def freeze(self) -> None:
        """Its processes do nothing, not even say that they are well."""
        os.killpg(self.process.pid, signal.SIGSTOP)
        self.is_frozen = True

    def thaw(self) -> None:
        os.killpg(self.process.pid, signal.SIGCONT)
        self.is_frozen = False

    async def restore(self) -> None:
        """Make it well, whatever was being done to it. Calls that it has stay as they are."""
        self.proxy.heal()
        self._break_at_poison()
        self.proxy.accept_delay_s = 0.0
        if self.is_frozen:
            self.thaw()
        if not self.process.runs:
            self.process.start()
        await self._until_ready()
        if not self.proxy.listens:
            await self.proxy.listen()

    async def stop(self) -> None:
        self.process.kill()
        await self.proxy.refuse()

    async def _until_ready(self) -> None:
        await self.process.until_it_says("ready", self._ready_s)

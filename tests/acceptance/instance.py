"""One real vLLM: a group of processes on a core of its own, killed and started again."""

import os
import signal
from pathlib import Path
from typing import Literal

from tests.support.ports import free_ports
from tests.support.vllm import READY_S, descendants, named, vllm_process

How = Literal["all of it", "its engine core"]


class Instance:
    def __init__(
        self, directory: Path, number: int, *, model: str, max_num_seqs: int, scratch: str
    ) -> None:
        """`number`: from 1; tells its core. `scratch`: a directory with a short name, for what
        it leaves behind when it is killed."""
        [port] = free_ports(1)
        self.process = vllm_process(
            directory, number, port=port, model=model, max_num_seqs=max_num_seqs, scratch=scratch
        )
        self.name = f"127.0.0.1:{port}"
        self.url = f"http://{self.name}"

    def start(self) -> None:
        self.process.start()

    async def until_ready(self) -> None:
        await self.process.until_it_says("ready", READY_S)

    def kill(self, how: How) -> None:
        """Of what is left when the engine core is dead, vLLM itself says so, and ends."""
        if how == "all of it":
            self.process.kill()
            return
        core = named("VLLM::EngineCore", self._processes())
        assert core is not None, f"{self.process.name} has no engine core"
        os.kill(core, signal.SIGKILL)

    def restart(self) -> None:
        self.process.kill()
        self.process.start()

    def cores(self) -> set[int]:
        """On which any of its processes may run."""
        return set().union(*(os.sched_getaffinity(pid) for pid in self._processes()))

    def _processes(self) -> set[int]:
        return {self.process.pid, *descendants(self.process.pid)}

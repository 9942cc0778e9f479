"""What runs on real vLLM, and the same in the simulator: a model on all engines, or models that
take turns on devices."""

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import NamedTuple

import msgspec

from experiments.e47_flows_real import DECLARED, DEVICE_SYSTEMS, ONE, POOL_SYSTEMS
from experiments.fidelity_engines import (
    DEVELOPMENT,
    Limits,
    Tell,
    calibrated,
    empty_caches,
    engines,
)
from experiments.flow_systems import AS_DECLARED, KAIROS, LANGGRAPH, OPWISE, run
from experiments.flow_workloads import FlowWorkload, map_reduce, parallel, trading
from experiments.flows_vllm_run import RULES, Ran, Rows, on_devices, on_engines
from experiments.model_devices import HostOptions, simulate_host
from experiments.switching import rows as documents
from experiments.switching import workflow
from kairos.core import PLACEMENTS, POLICIES, EngineProfile
from kairos.engines import load_profile
from kairos.workflows import Functions, Passes, Plan
from kairos.workflows.run.engine_host import HostedModel, HostFile
from kairos.workflows.run.tables import open_table
from kairos.workflows.start.hosted_pool import device_turns, host_plan

# 32,736 tokens each: of `parallel`, whose rows have some 11,000, six fit on both.
LIMITS = Limits(kv_blocks=1024, max_num_seqs=16, max_num_batched_tokens=2048, max_model_len=4096)
_PRIORITIES = ("--scheduling-policy", "priority")
# The flow's models, and which of ours they are.
_MODELS = {"small": "tiny", "large": "small"}
_PROFILE, _LOAD_S = "cpu-tiny", 20.0  # reckoned with by plans, and in simulations


class Outcome(NamedTuple):
    """Of so many rows, and how long the simulator says that they take."""

    rows: int
    ran: Ran
    simulated_s: float


class Pool(msgspec.Struct, frozen=True):
    """Engines that run, and what a calibration says of them."""

    urls: Sequence[str]
    engine: EngineProfile


@asynccontextmanager
async def small_pool(tell: Tell) -> AsyncIterator[Pool]:
    """Measured before the runs. Raises SetupError: an engine does not start."""
    async with _engines("small", tell) as urls:
        tell("calibrating")
        yield Pool(urls, await calibrated(urls, LIMITS, "--unstreamed"))


@asynccontextmanager
async def tiny_pool(tell: Tell) -> AsyncIterator[Pool]:
    """Up sooner. Raises SetupError: an engine does not start."""
    limits = {"max_num_seqs": LIMITS.max_num_seqs}
    async with _engines("tiny", tell) as urls:
        yield Pool(urls, LIMITS.of(msgspec.structs.replace(load_profile(_PROFILE), **limits)))


def _engines(model: str, tell: Tell) -> AbstractAsyncContextManager[list[str]]:
    os.environ |= DEVELOPMENT  # its children's: they can be told to forget
    return engines(LIMITS, tell, model=model, others=_PRIORITIES)


class PoolCase(msgspec.Struct, frozen=True):
    """One model on all engines. `alone`: rows of one call at a time."""

    name: str
    workload: FlowWorkload
    rows: int
    alone: int = 1
    systems: tuple[str, ...] = POOL_SYSTEMS

    async def run(self, system: str, repetition: int, pool: Pool) -> Outcome:
        """With empty caches. Raises SetupError: as `on_engines`."""
        await empty_caches(pool.urls)
        rows = self.workload.rows(self.alone if system == ONE else self.rows, repetition)
        plan = self.workload.flow.compile(Passes() if system in DECLARED else AS_DECLARED)
        ran = await on_engines(plan, rows, system, pool.urls, LIMITS)
        return Outcome(len(rows), ran, self._simulated_s(system, rows, pool))

    def _simulated_s(self, system: str, rows: Rows, pool: Pool) -> float:
        if system == ONE:
            engine = msgspec.structs.replace(pool.engine, max_num_seqs=1)
            return run(self.workload, LANGGRAPH, rows, engine=engine, instances=1).simulated_s
        simulated, instances = KAIROS if system in DECLARED else system, len(pool.urls)
        return run(
            self.workload, simulated, rows, engine=pool.engine, instances=instances
        ).simulated_s


class DevicesCase(msgspec.Struct, frozen=True):
    """Models of a workflow of `switching.py` on devices that have one at a time."""

    name: str
    rows: int
    devices: int = 2
    systems: tuple[str, ...] = DEVICE_SYSTEMS

    @property
    def plan(self) -> Plan:
        return workflow(self.name).compile(Passes(cached=False))

    @property
    def host(self) -> HostFile:
        limits = ("--max-num-seqs", str(LIMITS.max_num_seqs))
        return HostFile(
            devices=self.devices,
            models={
                name: HostedModel(
                    options=("--model", _MODELS[name], *limits, *_PRIORITIES),
                    profile=_PROFILE,
                    load_s=_LOAD_S,
                )
                for name in self.plan.models
                if name is not None
            },
        )

    async def run(self, system: str, repetition: int) -> Outcome:
        """Raises SetupError: as `on_devices`."""
        rows = documents(self.rows, repetition)
        ran = await on_devices(self.plan, rows, system, self.host)
        return Outcome(len(rows), ran, self._simulated_s(system, rows))

    def _simulated_s(self, system: str, rows: Rows) -> float:
        host = self.host
        works, placed = host_plan(self.plan, open_table(rows), host, RULES[system])
        options = HostOptions(
            turns=device_turns(placed),
            works=works,
            loads=host.loads,
            profiles={name: load_profile(each.profile) for name, each in host.models.items()},
            policy=POLICIES["kairos"],
            placement=PLACEMENTS["kairos"],
        )
        return simulate_host(self.plan, iter(rows), Functions(), options).simulated_s


CASES: tuple[PoolCase | DevicesCase, ...] = (
    PoolCase("map-reduce", map_reduce(), 12),
    PoolCase("parallel", parallel(4, 2), 12),
    PoolCase("trading", trading("trading", (20, 40), 16), 8),
    DevicesCase("W3", 24),
)
QUICK = (PoolCase("map-reduce", map_reduce(), 3, systems=(KAIROS, OPWISE, ONE)),)

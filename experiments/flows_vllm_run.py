"""A flow over rows, carried out by one system on real vLLM."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from experiments.e47_flows_real import ONE, TOPOLOGICAL
from experiments.fidelity_real import serving
from experiments.flow_systems import KAIROS, OPWISE, asking_operators, policy_and_placement
from kairos.declared_plan import PlannedWork
from kairos.errors import SetupError
from kairos.execution.facts import OperatorsOpened
from kairos.flow.functions import Functions
from kairos.live.llm.http_llm import HttpLLM
from kairos.live.runs.driver import RunDriver
from kairos.live.runs.host_file import HostFile
from kairos.live.runs.run_store import RunRecord, RunStore
from kairos.live.runs.service import FlowJob, FlowRun, RunPool
from kairos.live.runs.tables import open_table
from kairos.plan.pipeline import Plan
from kairos.plan.placement import place
from kairos.plan.placement_baselines import data_parallel
from kairos.tools.call_pool import call_pool, default_model
from kairos.tools.flow_run import new_record
from kairos.tools.hosted_pool import hosted_pool

RULES = {KAIROS: place, TOPOLOGICAL: data_parallel}
_LOOK_S = 0.01
_CALL_S = 1_800.0  # that a call may take, the queue included

Rows = Sequence[Mapping[str, object]]
PoolOf = Callable[[RunRecord], AbstractAsyncContextManager[RunPool]]


class Ran(msgspec.Struct, frozen=True, kw_only=True):
    s: float
    calls: int
    cached_share: float
    loads: int = 0


class UndeclaredLLM(HttpLLM):
    """As agents call it: nobody says beforehand what follows."""

    async def declare_plan(self, app: str, plan: PlannedWork) -> None:
        pass


async def on_engines(
    plan: Plan, rows: Rows, system: str, urls: Sequence[str], max_num_seqs: int
) -> Ran:
    """One model on all engines.

    Raises:
        SetupError: Kairos did not start, or some row did not come to its end.
    """
    if system == KAIROS:
        engines = tuple(f"{url},max_num_seqs={max_num_seqs}" for url in urls)
        return await _carried_out(plan, rows, _declared, engines=engines)
    used, seqs = (urls[:1], 1) if system == ONE else (urls, max_num_seqs)
    policy, placement = policy_and_placement(system)
    options = [f"--engine={url},max_num_seqs={seqs}" for url in used]
    options += [f"--policy={policy}", f"--placement={placement}"]
    pool = _operator_wise(plan, len(rows)) if system == OPWISE else _undeclared
    async with serving(options, len(used)) as (_, url):
        return await _carried_out(plan, rows, pool, url=url, concurrency=seqs * len(used))


async def on_devices(plan: Plan, rows: Rows, system: str, host: HostFile) -> Ran:
    """Models take turns on devices, from empty ones.

    Raises:
        SetupError: an engine did not start, or some row did not come to its end.
    """
    notes: list[str] = []

    def pool(record: RunRecord) -> AbstractAsyncContextManager[RunPool]:
        return hosted_pool(record, host, plan, open_table(rows), notes.append, rule=RULES[system])

    ran = await _carried_out(plan, rows, pool)
    return msgspec.structs.replace(ran, loads=sum(" serves after " in each for each in notes))


async def _carried_out(plan: Plan, rows: Rows, pool_of: PoolOf, **fields: Any) -> Ran:
    """Raises SetupError: some row did not come to its end."""
    with TemporaryDirectory() as directory:
        out = str(Path(directory) / "out.jsonl")
        store = RunStore(Path(directory) / "runs")
        record = new_record(store, plan.declaration, out=out, uses_cache=False, **fields)
        async with pool_of(record) as pool:
            if None in plan.models:
                pool.llm.use_model(await default_model(pool.llm, None, plan.models))
            kept = store.create(record)
            with kept.held():
                job = FlowJob(plan, Functions(), open_table(rows), None)
                record = await FlowRun(kept, record, lambda _: None).to_the_end(job, pool)
    counted = record.figures
    if counted.get("written") != len(rows):
        raise SetupError(f"{counted.get('written', 0)} of {len(rows)} rows came to their end")
    return Ran(
        s=record.took_s,
        calls=counted["calls"],
        cached_share=counted.get("cached_tokens", 0) / max(1, counted["prompt_tokens"]),
    )


def _declared(record: RunRecord) -> AbstractAsyncContextManager[RunPool]:
    return call_pool(record, {})


@asynccontextmanager
async def _undeclared(record: RunRecord) -> AsyncIterator[RunPool]:
    async with (
        call_pool(record, {}) as pool,
        UndeclaredLLM(f"{record.url}/v1", None, timeout_s=_CALL_S) as llm,
    ):
        yield msgspec.structs.replace(pool, llm=llm)


def _operator_wise(plan: Plan, rows: int) -> PoolOf:
    """As `flow_systems.OperatorWise`: an operator begins when all rows have the one before."""

    async def follow(driver: RunDriver) -> None:
        executor, left = driver.executor, asking_operators(plan)
        at = next(left)
        driver.tell(OperatorsOpened(frozenset((at,))))
        while True:
            await asyncio.sleep(_LOOK_S)
            if executor.figures.read < rows or executor.gate.wanted.get(at):
                continue
            if (following := next(left, None)) is not None:
                at = following
                driver.tell(OperatorsOpened(frozenset((at,))))

    @asynccontextmanager
    async def pool(record: RunRecord) -> AsyncIterator[RunPool]:
        async with _undeclared(record) as calls:
            yield msgspec.structs.replace(calls, follow=follow)

    return pool

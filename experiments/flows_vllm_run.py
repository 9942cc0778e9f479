"""A flow over rows, carried out by one system on real vLLM."""

import asyncio
import os
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp
import msgspec

from experiments.e47_flows_real import IN_ONE_PROCESS, ONE, TOPOLOGICAL
from experiments.fidelity_cpu import Meter, cores
from experiments.fidelity_engines import Limits
from experiments.fidelity_real import order_options, serving
from experiments.flow_systems import KAIROS, OPWISE, asking_operators, policy_and_placement
from kairos.cli import serve_engines
from kairos.core import PlannedWork, SetupError
from kairos.proxy import HttpLLM
from kairos.workflows import Functions, Plan, RunPool, RunRecord
from kairos.workflows.compile.placement import place_operators
from kairos.workflows.compile.placement_baselines import data_parallel
from kairos.workflows.execute.facts import OperatorsOpened
from kairos.workflows.run.driver import RunDriver
from kairos.workflows.run.engine_host import HostFile
from kairos.workflows.run.flow_run import FlowJob, FlowRun
from kairos.workflows.run.pool import default_model, open_pool
from kairos.workflows.run.run_store import RunStore
from kairos.workflows.run.tables import open_table
from kairos.workflows.start.hosted_pool import hosted_pool
from kairos.workflows.start.run_task import new_record

RULES = {KAIROS: place_operators, TOPOLOGICAL: data_parallel}
_ENDED = re.compile(r"^vllm:request_success_total\{[^}]*\} (\S+)$", re.MULTILINE)
_LOOK_S = 0.01
_CALL_S = 1_800.0  # that a call may take, the queue included

Rows = Sequence[Mapping[str, object]]
PoolOf = Callable[[RunRecord], AbstractAsyncContextManager[RunPool]]


class Ran(msgspec.Struct, frozen=True, kw_only=True):
    """`others`: cores that nothing which this process had started used meanwhile, on average;
    `busiest`: of the calls the share of the engine that had most, where engines count them."""

    s: float
    calls: int
    cached_share: float
    others: float
    loads: int = 0
    busiest: float | None = None


class UndeclaredLLM(HttpLLM):
    """As agents call it: nobody says beforehand what follows."""

    async def declare_plan(self, app: str, plan: PlannedWork) -> None:
        pass


async def on_engines(
    plan: Plan, rows: Rows, system: str, urls: Sequence[str], limits: Limits
) -> Ran:
    """One model on all engines.

    Raises:
        SetupError: Kairos did not start, or some row did not come to its end.
    """
    used, seqs = (urls[:1], 1) if system == ONE else (urls, limits.max_num_seqs)
    engines = tuple(f"{url},max_num_seqs={seqs}" for url in used)
    before = await _ended(urls)
    if system == IN_ONE_PROCESS:
        ran = await _carried_out(plan, rows, _declared, engines=engines)
    else:
        options = [f"--engine={engine}" for engine in engines]
        options += order_options(*policy_and_placement(system))
        pool = _pool_of(system, plan, len(rows), len(used) * limits.kv_tokens)
        async with serving(options, len(used)) as (_, url):
            concurrency = seqs * len(used)
            ran = await _carried_out(plan, rows, pool, url=url, concurrency=concurrency)
    had = [after - until for after, until in zip(await _ended(urls), before, strict=True)]
    return msgspec.structs.replace(ran, busiest=max(had) / sum(had) if any(had) else None)


def _pool_of(system: str, plan: Plan, rows: int, kv_tokens: int) -> PoolOf:
    """Before a Kairos in another process. `kv_tokens`: that its engines hold together."""
    if system == KAIROS:
        return partial(_declared, kv_tokens=kv_tokens)
    return _operator_wise(plan, rows) if system == OPWISE else _undeclared


async def _ended(urls: Sequence[str]) -> list[float]:
    """Calls, so far, by engine; 0 where it is no vLLM."""
    found = []
    async with aiohttp.ClientSession() as session:
        for url in urls:
            async with session.get(f"{url}/metrics") as response:
                found.append(sum(map(float, _ENDED.findall(await response.text()))))
    return found


async def on_devices(plan: Plan, rows: Rows, system: str, host: HostFile) -> Ran:
    """Models take turns on devices, from empty ones.

    Raises:
        SetupError: an engine did not start, or some row did not come to its end.
    """
    notes: list[str] = []

    def pool(record: RunRecord) -> AbstractAsyncContextManager[RunPool]:
        table = open_table(rows)
        return hosted_pool(
            record, host, plan, table, notes.append, serve_engines, rule=RULES[system]
        )

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
                meter, began_at = Meter(os.getpid()), time.monotonic()
                used = meter.read()
                record = await FlowRun(kept, record, lambda _: None).to_the_end(job, pool)
                used_by = cores(used, meter.read(), time.monotonic() - began_at)
    counted = record.figures
    if counted.get("written") != len(rows):
        raise SetupError(f"{counted.get('written', 0)} of {len(rows)} rows came to their end")
    return Ran(
        s=record.took_s,
        calls=counted["calls"],
        cached_share=counted.get("cached_tokens", 0) / max(1, counted["prompt_tokens"]),
        others=used_by.others,
    )


@asynccontextmanager
async def _declared(record: RunRecord, *, kv_tokens: int | None = None) -> AsyncIterator[RunPool]:
    """`kv_tokens`: that the engines of a Kairos elsewhere hold together, which it does not tell."""
    async with open_pool(record, {}, serve_engines) as pool:
        yield msgspec.structs.replace(pool, kv_tokens=kv_tokens or pool.kv_tokens)


@asynccontextmanager
async def _undeclared(record: RunRecord) -> AsyncIterator[RunPool]:
    async with (
        open_pool(record, {}, serve_engines) as pool,
        UndeclaredLLM(f"{record.url}/v1", None, timeout_s=_CALL_S) as llm,
    ):
        yield msgspec.structs.replace(pool, llm=llm)


def _operator_wise(plan: Plan, rows: int) -> PoolOf:
    """As `flow_systems.OperatorWise`: an operator begins when all rows have the one before."""

    async def follow(driver: RunDriver) -> None:
        executor, left = driver.executor, asking_operators(plan)
        at = next(left)
        driver.add_fact(OperatorsOpened(frozenset((at,))))
        while True:
            await asyncio.sleep(_LOOK_S)
            if executor.figures.read < rows or executor.gate.wanted.get(at):
                continue
            if (following := next(left, None)) is not None:
                at = following
                driver.add_fact(OperatorsOpened(frozenset((at,))))

    @asynccontextmanager
    async def pool(record: RunRecord) -> AsyncIterator[RunPool]:
        async with _undeclared(record) as calls:
            yield msgspec.structs.replace(calls, follow=follow)

    return pool

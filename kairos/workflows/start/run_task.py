"""Runs declared workflows over tables: everything is checked before anything is spent."""

import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from kairos.core import SetupError
from kairos.host import allow_many_connections
from kairos.workflows.compile.check import every_operator
from kairos.workflows.compile.costs.latency import TYPICAL_LATENCIES, Latencies
from kairos.workflows.compile.operators import Declaration, RegisteredCall
from kairos.workflows.compile.pipeline import Passes, Plan, compile_plan
from kairos.workflows.declare.functions import Functions
from kairos.workflows.execute.observation import Timeline
from kairos.workflows.ray.run import RayRun, check_on_ray
from kairos.workflows.retrieve.flow_processors import processor_service
from kairos.workflows.run.engine_host import read_host
from kairos.workflows.run.export import check_outputs
from kairos.workflows.run.flow_file import check_columns
from kairos.workflows.run.flow_run import FlowJob, FlowRun, Note
from kairos.workflows.run.pool import (
    OpenEngines,
    RunPool,
    chosen_model,
    default_model,
    no_engines,
    open_pool,
)
from kairos.workflows.run.processing import Processors, check_processors, with_models
from kairos.workflows.run.rows import InputTable
from kairos.workflows.run.run_store import RunDirectory, RunRecord, RunStore
from kairos.workflows.run.tables import check_format, open_table
from kairos.workflows.start.hosted_pool import hosted_pool
from kairos.workflows.start.run_found import check_results

DrivenRun = FlowRun | RayRun
Watch = Callable[[DrivenRun], None]
PERFORMERS = (
    "name who performs the calls: --engine http://HOST:PORT (repeat for each), --url of a Kairos "
    "that runs, or --host FILE with models whose engines Kairos starts"
)


class FlowTask(msgspec.Struct, frozen=True, kw_only=True):
    """A flow over a table, checked as far as possible without engines."""

    record: RunRecord
    declaration: Declaration
    functions: Functions
    table: InputTable
    source: object = None  # of the table, as `open_table` takes it
    latencies: Latencies = TYPICAL_LATENCIES  # of its engines, where they are known
    directory: RunDirectory | None = None  # of a run to resume; None: it is a new one
    log_dir: str | None = None  # for facts and decisions of a Kairos of its own

    @property
    def passes(self) -> Passes:
        return Passes(**self.record.passes)

    def plan(self) -> Plan:
        """Return the plan as declared, independent of the served models.

        Raises:
            InvalidFlow: As in `compile_plan`.
        """
        costs, batches = self.latencies, self.record.batches
        return compile_plan(self.declaration, self.passes, latencies=costs, batches=batches)


def new_record(store: RunStore, declaration: Declaration, **fields: Any) -> RunRecord:
    now = time.time_ns() // 1000
    return RunRecord(
        id=store.new_id(declaration.name),
        flow=declaration.name,
        created_at=now,
        changed_at=now,
        **fields,
    )


def check_task(
    record: RunRecord,
    declaration: Declaration,
    functions: Functions,
    inputs: object,
    directory: RunDirectory | None = None,
    log_dir: str | None = None,
) -> FlowTask:
    """Check everything that can be checked without an engine.

    Raises:
        SetupError: Something is wrong; the message says what is expected.
    """
    plan = compile_plan(declaration, Passes(**record.passes))
    functions.check(plan)
    if plan.models and not _names_performers(record):
        raise SetupError(PERFORMERS)
    if record.on is not None:
        check_on_ray(record, declaration)
    check_results(record)
    out = Path(record.out)
    check_format(out)
    check_outputs(out, record.written)
    table = open_table(inputs)
    check_columns(plan, table)
    return FlowTask(
        record=record,
        declaration=declaration,
        functions=functions,
        table=table,
        source=inputs,
        directory=directory,
        log_dir=log_dir,
    )


async def run_task(
    task: FlowTask,
    store: RunStore,
    open_engines: OpenEngines,
    on_note: Note,
    watch: Watch,
    *,
    timeline: Timeline | None = None,
) -> RunRecord:
    """Run a task to its end, or until it is stopped.

    `open_engines` opens a Kairos for its engines. `on_note` receives messages for the user. `watch`
    receives the run as soon as it begins. `timeline` receives begins and ends of commands.

    Raises:
        SetupError: It cannot run; nothing was spent, unless the message says so.
    """
    record, directory = task.record, task.directory
    if record.on is not None:
        directory = directory or store.create(record)
        with directory.held():
            on_ray = RayRun(directory, record, on_note)
            watch(on_ray)
            return await on_ray.to_the_end(
                task.declaration,
                task.functions,
                task.source,
                task.table,
                store.cache,
                task.latencies,
                open_engines,
            )
    allow_many_connections()  # with a Kairos of its own, three for each call
    async with run_processors(record) as asked, _pool(task, open_engines, on_note) as engines:
        pool = msgspec.structs.replace(engines, processors=asked)
        plan = task.plan()
        model = await _default_model(task, pool, plan)
        plan = compile_plan(
            with_models(task.functions.versioned(task.declaration), pool.processors),
            task.passes,
            revision=" ".join(filter(None, (model, record.revision))),
            latencies=task.latencies,
            batches=record.batches,
        )
        check_processors(plan, asked)
        pool.llm.use_model(model)
        uses_cache = record.uses_cache and task.passes.cached
        job = FlowJob(plan, task.functions, task.table, store.cache if uses_cache else None)
        now = job.digest.hex()
        if directory is not None and record.plan_digest not in ("", now):
            on_note(_changed(plan, record))
            figures = {k: v for k, v in record.figures.items() if k not in ("skipped", "defaulted")}
            record = msgspec.structs.replace(record, figures=figures, fallbacks={})
        record = msgspec.structs.replace(record, plan_digest=now)
        if directory is None:
            directory = store.create(record)
        with directory.held():
            run = FlowRun(directory, record, on_note, timeline)
            watch(run)
            return await run.to_the_end(job, pool)


def _changed(plan: Plan, record: RunRecord) -> str:
    """Return the message for a resumed run whose flow was edited."""
    effects = set()
    for each in every_operator(plan.declaration.operators):
        if isinstance(each.params, RegisteredCall) and each.purity == "effect":
            effects.add(each.params.function)
    functions = ", ".join(sorted(effects))
    again = f"; what happens by {functions} happens again for them" if effects else ""
    return (
        "the flow, its functions or models have changed since this run began: all rows, and so the "
        f"{record.figures.get('written', 0):,} that are done, are computed by what they are now; "
        f"equal calls are not made again{again}"
    )


@asynccontextmanager
async def run_processors(record: RunRecord) -> AsyncIterator[Processors | None]:
    """Yield the processors that a record names; None: it names none.

    Raises:
        SetupError: They cannot be used.
    """
    if record.retrieval is None:
        yield None
        return
    at_once = record.concurrency
    async with processor_service(record.retrieval, os.environ, at_once=at_once) as service:
        yield service.of()


def _pool(
    task: FlowTask, open_engines: OpenEngines, on_note: Note
) -> AbstractAsyncContextManager[RunPool]:
    if not _names_performers(task.record):
        return no_engines(task.record)
    if task.record.host is None:
        return open_pool(task.record, os.environ, open_engines, task.log_dir)
    plan, host = task.plan(), read_host(Path(task.record.host))
    return hosted_pool(task.record, host, plan, task.table, on_note, open_engines, task.log_dir)


def _names_performers(record: RunRecord) -> bool:
    """Return whether the record names engines for LLM calls.

    A flow without such calls needs none.
    """
    return bool(record.engines) or record.url is not None or record.host is not None


async def _default_model(task: FlowTask, pool: RunPool, plan: Plan) -> str:
    named = task.record.model
    if not _names_performers(task.record):
        return ""
    if task.record.host is None:
        return await default_model(pool.llm, named, plan.models)
    served = list(read_host(Path(task.record.host)).models)
    return chosen_model(served, named, plan.models)

"""Runs declared workflows over tables: everything is checked before anything is spent."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from kairos.cli.flows.call_pool import call_pool, chosen_model, default_model, no_engines
from kairos.cli.flows.hosted_pool import hosted_pool
from kairos.cli.flows.run_found import check_results, find_run
from kairos.cli.flows.spread.run import RayRun, check_on_ray, run_on_ray
from kairos.core import SetupError
from kairos.host import allow_many_connections
from kairos.workflows import (
    TYPICAL_LATENCIES,
    Declaration,
    Flow,
    FlowJob,
    FlowRun,
    Functions,
    InputTable,
    Latencies,
    Note,
    Passes,
    Plan,
    Processors,
    RegisteredCall,
    RunDirectory,
    RunPool,
    RunRecord,
    RunStore,
    Timeline,
    check_columns,
    check_format,
    check_outputs,
    check_processors,
    compile_plan,
    every_operator,
    open_table,
    processor_service,
    read_host,
    with_models,
)

Watch = Callable[[FlowRun | RayRun], None]
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

    @property
    def passes(self) -> Passes:
        return Passes(**self.record.passes)

    def plan(self) -> Plan:
        """Return the plan as declared, independent of the served models.

        Raises:
            InvalidFlow: As in `compile_plan`.
        """
        return compile_plan(
            self.declaration,
            self.passes,
            latencies=self.latencies,
            batches=self.record.batches,
        )


def runs_root(environ: Mapping[str, str]) -> Path:
    """Return the default directory of runs: $KAIROS_RUNS, else in the user's state directory."""
    if told := environ.get("KAIROS_RUNS"):
        return Path(told)
    state = environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "kairos"


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
    )


async def run_task(
    task: FlowTask,
    store: RunStore,
    on_note: Note,
    watch: Watch,
    *,
    directory: RunDirectory | None = None,
    log_dir: str | None = None,
    timeline: Timeline | None = None,
) -> RunRecord:
    """Run a task to its end, or until it is stopped.

    `on_note` receives messages for the user. `watch` receives the run as soon as it begins.
    `directory` is that of a run to resume; None: a new one. `timeline` receives begins and ends of
    commands.

    Raises:
        SetupError: It cannot run; nothing was spent, unless the message says so.
    """
    record = task.record
    if record.on is not None:
        return await run_on_ray(
            record,
            task.declaration,
            task.functions,
            task.source,
            task.table,
            store,
            on_note,
            watch,
            directory,
            task.latencies,
        )
    allow_many_connections()  # with a Kairos of its own, three for each call
    async with _processors(record) as asked, _pool(task, on_note, log_dir) as engines:
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
        job = FlowJob(
            plan,
            task.functions,
            task.table,
            store.cache if uses_cache else None,
        )
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
    calls = (each.params for each in every_operator(plan.declaration.operators))
    effects = sorted(
        {
            call.function
            for call in calls
            if isinstance(call, RegisteredCall) and call.purity == "effect"
        }
    )
    again = f"; what happens by {', '.join(effects)} happens again for them" if effects else ""
    return (
        "the flow, its functions or models have changed since this run began: all rows, and so the "
        f"{record.figures.get('written', 0):,} that are done, are computed by what they are now; "
        f"equal calls are not made again{again}"
    )


@asynccontextmanager
async def _processors(record: RunRecord) -> AsyncIterator[Processors | None]:
    """Yield the processors.

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
    task: FlowTask, on_note: Note, log_dir: str | None
) -> AbstractAsyncContextManager[RunPool]:
    if not _names_performers(task.record):
        return no_engines(task.record)
    if task.record.host is None:
        return call_pool(task.record, os.environ, log_dir)
    plan, host = task.plan(), read_host(Path(task.record.host))
    return hosted_pool(task.record, host, plan, task.table, on_note, log_dir)


def _names_performers(record: RunRecord) -> bool:
    """Return whether the record names engines for LLM calls.

    A flow without such calls needs none.
    """
    return bool(record.engines) or record.url is not None or record.host is not None


async def _default_model(task: FlowTask, pool: RunPool, plan: Plan) -> str:
    """Return the default model.

    Raises:
        SetupError: A model is not served, or the choice is ambiguous.
    """
    named = task.record.model
    if not _names_performers(task.record):
        return ""
    if task.record.host is None:
        return await default_model(pool.llm, named, plan.models)
    served = list(read_host(Path(task.record.host)).models)
    return chosen_model(served, named, plan.models)


def run_flow(
    flow: Flow,
    table: object,
    out: Path | str,
    *,
    engines: Sequence[str] = (),
    url: str | None = None,
    api_key_env: str | None = None,
    model: str | None = None,
    root: Path | None = None,
    resume: str | None = None,
    on_note: Note = lambda _: None,
    **fields: Any,
) -> RunRecord:
    """Run a flow that a program declares over a table that it holds, to its end.

    Args:
        flow: The flow.
        table: The path of a file, a list of dicts, or any object with Arrow's C stream (pandas,
            polars, pyarrow, datasets).
        out: The file to write; its suffix determines the format.
        engines: As for `kairos run`.
        url: As for `kairos run`.
        api_key_env: As for `kairos run`.
        model: As for `kairos run`.
        root: The directory of runs; None: the default of `kairos run`.
        resume: The id of a run of this flow over this table to resume; with `results`, also one
            of another host.
        on_note: Receives messages for the user.
        fields: Other fields of `RunRecord`, such as `revision`, `concurrency`, `results`.

    Raises:
        SetupError: It cannot run.
    """
    store = RunStore(root or runs_root(os.environ))
    record = new_record(
        store,
        flow.declaration,
        inputs=str(table) if isinstance(table, str | Path) else None,
        out=str(Path(out).absolute()),
        engines=tuple(engines),
        url=url,
        api_key_env=api_key_env,
        model=model,
        **fields,
    )
    directory = None
    if resume is not None:
        directory, before = find_run(store, resume, record.results)
        record = msgspec.structs.replace(
            record,
            id=before.id,
            results=before.results,
            created_at=before.created_at,
            plan_digest=before.plan_digest,
            batches=record.batches or before.batches,
            figures=before.figures,
            fallbacks=before.fallbacks,
            written=before.written,
        )
    task = check_task(record, flow.declaration, flow.functions, table)
    running = run_task(task, store, on_note, lambda _: None, directory=directory)
    return asyncio.run(running)

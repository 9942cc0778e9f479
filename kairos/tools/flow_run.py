"""Runs declared workflows over tables: everything is checked before anything is spent."""

import asyncio
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import msgspec

from kairos.flow import Flow, Functions
from kairos.live.runs.export import check_outputs
from kairos.live.runs.host_file import read_host
from kairos.live.runs.rows import InputTable
from kairos.live.runs.run_store import RunDirectory, RunRecord, RunStore
from kairos.live.runs.service import FlowJob, FlowRun, Note, RunPool
from kairos.live.runs.tables import check_format, open_table
from kairos.plan.operators import Declaration
from kairos.plan.pipeline import Passes, Plan, compile_plan
from kairos.tools.call_pool import call_pool, chosen_model, default_model
from kairos.tools.flow_file import check_columns
from kairos.tools.hosted_pool import hosted_pool

Watch = Callable[[FlowRun], None]


class FlowTask(msgspec.Struct, frozen=True, kw_only=True):
    """A flow over a table, which was checked as far as that goes without engines."""

    record: RunRecord
    declaration: Declaration
    functions: Functions
    table: InputTable

    @property
    def passes(self) -> Passes:
        return Passes(**self.record.passes)


def runs_root(environ: Mapping[str, str]) -> Path:
    """Where runs are kept, unless it is said: $KAIROS_RUNS, else in the user's state directory."""
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
    """All that can be known to be wrong before an engine is asked.

    Raises:
        SetupError: it says what is wrong, and what would be right.
    """
    plan = compile_plan(declaration, Passes(**record.passes))
    functions.check(plan)
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
    )


async def run_task(
    task: FlowTask,
    store: RunStore,
    on_note: Note,
    watch: Watch,
    *,
    directory: RunDirectory | None = None,
    log_dir: str | None = None,
) -> RunRecord:
    """Run it to its end, or until it is stopped.

    Args:
        on_note: is told in a line what somebody should know.
        watch: is given the run, as soon as it begins.
        directory: of the run that this goes on with; None: a new one.

    Raises:
        SetupError: it cannot run; nothing was spent, unless the message says so.
    """
    record = task.record
    async with _pool(task, on_note, log_dir) as pool:
        plan = compile_plan(task.declaration, task.passes)
        model = await _default_model(task, pool, plan)
        plan = compile_plan(
            task.declaration, task.passes, revision=" ".join(filter(None, (model, record.revision)))
        )
        pool.llm.use_model(model)
        if directory is None:
            directory = store.create(record)
        uses_cache = record.uses_cache and task.passes.cached
        job = FlowJob(plan, task.functions, task.table, store.cache if uses_cache else None)
        with directory.held():
            run = FlowRun(directory, record, on_note)
            watch(run)
            return await run.to_the_end(job, pool)


def _pool(
    task: FlowTask, on_note: Note, log_dir: str | None
) -> AbstractAsyncContextManager[RunPool]:
    if task.record.host is None:
        return call_pool(task.record, os.environ, log_dir)
    plan, host = compile_plan(task.declaration, task.passes), read_host(Path(task.record.host))
    return hosted_pool(task.record, host, plan, task.table, on_note, log_dir)


async def _default_model(task: FlowTask, pool: RunPool, plan: Plan) -> str:
    """Raises SetupError: a model is not served, or it is not clear which is meant."""
    named = task.record.model
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
        table: the path of a file, a list of dicts, or any object with Arrow's C stream (pandas,
            polars, pyarrow, datasets).
        out: the file to write; its suffix says in which format.
        engines, url, model, api_key_env: as `kairos run` takes them.
        root: where the run is kept; None: where `kairos run` keeps them.
        resume: the id of a run of this flow over this table, to go on with.
        fields: others of `RunRecord`, such as `revision`, `concurrency`, `max_calls`.

    Raises:
        SetupError: it cannot run.
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
        directory = store.find(resume)
        before = directory.read()
        record = msgspec.structs.replace(
            record,
            id=before.id,
            created_at=before.created_at,
            figures=before.figures,
            written=before.written,
        )
    task = check_task(record, flow.declaration, flow.functions, table)
    running = run_task(task, store, on_note, lambda _: None, directory=directory)
    return asyncio.run(running)

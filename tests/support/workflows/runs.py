"""Runs of declared workflows in the test's process, with engines served as by `kairos run`."""

from functools import partial
from pathlib import Path

import msgspec

from kairos.cli import serve_engines
from kairos.simulate import observed_flow
from kairos.workflows import FlowSample
from kairos.workflows.compile.check import every_operator
from kairos.workflows.compile.forecast import forecast_flow
from kairos.workflows.compile.operators import Embedding, Ingest, Rerank, Search
from kairos.workflows.compile.pipeline import compile_plan
from kairos.workflows.compile.planned_work import plan_work
from kairos.workflows.execute.executor import Executor
from kairos.workflows.execute.facts import CallAnswered, Stays
from kairos.workflows.ray import performers
from kairos.workflows.retrieve.flow_processors import processor_service
from kairos.workflows.run.engine_host import HostedEngine, read_host
from kairos.workflows.run.journal import RunJournal
from kairos.workflows.run.postgres_results import PostgresResults
from kairos.workflows.run.processing import ValuesLost
from kairos.workflows.run.run_shown import show_run
from kairos.workflows.run.run_store import RunDirectory, RunStore
from kairos.workflows.run.tables import open_table
from kairos.workflows.start import hosted_pool as hosted
from kairos.workflows.start import run_task as tasks
from kairos.workflows.start.flow_profiled import sampled_rows
from kairos.workflows.start.profile_file import read_profile
from kairos.workflows.start.run_task import check_task, new_record

__all__ = [
    "CallAnswered",
    "Embedding",
    "Executor",
    "HostedEngine",
    "Ingest",
    "PostgresResults",
    "Rerank",
    "RunDirectory",
    "RunJournal",
    "RunStore",
    "Search",
    "Stays",
    "ValuesLost",
    "check_task",
    "compile_plan",
    "every_operator",
    "forecast_flow",
    "hosted_pool",
    "new_record",
    "open_table",
    "performers",
    "plan_work",
    "processor_service",
    "read_host",
    "read_profile",
    "run_task",
    "sampled_rows",
    "serve_by",
    "show_run",
    "simulated_profile",
]


async def run_task(task, store, on_note, watch, *, directory=None, timeline=None):
    """Return the record of a run, at its end. `directory`: of the run to resume."""
    task = msgspec.structs.replace(task, directory=directory)
    return await tasks.run_task(task, store, serve_engines, on_note, watch, timeline=timeline)


def hosted_pool(record, host, plan, table, on_note, **more):
    return hosted.hosted_pool(record, host, plan, table, on_note, serve_engines, **more)


def simulated_profile(flow, plan, rows, pool):
    """Return what rows teach about a flow on a simulated pool."""
    sample = FlowSample(Path("flow.yaml"), flow.declaration, flow.functions, plan, rows)
    _, seen = observed_flow(plan, iter(rows), flow.functions, pool)
    return sample.learn(seen)


def serve_by(engines, monkeypatch):
    """Let runs with devices of their own start these engines."""
    monkeypatch.setattr(tasks, "hosted_pool", partial(hosted.hosted_pool, engines=engines))

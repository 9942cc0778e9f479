"""Drives a run by partitions on a Ray cluster, from the command that began it.

What rows come to is in the store of results. So groups are what the store has gathered when all
rows have ended, and the tables are written from it in the order of rows, as for any run.
"""

import asyncio
import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from kairos.core import KairosError, SetupError
from kairos.settings import is_postgres
from kairos.workflows.compile.check import every_operator
from kairos.workflows.compile.costs.latency import Latencies
from kairos.workflows.compile.operators import Declaration, Generation, Ingest, Search
from kairos.workflows.compile.pipeline import Passes, compile_plan
from kairos.workflows.compile.sharing import shared_columns
from kairos.workflows.declare.functions import Functions
from kairos.workflows.ray import performers
from kairos.workflows.ray.cluster import LOCAL, check_address, cluster
from kairos.workflows.ray.coordinator import Coordinator
from kairos.workflows.ray.messages import PartitionEnd, PartitionJob
from kairos.workflows.ray.partition import Partition, plan_of
from kairos.workflows.retrieve.flow_processors import processor_service
from kairos.workflows.run.driver import ENDED_ROWS, RunProgress, added_fallbacks, added_figures
from kairos.workflows.run.flow_run import (
    ENDINGS,
    RECORD_EVERY_S,
    FlowJob,
    Note,
    RecordedRun,
    open_results,
)
from kairos.workflows.run.pool import OpenEngines
from kairos.workflows.run.postgres_results import PostgresResults
from kairos.workflows.run.processing import check_processors, with_models
from kairos.workflows.run.rows import InputTable
from kairos.workflows.run.run_store import RunDirectory, RunRecord

_SAMPLE = 1_000  # rows by which it is chosen how rows are parted
_LOOK_S = 0.5


def check_on_ray(record: RunRecord, declaration: Declaration) -> None:
    """Check what a run on Ray cannot do, or needs. Raises SetupError: it says what to do."""
    assert record.on is not None
    check_address(record.on)
    if record.on != LOCAL and record.results is None:
        raise SetupError(
            f"--on {record.on} needs a database that all hosts reach: --results "
            "postgresql://[USER@]HOST[:PORT]/NAME"
        )
    if record.host is not None:
        raise SetupError("--host and --on exclude each other: leave one of them out")
    place = None if record.retrieval is None else record.retrieval.collections
    if place is None or is_postgres(place) or record.on == LOCAL:
        return
    for each in every_operator(declaration.operators):
        if isinstance(each.params, Ingest | Search) and each.params.collection is not None:
            raise SetupError(
                f"operator '{each.name}' is of kind {each.kind} with a collection in a directory, "
                f"which hosts cannot share: with --on {record.on}, name a database, --collections "
                "postgresql://[USER@]HOST[:PORT]/NAME"
            )


class RayRun(RecordedRun):
    def __init__(self, directory: RunDirectory, record: RunRecord, on_note: Note) -> None:
        super().__init__(directory, record, on_note)
        self._coordinator: Any = None
        self._figures: dict[str, int] = {}
        self._waits_for = ""
        self._rows: int | None = None
        self._has_heavy = False  # functions, which need the CPUs

    def stop(self) -> None:
        """Let what is in flight end, and then the run; it can be resumed."""
        self._is_stopping = True
        if self._coordinator is not None:
            self._coordinator.stop.remote()

    def progress(self) -> RunProgress:
        figures = self._figures
        before = figures.get("ended_before", 0)
        ended = before + sum(figures.get(name, 0) for name in ENDED_ROWS)
        elapsed_s = time.monotonic() - self._began_s
        return RunProgress(self._rows, ended, before, elapsed_s, figures, self._waits_for)

    async def to_the_end(
        self,
        declaration: Declaration,
        functions: Functions,
        source: object,
        table: InputTable,
        cache: Path,
        latencies: Latencies,
        open_engines: OpenEngines,
    ) -> RunRecord:
        """Drive it to its end, or until it is stopped; with its tables written, if it is done.

        Raises:
            SetupError: it cannot run; or what it was driven by is lost: it can be resumed.
        """
        record = self.record
        assert record.on is not None
        self._rows = table.expected_rows(0)
        with cluster(record.on, record.partitions) as (ray, partitions), ExitStack() as stack:
            _send_whole(ray, functions)
            keys = _keys(record)
            coordinator = (
                ray.remote(Coordinator)
                .options(name=f"kairos-{record.id}", num_cpus=0, max_concurrency=1000)
                .remote(record, keys, open_engines)
            )
            self._coordinator = coordinator
            try:
                asks = any(
                    isinstance(e.params, Generation) for e in every_operator(declaration.operators)
                )
                self._has_heavy = performers.check_cpus(ray, declaration)
                pool = await _of_ray(coordinator.open.remote(declaration, asks))
                named = await _named(record, functions.versioned(declaration))
                processors = performers.start_processors(
                    ray, record.id, named, record.retrieval, keys, record.concurrency
                )
                stack.callback(performers.stop, ray, processors.values())
                uses_cache = record.uses_cache and Passes(**record.passes).cached
                job = PartitionJob(
                    record=record,
                    declaration=named,
                    functions=functions,
                    table=source,
                    pool=pool,
                    partitions=partitions,
                    columns=None,
                    files=(self._directory.journal, cache if uses_cache else None),
                    latencies=latencies,
                    keys=keys,
                    processors=processors,
                    held_from=performers.HELD_FROM,
                )
                plan = plan_of(job)
                sample = await asyncio.to_thread(_sample, table)
                columns = shared_columns(plan.declaration, sample, partitions)
                job = msgspec.structs.replace(job, columns=columns)
                flow = FlowJob(plan, functions, table, None)
                self._begin(flow.digest.hex())
                return await self._driven(ray, job, flow)
            finally:
                with suppress(Exception):
                    await asyncio.wait_for(coordinator.close.remote(), 10)
                ray.kill(coordinator)

    def _begin(self, digest: str) -> None:
        if self.record.plan_digest not in ("", digest):
            self._on_note(
                "the flow, its functions or models have changed since this run began: all rows are "
                "computed by what they are now; equal calls are not made again"
            )
            self._before, self._fallbacks_before = {}, {}
        self._change(state="running", detail="", plan_digest=digest)

    async def _driven(self, ray: Any, job: PartitionJob, flow: FlowJob) -> RunRecord:
        plan = flow.plan
        opening = partial(open_results, job.record, *job.files, self._on_trouble)
        self._store = store = await asyncio.to_thread(opening)
        actor = ray.remote(Partition)
        # A task that is repeated begins with what the store has.
        cpus = 0 if self._has_heavy else 1
        options = {
            "num_cpus": cpus,
            "max_restarts": -1,
            "max_task_retries": -1,
            "max_concurrency": 8,
        }
        sent = ray.put(job)  # held here, for partitions that are made again
        actors = [
            actor.options(**options, name=f"kairos-{self.record.id}-{number}").remote(
                sent, number, self._coordinator
            )
            for number in range(job.partitions)
        ]
        following = asyncio.create_task(self._follow())
        began_s, before_s = time.monotonic(), self.record.took_s
        try:
            if self._is_stopping:
                self.stop()
            ends = await self._stage(actors, 0, 0)
            read = [sum(each.read for each in ends), 0]
            self._rows = read[0]
            if plan.group is not None and _reason(ends) == "done":
                groups = await self._stage(actors, 1, read[0])
                read[1] = sum(each.read for each in groups)
                ends = [*ends, *groups]
            reason = _reason(ends)
            if reason == "done":
                await self._write_tables(store, flow, read)
            await self._look()
            outcomes = [
                await asyncio.to_thread(store.outcomes, at, rows) for at, rows in enumerate(read)
            ]
            fallbacks = self._fallbacks_before
            for each in ends:
                fallbacks = added_fallbacks(fallbacks, each.fallbacks)
            self._change(
                state="done" if reason == "done" else "stopped",
                detail=ENDINGS[reason],
                written=self._written,
                took_s=before_s + time.monotonic() - began_s,
                waits_for="",
                fallbacks=fallbacks,
                figures={
                    "rows": read[0],
                    **{name: sum(e.get(name, 0) for e in outcomes) for name in ENDED_ROWS},
                    **added_figures(self._before, self._figures),
                },
            )
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
            performers.stop(ray, actors)
            self._store = None
            await asyncio.to_thread(store.close, give_up=True)
        return self.record

    async def _stage(self, actors: Sequence[Any], stage: int, rows: int) -> list[PartitionEnd]:
        running = [each.run.remote(stage, rows) for each in actors]
        return list(await asyncio.gather(*(_of_ray(each) for each in running)))

    async def _follow(self) -> None:
        kept_s = time.monotonic()
        while True:
            await asyncio.sleep(_LOOK_S)
            await self._look()
            if time.monotonic() - kept_s > RECORD_EVERY_S:
                kept_s = time.monotonic()
                now = {name: self._figures.get(name, 0) for name in ENDED_ROWS}
                now |= added_figures(self._before, self._figures)
                self._change(
                    figures={"rows": self._figures.get("rows_read", 0), **now},
                    waits_for=self._waits_for,
                )

    async def _look(self) -> None:
        self._figures, self._waits_for = await self._coordinator.progress.remote()


async def _named(record: RunRecord, declaration: Declaration) -> Declaration:
    """Return the flow whose operators name the models of the processors.

    Raises:
        SetupError: a processor is missing, cannot be used, or lacks a model.
    """
    plan = compile_plan(declaration, Passes(**record.passes))
    if record.retrieval is None:
        check_processors(plan, None)
        return declaration
    async with processor_service(record.retrieval, os.environ) as service:
        processors = service.of()
        check_processors(plan, processors)
        return with_models(declaration, processors)


def _sample(table: InputTable) -> list[Mapping[str, object]]:
    rows = (row.values for row in table.rows() if row.values is not None)
    return list(islice(rows, _SAMPLE))


def _send_whole(ray: Any, functions: Functions) -> None:
    """Let Ray send functions of the flow's own files as code: no other host has these modules."""
    for name in functions:
        module = sys.modules.get(functions[name].function.__module__)
        if module is not None and module.__name__.startswith("kairos_flow_"):
            ray.cloudpickle.register_pickle_by_value(module)


def _keys(record: RunRecord) -> dict[str, str]:
    """Return the variables of this process that hold keys which the run needs."""
    names = {record.api_key_env}
    if record.retrieval is not None:
        asked = (*record.retrieval.embedding_engines, *record.retrieval.ranking_engines)
        names |= {each.api_key_env for each in asked}
    return {name: os.environ[name] for name in names if name and name in os.environ}


async def _of_ray(reference: Any) -> Any:
    """Return what an actor gives.

    Raises:
        KairosError: the actor raised it; or SetupError, if anything else is wrong with it.
    """
    try:
        return await reference
    except asyncio.CancelledError:
        raise
    except Exception as error:
        cause = getattr(error, "cause", None)
        if isinstance(cause, KairosError):
            raise cause from None
        if isinstance(error, KairosError):
            raise SetupError(str(getattr(error, "args", [error])[0])) from error
        said = str(error).strip().split("\n")[-1]
        raise SetupError(
            f"the run's part on Ray is lost: {type(error).__name__}: {said}"
        ) from error


def _reason(ends: Sequence[PartitionEnd]) -> str:
    reasons = {each.reason for each in ends}
    return "budget" if "budget" in reasons else "stopped" if "stopped" in reasons else "done"


def forget_results(record: RunRecord) -> None:
    """Remove the results of a run from the database that has them.

    Raises:
        SetupError: it cannot be used.
    """
    if record.results is not None:
        store = PostgresResults(record.results, record.id, lambda _: None)
        store.forget()
        store.close(give_up=True)

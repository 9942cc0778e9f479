"""Run of a declared workflow, from its first row to its tables, or until it is stopped.

Declare in advance which calls the rows of a run will make.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from kairos.core import KairosError, SetupError
from kairos.proxy import HttpLLM
from kairos.workflows.compile.pipeline import Plan
from kairos.workflows.compile.planned_work import plan_work
from kairos.workflows.compile.signatures import of_structure
from kairos.workflows.declare import openai_batch
from kairos.workflows.declare.functions import Functions
from kairos.workflows.execute.commands import EndRun
from kairos.workflows.execute.executor import Executor
from kairos.workflows.execute.facts import CapacityTold
from kairos.workflows.execute.limits import FlowLimits
from kairos.workflows.execute.observation import FlowObservation, Timeline
from kairos.workflows.run.calls import RunCalls
from kairos.workflows.run.driver import RunDriver, RunProgress, RunSession
from kairos.workflows.run.export import Tables
from kairos.workflows.run.intake import TableIntake
from kairos.workflows.run.journal import RunJournal
from kairos.workflows.run.pool import RunPool
from kairos.workflows.run.postgres_results import PostgresResults
from kairos.workflows.run.result_cache import ResultCache
from kairos.workflows.run.result_store import Claims, ResultStore
from kairos.workflows.run.rows import InputTable
from kairos.workflows.run.run_store import RunDirectory, RunRecord

ENDINGS = {
    "done": "",
    "stopped": "",
    "budget": "its budget is used up (--max-calls, --max-tokens)",
}
_CAPACITY_EVERY_S = 1.0
RECORD_EVERY_S = 2.0
FUNCTIONS = 32  # run at once
_CACHE_SCOPE = "default"  # of results for later runs

Note = Callable[[str], None]
_T = TypeVar("_T")

logger = logging.getLogger(__name__)

_DECLARE_S = 5.0
_DECLARE_AGAIN_S = 60.0  # the process that decides may have restarted, and does not store plans


class FlowJob(msgspec.Struct, frozen=True):
    """Inputs of a run, all of them checked."""

    plan: Plan
    functions: Functions
    table: InputTable
    cache_path: Path | None  # None: results of other runs are not used

    @property
    def digest(self) -> bytes:
        """Return a digest of the flow and the revision; ended rows stay valid until it changes."""
        plan = f"{of_structure(self.plan.declaration)} {self.plan.revision}"
        return blake2b(plan.encode(), digest_size=16).digest()


def open_results(
    record: RunRecord,
    journal: Path,
    cache: Path | None,
    on_trouble: Callable[[str | None], None],
    *,
    partition: int | None = None,
    claims: Claims | None = None,
    deliver: Callable[..., object] = lambda call, *given: call(*given),
) -> PostgresResults | RunJournal:
    """Open the results of a run, for a partition or for all of it.

    `journal`, `cache`: files of this host, not used with a database; without a `cache` results of
    other runs are not used. The rest: see `PostgresResults`.

    Raises:
        SetupError: they cannot be used.
    """
    if record.results is not None:
        return PostgresResults(
            record.results,
            record.id,
            on_trouble,
            scope=None if cache is None else _CACHE_SCOPE,
            partition=partition,
            claims=claims,
            deliver=deliver,
        )
    known = None if cache is None else ResultCache(cache, _CACHE_SCOPE)
    try:
        return RunJournal(journal, on_trouble, cache=known, partition=partition, claims=claims)
    except BaseException:
        if known is not None:
            known.close()
        raise


class RecordedRun:
    """Session of a run, in a directory that no other process drives, and the run's record."""

    def __init__(self, directory: RunDirectory, record: RunRecord, on_note: Note) -> None:
        self._directory, self.record, self._on_note = directory, record, on_note
        self._began_s = time.monotonic()
        self._before, self._fallbacks_before = record.figures, record.fallbacks
        self._store: ResultStore | None = None  # while it is open
        self._is_stopping = False
        self._written = record.written

    def _change(self, **fields: object) -> None:
        now = time.time_ns() // 1000
        self.record = msgspec.structs.replace(self.record, changed_at=now, **fields)
        try:
            self._directory.write(self.record)
        except SetupError as error:
            self._on_note(f"the run's record cannot be written for now: {error}")
        if self._store is not None:
            self._store.keep_record(msgspec.json.encode(self.record))

    async def _write_tables(self, store: ResultStore, job: FlowJob, rows: list[int]) -> None:
        """Write the tables of a run whose rows have ended. `rows`: their number, by stage."""
        stage = 0 if job.plan.group is None else 1
        out, names = Path(self.record.out), line_names(job)
        tables = Tables(store, out, job.plan.outputs, stage, rows, names)
        record = self.record
        self._written = await tables.write(record.id, record.written, self._on_trouble)

    def _on_trouble(self, line: str | None) -> None:
        """Note that what is written waits; None: it goes on."""
        if self.record.results is not None:
            self._on_note("the database is back" if line is None else f"waiting: {line}")
        elif line is None:
            self._on_note("the disk has space again: continuing")
        else:
            self._on_note(f"waiting: {line}; free some space, and the run continues")


class FlowRun(RecordedRun):
    def __init__(
        self,
        directory: RunDirectory,
        record: RunRecord,
        on_note: Note,
        timeline: Timeline | None = None,
    ) -> None:
        super().__init__(directory, record, on_note)
        self._timeline = timeline
        self._session: RunSession | None = None
        self._pool: RunPool | None = None  # while it drives

    def stop(self) -> None:
        """Stop the run once its calls in flight have ended; it can be resumed."""
        self._is_stopping = True
        if self._pool is not None:
            self._pool.llm.patience.leave()
        if self._session is not None:
            self._session.driver.stop()

    @property
    def observation(self) -> FlowObservation:
        """Return the observed figures of this session's calls."""
        return FlowObservation() if self._session is None else self._session.observation

    def progress(self) -> RunProgress:
        if self._session is None:
            return RunProgress()
        progress = self._session.progress(time.monotonic() - self._began_s)
        return msgspec.structs.replace(progress, waits_for=self._waits_for())

    def _waits_for(self) -> str:
        return "" if self._pool is None else self._pool.waits_for(time.time())

    async def to_the_end(self, job: FlowJob, pool: RunPool) -> RunRecord:
        """Run to the end; return the record: `done`, with the tables written, or `stopped`.

        Raises:
            SetupError: the journal cannot be used, or a file exists in place of a table.
            InvalidFile: the table cannot be read to its end.
            OSError: a table cannot be written.
        """
        await declare_plan(pool.llm, self.record.flow, job.plan)
        async with self._opened(job) as store:
            limits = FlowLimits(
                capacity=pool.capacity(),
                at_once=self.record.concurrency,
                kv_tokens=pool.kv_tokens,
                instances=pool.instances,
                functions=FUNCTIONS,
                caches_prefixes=pool.caches_prefixes,
                max_calls=self.record.max_calls,
                max_tokens=self.record.max_tokens,
            )
            driver = RunDriver(
                Executor(job.plan, limits), store, pool.on_workflow_end, self._timeline
            )
            intake = TableIntake(job.table, store, job.digest, driver.add_fact)
            self._session = session = RunSession(driver, intake, store, job.table)
            if self._is_stopping:
                driver.stop()
            driving_since_s, before_s = time.monotonic(), self.record.took_s
            end = await self._drive(session, job, pool)
            took_s = before_s + time.monotonic() - driving_since_s
            await asyncio.to_thread(store.settle)
            if end.reason == "done":
                writing = self._write_tables(store, job, intake.read)
                await _beside(writing, [self._keep_record(session)])
            self._change(
                state="done" if end.reason == "done" else "stopped",
                detail=ENDINGS[end.reason],
                written=self._written,
                took_s=took_s,
                waits_for="",
                fallbacks=session.fallbacks(self._fallbacks_before),
                figures=await asyncio.to_thread(session.final_figures, self._before),
            )
        return self.record

    async def _drive(self, session: RunSession, job: FlowJob, pool: RunPool) -> EndRun:
        driver = session.driver
        calls = RunCalls(
            self.record.id,
            self.record.flow,
            pool.llm,
            job.functions,
            pool.processors,
            driver.add_fact,
            service_class=self.record.service_class,
            ahead_class=self.record.service_class,
            threads=self.record.concurrency or FUNCTIONS,
            at_once=self.record.concurrency,
        )
        beside = [
            _tell_capacity(driver, pool.capacity),
            self._keep_record(session),
            _repeat_declaration(pool.llm, self.record.flow, job.plan),
        ]
        if pool.follow is not None:
            beside.append(pool.follow(driver))
        self._pool = pool
        if self._is_stopping:
            pool.llm.patience.leave()
        try:
            return await _beside(driver.drive(session.intake, calls), beside)
        finally:
            self._pool = None
            await calls.abandon()

    @asynccontextmanager
    async def _opened(self, job: FlowJob) -> AsyncIterator[ResultStore]:
        loop = asyncio.get_running_loop()

        def on_trouble(line: str | None) -> None:  # in the writer's thread
            loop.call_soon_threadsafe(self._on_trouble, line)

        opening = partial(open_results, self.record, self._directory.journal, job.cache_path)
        deliver = loop.call_soon_threadsafe
        store = await asyncio.to_thread(opening, on_trouble, deliver=deliver)
        self._store = store
        try:
            self._change(state="running", detail="")
            yield store
        finally:
            self._store = None
            await asyncio.to_thread(store.close, give_up=True)

    async def _keep_record(self, session: RunSession) -> None:
        while True:
            await asyncio.sleep(RECORD_EVERY_S)
            self._change(
                figures=session.figures(self._before),
                fallbacks=session.fallbacks(self._fallbacks_before),
                waits_for=self._waits_for(),
            )


def line_names(job: FlowJob) -> Callable[[], Iterator[object]] | None:
    """Return a function that yields the names of a batch's lines; None for other flows."""
    if job.plan.declaration.name != openai_batch.NAME:
        return None
    return lambda: ((row.values or {}).get(openai_batch.LINE_NAME) for row in job.table.rows())


async def _beside(
    driving: Coroutine[Any, Any, _T], following: Sequence[Coroutine[None, None, None]]
) -> _T:
    """Run until `driving` ends; an error of any of `following` ends all of them."""
    run, beside = asyncio.create_task(driving), [asyncio.create_task(each) for each in following]
    tasks: list[asyncio.Task[Any]] = [run, *beside]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if not run.done():
            for each in beside:
                if each.done():
                    each.result()
        return await run
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _tell_capacity(driver: RunDriver, capacity: Callable[[], int]) -> None:
    told = capacity()
    while True:
        await asyncio.sleep(_CAPACITY_EVERY_S)
        if (now := capacity()) != told and now > 0:
            told = now
            driver.add_fact(CapacityTold(now))


async def declare_plan(llm: HttpLLM, app: str, plan: Plan) -> None:
    """Declare the plan to a Kairos. Another server refuses the request, which does no harm."""
    work = plan_work(plan)
    if work is None:
        return
    try:
        async with asyncio.timeout(_DECLARE_S):
            await llm.declare_plan(app, work)
    except (KairosError, TimeoutError) as error:
        logger.debug("the plan of %s was not declared: %s", app, error)


async def _repeat_declaration(llm: HttpLLM, app: str, plan: Plan) -> None:
    """Repeat the declaration every minute, until cancelled; a repetition changes nothing."""
    while True:
        await asyncio.sleep(_DECLARE_AGAIN_S)
        await declare_plan(llm, app, plan)

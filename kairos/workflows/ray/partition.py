"""A partition of a run: the executor of any run, over the rows that are its own, in an actor."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import msgspec

from kairos.host import allow_many_connections, collect_less_often, switch_threads_often
from kairos.proxy import HttpLLM, Listen
from kairos.settings import RetrievalSettings
from kairos.workflows.compile.pipeline import Passes, Plan, compile_plan
from kairos.workflows.compile.sharing import key_of, part_of
from kairos.workflows.execute.executor import Executor
from kairos.workflows.execute.facts import CapacityTold
from kairos.workflows.execute.limits import FlowLimits
from kairos.workflows.execute.windows import most_tokens
from kairos.workflows.ray.claims import PartitionClaims
from kairos.workflows.ray.messages import PartitionEnd, PartitionJob
from kairos.workflows.ray.performers import HeavyFunctions, RayProcessors
from kairos.workflows.retrieve.flow_processors import processor_service
from kairos.workflows.run.calls import RunCalls
from kairos.workflows.run.chat_answer import read_chat
from kairos.workflows.run.driver import RunDriver
from kairos.workflows.run.flow_run import FUNCTIONS, FlowJob, open_results
from kairos.workflows.run.intake import TableIntake
from kairos.workflows.run.journal import RunJournal
from kairos.workflows.run.pool import RunPool, pool_elsewhere
from kairos.workflows.run.postgres_results import PostgresResults
from kairos.workflows.run.result_store import NumberedGroup
from kairos.workflows.run.rows import InputRow, InputTable
from kairos.workflows.run.tables import MappingTable, open_table

_BEAT_S = 0.5
_KEY = "KAIROS_RUN_KEY"  # in place of the variable that holds it elsewhere
_ROWS_TOGETHER = 64  # that follow each other, where rows are parted by their number
_RETRY_S = 5.0
_MEMO_BYTES = FlowLimits(capacity=1).memo_bytes  # of all partitions, as much as one process has


class PartTable:
    """The rows of a table that are one partition's, with their numbers in the whole table.

    Each partition reads the whole table, and leaves out what is not its own: a row takes a
    thousandth of the work of its calls to read, and no row passes through another process.
    """

    def __init__(
        self, table: InputTable, part: int, parts: int, columns: tuple[str, ...] | None
    ) -> None:
        self.columns, self.repeated = table.columns, table.repeated
        self._table, self._part, self._parts, self._columns = table, part, parts, columns

    def rows(self) -> Iterator[InputRow]:
        for row in self._table.rows():
            if self._part_of(row) == self._part:
                yield row

    def may_have(self, column: str) -> bool:
        return self._table.may_have(column)

    def expected_rows(self, read: int) -> int | None:  # noqa: ARG002 - others need it
        return None

    def _part_of(self, row: InputRow) -> int:
        if self._columns is None or row.values is None:
            return row.number // _ROWS_TOGETHER % self._parts
        return part_of(key_of(row.values, self._columns), self._parts)


def plan_of(job: PartitionJob) -> Plan:
    """Return the plan of a run, as every process of it makes it."""
    record, passes = job.record, Passes(**job.record.passes)
    revision = " ".join(filter(None, (job.pool.model, record.revision)))
    return compile_plan(
        job.declaration,
        passes,
        revision=revision,
        latencies=job.latencies,
        values_stay=True,
        batches=record.batches,
    )


class SpendingLLM:
    """Makes calls that a run with a budget has reserved before.

    A call that it may not make waits until the run has stopped.
    """

    def __init__(self, llm: HttpLLM, coordinator: Any) -> None:
        self._llm, self._coordinator = llm, coordinator
        self.refused = 0

    async def complete(self, body: dict[str, Any], headers: Mapping[str, str]) -> dict[str, Any]:
        reserved = await self._reserve(body)
        answer = await self._llm.complete(body, headers)
        await self._give_back(reserved, answer)
        return answer

    async def complete_streamed(
        self, body: dict[str, Any], headers: Mapping[str, str], listen: Listen
    ) -> dict[str, Any]:
        reserved = await self._reserve(body)
        answer = await self._llm.complete_streamed(body, headers, listen)
        await self._give_back(reserved, answer)
        return answer

    async def _reserve(self, body: Mapping[str, Any]) -> int:
        size = sum(len(str(each.get("content", ""))) for each in body["messages"])
        tokens = most_tokens(size, body.get("max_tokens"))
        if not await self._coordinator.spend.remote(tokens):
            self.refused += 1
            await asyncio.Event().wait()
        return tokens

    async def _give_back(self, reserved: int, answer: dict[str, Any]) -> None:
        read = read_chat(answer)
        await self._coordinator.give_back.remote(
            reserved - read.prompt_tokens - read.completion_tokens
        )


class Partition:
    """Long-lived; an actor of Ray. When it is lost, Ray makes it again and repeats `run`."""

    def __init__(self, job: PartitionJob, number: int, coordinator: Any) -> None:
        self._job, self._number, self._coordinator = job, number, coordinator
        allow_many_connections()
        collect_less_often()
        switch_threads_often()

    async def process(self) -> int:
        """Return the id of the process that the partition is in."""
        return os.getpid()

    async def run(self, stage: int, rows: int) -> PartitionEnd:
        """Drive the rows of the partition to their end, or in stage 1 its groups.

        `rows`: of the whole table, for stage 1.
        """
        async with self._store() as (store, claims), self._pool() as (pool, processors):
            await self._coordinator.begin.remote(self._number, store.epoch)
            session = _Session(
                self._job, self._number, self._coordinator, store, pool, processors, stage, rows
            )
            following = asyncio.create_task(claims.follow())
            try:
                reason = await session.drive()
                await asyncio.to_thread(store.settle)
                await claims.settle()
            finally:
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)
            await self._coordinator.ended.remote(
                self._number, store.epoch, stage, session.figures(), session.ended_workflows()
            )
        return PartitionEnd(
            reason, session.intake.read[stage], dict(session.driver.executor.observation.fallbacks)
        )

    @asynccontextmanager
    async def _store(self) -> AsyncIterator[tuple[PostgresResults | RunJournal, PartitionClaims]]:
        claims = PartitionClaims(self._coordinator, self._number)
        deliver = asyncio.get_running_loop().call_soon_threadsafe
        opening = partial(
            open_results,
            self._job.record,
            *self._job.files,
            lambda _: None,  # the writer waits for the database
            partition=self._number,
            claims=claims,
            deliver=deliver,
        )
        store = await asyncio.to_thread(opening)
        claims.own(store.epoch)
        try:
            yield store, claims
        finally:
            await asyncio.to_thread(store.close, give_up=True)

    @asynccontextmanager
    async def _pool(self) -> AsyncIterator[tuple[RunPool, RayProcessors]]:
        record, told = self._job.record, self._job.pool
        environ = dict(self._job.keys)
        if told.key is not None:
            environ[_KEY] = told.key
        asked = msgspec.structs.replace(
            record, engines=(), api_key_env=None if told.key is None else _KEY
        )
        url = told.url or "http://none.invalid/v1"
        async with pool_elsewhere(asked, url, environ) as pool:
            pool.llm.use_model(told.model)
            async with processor_service(RetrievalSettings(), environ) as here:
                job = self._job
                yield pool, RayProcessors(job.processors, here.of(), job.held_from)


class _Session:
    """A stage of a partition, from its first row to its last."""

    def __init__(
        self,
        job: PartitionJob,
        number: int,
        coordinator: Any,
        store: PostgresResults | RunJournal,
        pool: RunPool,
        processors: RayProcessors,
        stage: int,
        rows: int,
    ) -> None:
        self._job, self._number, self._coordinator = job, number, coordinator
        self._epoch, self._stage, self._rows, self._store = store.epoch, stage, rows, store
        self._pool, self._processors = pool, processors
        plan = plan_of(job)
        table: InputTable = MappingTable(())  # groups are all that is left
        if stage == 0:
            table = PartTable(open_table(job.table), number, job.partitions, job.columns)
        digest = FlowJob(plan, job.functions, table, None).digest
        told, parts = job.pool, job.partitions
        self._at_once = _at_once(job.record.concurrency, number, parts)
        limits = FlowLimits(
            capacity=max(1, told.capacity // parts),
            at_once=self._at_once,
            kv_tokens=None if told.kv_tokens is None else max(1, told.kv_tokens // parts),
            instances=told.instances,
            functions=FUNCTIONS,
            caches_prefixes=told.caches_prefixes and number == 0,
            memo_bytes=_MEMO_BYTES // parts,
            max_calls=job.record.max_calls,
            max_tokens=job.record.max_tokens,
        )
        self._workflows: list[str] = []  # that have ended since the last beat
        self.driver = RunDriver(Executor(plan, limits), store, self._workflows.append)
        self.intake = TableIntake(table, store, digest, self.driver.add_fact, self._groups)

    async def drive(self) -> str:
        record = self._job.record
        is_bounded = record.max_calls is not None or record.max_tokens is not None
        spending = SpendingLLM(self._pool.llm, self._coordinator) if is_bounded else None
        calls = RunCalls(
            record.id,
            record.flow,
            spending or self._pool.llm,
            self._job.functions,
            self._processors,
            self.driver.add_fact,
            service_class=record.service_class,
            ahead_class=record.service_class if self._number == 0 else None,
            threads=self._at_once or FUNCTIONS,
            at_once=self._at_once,
            heavy=HeavyFunctions().call,
        )
        driving = asyncio.create_task(self.driver.drive(self.intake, calls))
        beating = asyncio.create_task(self._beat(spending, driving))
        try:
            await asyncio.wait((driving, beating), return_when=asyncio.FIRST_COMPLETED)
            if not driving.done():
                return beating.result()
            return (await driving).reason
        finally:
            for task in (driving, beating):
                task.cancel()
            await asyncio.gather(driving, beating, return_exceptions=True)
            await calls.abandon()

    def ended_workflows(self) -> list[str]:
        """Take the workflows that have ended since the last time."""
        ended = list(self._workflows)
        self._workflows.clear()
        return ended

    def figures(self) -> dict[str, int]:
        figures = msgspec.structs.asdict(self.driver.executor.figures)
        here = {"rows_read": self.intake.read[0], "ended_before": self.intake.ended_before}
        return {name: value for name, value in (figures | here).items() if value}

    async def _beat(self, spending: SpendingLLM | None, driving: "asyncio.Task[Any]") -> str:
        """Return why the partition ends, where its executor cannot end by itself."""
        told, is_stopping = 0, False
        while True:
            share = await self._coordinator.beat.remote(
                self._number, self._epoch, self._stage, self.figures(), self.ended_workflows()
            )
            if share.capacity != told:
                told = share.capacity
                self.driver.add_fact(CapacityTold(told))
            if share.stops and not is_stopping:
                is_stopping = True
                self._pool.llm.patience.leave()
                self.driver.stop()
            refused = 0 if spending is None else spending.refused
            if refused and refused >= self.driver.executor.figures.in_flight:
                return "budget"
            await asyncio.wait((driving,), timeout=_BEAT_S)

    def _groups(self) -> Iterator[NumberedGroup]:
        """Yield the groups of this partition; none while rows are under way elsewhere."""
        if self._stage == 0:
            return iter(())
        return self._store.groups(self._rows, part=self._number, parts=self._job.partitions)


def _at_once(concurrency: int | None, number: int, parts: int) -> int | None:
    """Return a partition's part of the calls that may be under way."""
    if concurrency is None:
        return None
    return max(1, concurrency // parts + (number < concurrency % parts))

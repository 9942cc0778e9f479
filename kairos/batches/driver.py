"""Driver of all batches of a directory: it sends lines, stores results, and ends batches.

Each line has one result, and is called until it has one: after a crash the next driver repeats the
calls without a result on disk. Lines refused for now are retried, and do not count as failures.
"""

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any

from kairos.batches.batch_input import LineError, check_input, read_line
from kairos.batches.batch_turns import BatchTurns, lines_ahead, rises
from kairos.batches.outputs import COMPLETED, FAILED, Written, result_of, tokens_of, write_outputs
from kairos.batches.records import OPEN, BatchRecord, FileRecord, State, new_name
from kairos.batches.store import KEEP_RESULT, KeptBatches
from kairos.batches.work import BatchWork, SentLine
from kairos.core import SECOND, STANDARD_CLASS, Header
from kairos.gateway import InnerAnswer, InnerCall, InnerGateway
from kairos.host import GroupCommit, connect_sqlite

logger = logging.getLogger(__name__)

TRIES = 4  # of a line that fails at engines
LOOK_S = 0.5  # between two checks for requests of clients
_TICK_S = 0.05
_AGAIN_S = 5.0  # until a failed write of an output is retried
_AT_ONCE = 32  # lines sent before other tasks have their turn
_IN_FLIGHT = 4_096
_BACKLOG = 1_000  # results not on disk yet, beyond which nothing is sent
_FOR_NOW = (429, 503)  # refusals that do not depend on the line
_DEFAULTS = {Header.APP: "batch", Header.AGENT: "line"}


class BatchDriver:
    def __init__(self, kept: KeptBatches, gateway: InnerGateway, now: Callable[[], int]) -> None:
        """Prepare to drive. `now`: µs since the Unix epoch. Raises sqlite3.Error."""
        self._kept, self._gateway, self._now = kept, gateway, now
        self._works: dict[str, BatchWork] = {}
        self._turns: dict[str, BatchTurns] = {}  # by tenant
        self._changed = asyncio.Event()
        self._beside: dict[str, asyncio.Task[None]] = {}  # by batch
        self._looked_s = 0.0
        self._disk_failed: OSError | sqlite3.Error | None = None  # in a background task
        self._finishing = BatchFinishing(kept, now)
        self._commit = GroupCommit(connect_sqlite(kept.database_path), _note_disk)

    @property
    def _now_s(self) -> float:
        return self._now() / SECOND

    def wake(self) -> None:
        """Check for requests of clients at once."""
        self._looked_s = 0.0
        self._changed.set()

    async def run(self) -> None:
        """Drive the batches until cancelled. Raises OSError, sqlite3.Error: the disk failed."""
        try:
            while True:
                self._changed.clear()
                self._check_disk()
                if self._now_s - self._looked_s >= LOOK_S:
                    self._looked_s = self._now_s
                    await self._follow_records()
                for work in list(self._works.values()):
                    await self._tend(work)
                if not self._send():
                    await self._wait()
                await asyncio.sleep(0)
        finally:
            for task in self._beside.values():
                task.cancel()
            for work in self._works.values():
                work.leave()
            await asyncio.to_thread(self._commit.close, give_up=True)

    def _check_disk(self) -> None:
        """Raise the error of a background task or of the writer of results, if there was one.

        The next driver reads from disk which lines have results.

        Raises:
            OSError, sqlite3.Error: the disk failed.
        """
        self._commit.check()
        if self._disk_failed is not None:
            raise self._disk_failed

    async def _tend(self, work: BatchWork) -> None:
        """Read more lines of a batch, or finish it."""
        is_dropped = work.record.id not in self._works  # during the processing of another batch
        if is_dropped or work.record.id in self._beside:
            return
        if work.is_low:
            try:
                work.add_lines(await asyncio.to_thread(work.read_some))
            except OSError as error:
                work.leave()
                self._drop_batch(work)
                await self._finishing.fail_batch(work.record, error)
                return
        if work.is_over:
            self._do_beside(work.record, self._finish_batch(work))

    def _do_beside(self, record: BatchRecord, work: Coroutine[None, None, None]) -> None:
        """Run long work of a batch in a background task."""
        task = self._beside[record.id] = asyncio.create_task(work)
        task.add_done_callback(partial(self._on_background_end, record))

    def _on_background_end(self, record: BatchRecord, task: asyncio.Task[None]) -> None:
        del self._beside[record.id]
        error = None if task.cancelled() else task.exception()
        if isinstance(error, OSError | sqlite3.Error):
            self._disk_failed = error
        elif error is not None:
            logger.error("batch %s met an error of Kairos's own", record.id, exc_info=error)
        self.wake()

    async def _wait(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_TICK_S if self._works else LOOK_S):
                await self._changed.wait()

    # What clients have asked for

    async def _follow_records(self) -> None:
        for record in await asyncio.to_thread(self._kept.batches.open):
            if record.id in self._beside:
                continue
            work = self._works.get(record.id)
            if record.state == "validating":
                self._do_beside(record, self._finishing.validate_batch(record))
            elif record.state == "in_progress" and work is None:
                await self._begin_batch(record)
            elif work is not None:
                self._direct(work, record)
            else:
                self._do_beside(record, self._finish_again(record))

    async def _begin_batch(self, record: BatchRecord) -> None:
        path = self._kept.files.path_of(record.input_file_id)
        done = await asyncio.to_thread(self._kept.batches.lines_done, record.id)
        try:
            work = BatchWork(record, path, done, self._now())
        except OSError as error:
            await self._finishing.fail_batch(record, error)
            return
        self._works[record.id] = work
        self._gateway.callers.add(record.id, record.caller)
        self._turns.setdefault(record.caller.tenant, BatchTurns()).add_batch(record.id)
        self._direct(work, record)

    def _direct(self, work: BatchWork, record: BatchRecord) -> None:
        """Cancel, expire or promote a batch; withdraw its queued calls, let calls in flight end."""
        if record.state == "cancelling":
            work.ends_as = "cancelled"
        elif self._now_s >= record.expires_s:
            work.ends_as = "expired"
        elif not work.has_risen and self._is_to_rise(work):
            work.has_risen, work.service_class = True, STANDARD_CLASS
            logger.info("batch %s is promoted to class standard: its window ends soon", record.id)
        else:
            return
        for sent in list(work.in_flight.values()):
            if self._gateway.is_waiting(sent.call):
                self._forget_line(work, sent)
                work.put_back(sent.line)

    def _is_to_rise(self, work: BatchWork) -> bool:
        record = work.record
        allowed = record.caller.service_classes
        if work.service_class == STANDARD_CLASS or (
            allowed is not None and STANDARD_CLASS not in allowed
        ):
            return False
        window = record.created_s * SECOND, record.expires_s * SECOND
        return rises(work.left, work.pace.line_us, self._now(), *window)

    async def _finish_batch(self, work: BatchWork) -> None:
        await asyncio.to_thread(self._commit.settle)
        if await self._finishing.finish_batch(work.record):
            self._drop_batch(work)
        else:
            await asyncio.sleep(_AGAIN_S)

    async def _finish_again(self, record: BatchRecord) -> None:
        """Finish a batch that another driver was about to finish, or that had not begun."""
        if not await self._finishing.finish_batch(record):
            await asyncio.sleep(_AGAIN_S)

    def _drop_batch(self, work: BatchWork) -> None:
        record = work.record
        work.close()
        del self._works[record.id]
        self._gateway.callers.remove(record.id)
        turns = self._turns[record.caller.tenant]
        turns.remove_batch(record.id)
        if not turns:
            del self._turns[record.caller.tenant]

    # Lines

    def _send(self) -> bool:
        """Send some lines. Return whether more may be sent at once."""
        now_s, sent, total = self._now_s, 0, sum(len(w.in_flight) for w in self._works.values())
        if self._commit.backlog > _BACKLOG:
            return False
        ahead = lines_ahead(len(self._turns))
        for tenant, turns in self._turns.items():
            works = {i: w for i, w in self._works.items() if w.record.caller.tenant == tenant}
            calls = (sent.call for work in works.values() for sent in work.in_flight.values())
            waiting = sum(map(self._gateway.is_waiting, calls))
            while waiting < ahead and total < _IN_FLIGHT and sent < _AT_ONCE:
                having = [name for name, work in works.items() if work.has_line(now_s)]
                name = turns.next(having)
                if name is None:
                    break
                call = self._begin_call(works[name], turns, now_s)
                waiting += self._gateway.is_waiting(call)
                total, sent = total + 1, sent + 1
        return sent >= _AT_ONCE

    def _begin_call(self, work: BatchWork, turns: BatchTurns, now_s: float) -> InnerCall:
        line, record = work.take_line(now_s), work.record
        told = read_line(line.data)
        of_key = {Header.APP} if record.caller.app is not None else set()
        named = {n: v for n, v in _DEFAULTS.items() if n not in of_key} | dict(record.headers)
        call = InnerCall(
            record.id,
            f"{record.id}/{line.place.number}",
            line.attempt,
            record.endpoint,
            work.service_class,
            [(name.lower().encode(), value.encode()) for name, value in named.items()],
            bytes(told.body),
            self._on_answer,
        )
        charged = turns.charge_line(record.id)
        work.in_flight[call.request_id] = SentLine(line, told.custom_id, call, charged)
        self._gateway.start_call(call)
        return call

    def _on_answer(self, call: InnerCall, answer: InnerAnswer) -> None:
        work = self._works[call.name]
        sent, record = work.in_flight[call.request_id], work.record
        line, status, now_s = sent.line, answer.status, self._now_s
        self._forget_line(work, sent, tokens_of(answer))
        self._changed.set()
        if status in _FOR_NOW:
            work.pause_after_refusal(now_s, answer.retry_after_s)
            work.retry_later(line, now_s)
            return
        failures = line.failures + 1
        if (status is None or status >= 500) and failures < TRIES:
            work.retry_later(line, now_s + 2.0**failures, has_failed=True)
            return
        number = line.place.number
        outcome = COMPLETED if status is not None and 200 <= status < 300 else FAILED
        value = result_of(record.id, number, sent.custom_id, answer)
        self._commit.add(KEEP_RESULT, record.id, number, outcome, value)
        work.count_result(self._now())

    def _forget_line(self, work: BatchWork, sent: SentLine, tokens: int | None = None) -> None:
        sent.call.leave()
        del work.in_flight[sent.call.request_id]
        self._turns[work.record.caller.tenant].correct_charge(work.record.id, sent.charged, tokens)


def _note_disk(problem: str | None) -> None:
    if problem is None:
        logger.info("the disk has space again: batches continue")
    else:
        logger.warning("batches wait: %s", problem)


class BatchFinishing:
    """Start and end of a batch: check its input, and write its output files."""

    def __init__(self, kept: KeptBatches, now: Callable[[], int]) -> None:
        """`now`: µs since the Unix epoch."""
        self._kept, self._now = kept, now
        self._problem = ""  # the last error, so that it is logged once

    @property
    def _now_s(self) -> int:
        return self._now() // SECOND

    async def validate_batch(self, record: BatchRecord) -> None:
        """Check a batch's input; the batch is in progress then, or has failed."""
        path = self._kept.files.path_of(record.input_file_id)
        try:
            checked = await asyncio.to_thread(
                check_input, path, record.endpoint, self._kept.limits.max_lines
            )
        except OSError as error:
            await self.fail_batch(record, error)
            return
        now_s = self._now_s
        fields: dict[str, Any] = {"state": "in_progress", "in_progress_s": now_s}
        if checked.errors:
            fields = {"state": "failed", "errors": checked.errors, "ended_s": now_s}
        else:
            fields |= {"total": checked.total, "model": checked.model}
        await self._change(record, ("validating",), fields)

    async def fail_batch(self, record: BatchRecord, error: OSError) -> None:
        """Let a batch fail, as its input cannot be read."""
        said = LineError("input_unreadable", f"the input cannot be read: {error.strerror}")
        fields = {"state": "failed", "errors": (said,), "ended_s": self._now_s}
        await self._change(record, OPEN, fields)

    async def finish_batch(self, record: BatchRecord) -> bool:
        """Write the output files of a batch whose lines are done, and end it.

        Without its input it fails. Returns whether it has ended; the disk may be full.
        """
        try:
            await asyncio.to_thread(self._write_and_end, record)
        except FileNotFoundError as error:  # no later try would find it
            await self.fail_batch(record, error)
        except OSError as error:
            if str(error) != self._problem:
                logger.warning("the output of %s cannot be written: %s", record.id, error.strerror)
            self._problem = str(error)
            return False
        self._problem = ""
        return True

    def _write_and_end(self, record: BatchRecord) -> None:
        """Write the files and end the batch. Raises OSError."""
        batches = self._kept.batches
        now_s = self._now_s
        batches.change_batch(record.id, ("in_progress",), state="finalizing", finalizing_s=now_s)
        record, counts = batches.find_batch(record.caller.tenant, record.id)
        if record.state not in ("finalizing", "cancelling"):
            return
        ends_as: State = "cancelled"
        if record.state == "finalizing":
            is_whole = counts.completed + counts.failed >= record.total
            ends_as = "completed" if is_whole else "expired"
        output, errors = new_name("file"), new_name("file")
        sizes = Written(0, 0)
        if record.total:
            paths = map(self._kept.files.path_of, (record.input_file_id, output, errors))
            sizes = write_outputs(record.id, partial(batches.results, record.id), ends_as, *paths)
        made = (output, "output", sizes.output), (errors, "errors", sizes.errors)
        files = [self._file(record, *each) for each in made if each[-1]]
        fields: dict[str, Any] = {
            "state": ends_as,
            "ended_s": self._now_s,
            "output_file_id": output if sizes.output else None,
            "error_file_id": errors if sizes.errors else None,
            "usage": sizes.usage,
        }
        batches.change_batch(record.id, ("finalizing", "cancelling"), files, **fields)

    def _file(self, record: BatchRecord, name: str, what: str, size: int) -> FileRecord:
        now_s = self._now_s
        return FileRecord(
            id=name,
            tenant=record.caller.tenant,
            purpose="batch_output",
            filename=f"{record.id}_{what}.jsonl",
            size_bytes=size,
            created_s=now_s,
            expires_s=self._kept.files.expires_s(now_s, record.output_kept_s),
        )

    async def _change(
        self, record: BatchRecord, was: tuple[State, ...], fields: dict[str, Any]
    ) -> None:
        await asyncio.to_thread(self._kept.batches.change_batch, record.id, was, **fields)

"""Start and end of a batch: check its input, and write its output files."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from kairos.batches.batch_input import LineError, check_input
from kairos.batches.kept import KeptBatches
from kairos.batches.outputs import Written, write_outputs
from kairos.batches.records import BatchRecord, FileRecord, State, new_name
from kairos.core import SECOND

logger = logging.getLogger(__name__)

_DAY_S = 86_400
_OPEN: tuple[State, ...] = ("validating", "in_progress", "finalizing", "cancelling")


class BatchFinishing:
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
        await asyncio.to_thread(self._change, record, ("validating",), fields)

    async def fail_batch(self, record: BatchRecord, error: OSError) -> None:
        """Let a batch fail, as its input cannot be read."""
        said = LineError("input_unreadable", f"the input cannot be read: {error.strerror}")
        fields = {"state": "failed", "errors": (said,), "ended_s": self._now_s}
        await asyncio.to_thread(self._change, record, _OPEN, fields)

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
        sizes = self._write(record, ends_as, output, errors) if record.total else Written(0, 0)
        files = [
            self._file(record, name, what, size)
            for name, what, size in (
                (output, "output", sizes.output),
                (errors, "errors", sizes.errors),
            )
            if size
        ]
        fields: dict[str, Any] = {
            "state": ends_as,
            "ended_s": self._now_s,
            "output_file_id": output if sizes.output else None,
            "error_file_id": errors if sizes.errors else None,
            "usage": sizes.usage,
        }
        batches.change_batch(record.id, ("finalizing", "cancelling"), files, **fields)

    def _write(self, record: BatchRecord, ends_as: State, output: str, errors: str) -> Written:
        files, batches = self._kept.files, self._kept.batches

        def results(after: int, most: int) -> list[tuple[int, str, bytes]]:
            return batches.results(record.id, after, most)

        paths = files.path_of(record.input_file_id), files.path_of(output), files.path_of(errors)
        return write_outputs(record.id, results, ends_as, *paths)

    def _file(self, record: BatchRecord, name: str, what: str, size: int) -> FileRecord:
        now_s, kept_s = self._now_s, self._kept.limits.keep_days * _DAY_S
        if record.output_kept_s is not None:
            kept_s = min(kept_s, record.output_kept_s)
        return FileRecord(
            id=name,
            tenant=record.caller.tenant,
            purpose="batch_output",
            filename=f"{record.id}_{what}.jsonl",
            size_bytes=size,
            created_s=now_s,
            expires_s=now_s + kept_s,
        )

    def _change(self, record: BatchRecord, was: tuple[State, ...], fields: dict[str, Any]) -> None:
        self._kept.batches.change_batch(record.id, was, **fields)

"""Files and batches in the format of OpenAI's API."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from kairos.batches.batch_input import LineError
from kairos.batches.records import BatchCounts, BatchRecord, BatchUsage, FileRecord, State


class FileObject(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    expires_at: int
    filename: str
    purpose: str
    status: Literal["processed"] = "processed"


class FileDeleted(msgspec.Struct, frozen=True):
    id: str
    object: Literal["file"] = "file"
    deleted: bool = True


class LineErrors(msgspec.Struct, frozen=True):
    data: Sequence[LineError]
    object: Literal["list"] = "list"


class RequestCounts(msgspec.Struct, frozen=True):
    total: int
    completed: int
    failed: int


class CachedTokens(msgspec.Struct, frozen=True):
    cached_tokens: int


class ReasoningTokens(msgspec.Struct, frozen=True):
    reasoning_tokens: int


class UsageObject(msgspec.Struct, frozen=True, kw_only=True):
    input_tokens: int
    input_tokens_details: CachedTokens
    output_tokens: int
    output_tokens_details: ReasoningTokens
    total_tokens: int


class BatchObject(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["batch"] = "batch"
    endpoint: str
    model: str | None
    errors: LineErrors | None
    input_file_id: str
    completion_window: str
    status: State
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: RequestCounts
    usage: UsageObject | None
    metadata: Mapping[str, str] | None


class ListPart(msgspec.Struct, frozen=True, kw_only=True):
    has_more: bool
    first_id: str | None
    last_id: str | None
    object: Literal["list"] = "list"


class FileList(ListPart, frozen=True):
    data: Sequence[FileObject]


class BatchList(ListPart, frozen=True):
    data: Sequence[BatchObject]


def file_view(record: FileRecord) -> FileObject:
    return FileObject(
        id=record.id,
        bytes=record.size_bytes,
        created_at=record.created_s,
        expires_at=record.expires_s,
        filename=record.filename,
        purpose=record.purpose,
    )


def batch_view(record: BatchRecord, counts: BatchCounts) -> BatchObject:
    ended: dict[str, int | None] = {record.state: record.ended_s}
    return BatchObject(
        id=record.id,
        endpoint=record.endpoint,
        model=record.model,
        errors=LineErrors(record.errors) if record.errors else None,
        input_file_id=record.input_file_id,
        completion_window=record.completion_window,
        status=record.state,
        output_file_id=record.output_file_id,
        error_file_id=record.error_file_id,
        created_at=record.created_s,
        in_progress_at=record.in_progress_s,
        expires_at=record.expires_s,
        finalizing_at=record.finalizing_s,
        cancelling_at=record.cancelling_s,
        completed_at=ended.get("completed"),
        failed_at=ended.get("failed"),
        expired_at=ended.get("expired"),
        cancelled_at=ended.get("cancelled"),
        request_counts=RequestCounts(record.total, counts.completed, counts.failed),
        usage=None if record.usage is None else _usage_view(record.usage),
        metadata=record.metadata,
    )


def _usage_view(usage: BatchUsage) -> UsageObject:
    return UsageObject(
        input_tokens=usage.input_tokens,
        input_tokens_details=CachedTokens(usage.cached_tokens),
        output_tokens=usage.output_tokens,
        output_tokens_details=ReasoningTokens(usage.reasoning_tokens),
        total_tokens=usage.input_tokens + usage.output_tokens,
    )


def file_list(found: Sequence[FileRecord], most: int) -> FileList:
    """Return a list of files. `found`: one more than is shown, if there are more."""
    data = [file_view(each) for each in found[:most]]
    return FileList(data, **_part_of(data, is_last=len(found) <= most))


def batch_list(found: Sequence[tuple[BatchRecord, BatchCounts]], most: int) -> BatchList:
    """Return a list of batches. `found`: one more than is shown, if there are more."""
    data = [batch_view(*each) for each in found[:most]]
    return BatchList(data, **_part_of(data, is_last=len(found) <= most))


def _part_of(data: Sequence[FileObject | BatchObject], *, is_last: bool) -> dict[str, Any]:
    ids: Sequence[str | None] = [each.id for each in data] or [None]
    return {"has_more": not is_last, "first_id": ids[0], "last_id": ids[-1]}

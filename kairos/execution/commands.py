"""What the executor of a flow asks for. Stages, nodes and rows: see `facts.py`."""

from collections.abc import Mapping
from typing import Literal

import msgspec


class ReadRows(msgspec.Struct, frozen=True, gc=False):
    """Up to `count` more rows of the table are wanted; InputEnded, if there are fewer."""

    count: int


class ReadGroups(msgspec.Struct, frozen=True, gc=False):
    """Up to `count` more groups are wanted, in order of their first rows; all rows of stage 0 have
    ended. GroupsEnded, if there are fewer."""

    count: int


class IssueCall(msgspec.Struct, frozen=True):
    """A chat completion is to be made: CallAnswered or CallBroke follows. `body` is the request,
    without `model` where none is named. `attempt` counts from 1; `delay_us`: to wait before it."""

    call: int
    stage: int
    node: str
    row: int
    attempt: int
    operator: str
    model: str | None
    body: Mapping[str, object]
    signature: str
    delay_us: int


class RunFunction(msgspec.Struct, frozen=True):
    """A registered function is to be called, with arguments that it may not change: CallAnswered
    or CallBroke follows. `idempotency_key`: within the run, for what has an effect."""

    call: int
    stage: int
    node: str
    row: int
    attempt: int
    operator: str
    function: str
    arguments: Mapping[str, object]
    signature: str
    idempotency_key: str | None
    delay_us: int


class FetchCached(msgspec.Struct, frozen=True, gc=False):
    """Does the cache have this result? CacheAnswered follows."""

    call: int
    signature: str


class KeepResult(msgspec.Struct, frozen=True, gc=False):
    """A result for the journal. `store`: for the cache, too."""

    stage: int
    node: str
    row: int
    signature: str
    value: object
    origin: Literal["called", "merged", "fetched"]
    store: bool


class WriteRow(msgspec.Struct, frozen=True):
    """A row of the table that comes out. One of these four ends each row, in any order."""

    stage: int
    row: int
    values: Mapping[str, object]


class FailRow(msgspec.Struct, frozen=True, gc=False):
    stage: int
    row: int
    node: str
    error: str


class DropRow(msgspec.Struct, frozen=True, gc=False):
    """It was filtered away: none of its outputs has a value."""

    stage: int
    row: int


class GatherRow(msgspec.Struct, frozen=True, gc=False):
    """A row of stage 0 belongs to a group."""

    row: int
    key: str
    value: object


class EndRun(msgspec.Struct, frozen=True, gc=False):
    """The last command. `stopped`, `budget`: rows are left, and the run can be resumed."""

    reason: Literal["done", "stopped", "budget"]


FlowCommand = (
    ReadRows
    | ReadGroups
    | IssueCall
    | RunFunction
    | FetchCached
    | KeepResult
    | WriteRow
    | FailRow
    | DropRow
    | GatherRow
    | EndRun
)

"""Stores of results: of a run, and of earlier runs whose results it may use.

There are two: SQLite files of one host (`journal.py`), and PostgreSQL shared by many hosts
(`postgres_results.py`). In both the first writer wins. Results of sampled operators and effects are
stored by run, row and node; results of pure ones by their content, the signature. A partition of a
run has an owner, whose epoch is checked in the transaction of each write: of two owners only the
later one can write.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol

import msgspec

from kairos.workflows.execute.facts import Known

NumberedGroup = tuple[int, str, list[Any] | None]
RowOutcome = Literal["written", "failed", "dropped", "gathered"]


class CachedValue(NamedTuple):
    """Result that was found; its value may be null."""

    value: Any


class FailedRow(msgspec.Struct, frozen=True):
    """Row of the table of errors."""

    row: int
    node: str | None
    error: str


class Resumed(msgspec.Struct, frozen=True):
    """Stored state of a row. `ended`: digest of its input if it ended and did not fail."""

    ended: bytes | None = None
    results: Mapping[str, Known] = {}


class Claims(Protocol):
    """Agreement between the partitions of a run on who makes a call without a stored result."""

    def ask(self, call: int, signature: str, found: "Found") -> None:
        """Call `found` with another partition's answer, or with None: make the call."""

    def record_answer(self, signature: str, encoded: bytes) -> None: ...

    def finish_call(self, call: int) -> None: ...


class NoClaims:
    """Claims of a single process, which makes all calls."""

    def ask(self, call: int, signature: str, found: "Found") -> None:  # noqa: ARG002
        found(None)

    def record_answer(self, signature: str, encoded: bytes) -> None:
        """Do nothing: no other process waits."""

    def finish_call(self, call: int) -> None:
        """Do nothing: no other process waits."""


Found = Callable[[CachedValue | None], None]


class ResultStore(Protocol):
    """Store of a run's results. Writes happen in groups, in a thread; read rows after `settle`."""

    @property
    def backlog(self) -> int:
        """Return the number of changes not yet stored."""

    @property
    def backlog_bytes(self) -> int:
        """Return the bytes of changes not yet stored."""

    def find(self, call: int, signature: str, found: Found) -> None:
        """Look for a result of a deterministic operator, of this run or of an earlier one.

        `found` is called once, in the loop's thread, now or later. With None, the caller computes
        the result and calls `store`; or `finish_call`, if the call has no result.
        """

    def store(self, signature: str, value: Any) -> None:
        """Store a result for others. The first value of a signature stays."""

    def finish_call(self, call: int) -> None:
        """Note that a call for which nothing was found has ended, with a value or without."""

    def keep_result(
        self,
        stage: int,
        row: int,
        node: str,
        signature: str,
        value: Any,
        *,
        shared: bool,
        until_end: bool = False,
    ) -> None:
        """Store a node's result.

        If `shared`, the value is stored once for all nodes with the signature. If `until_end`, it
        is deleted when the row ends, unless the row failed, since that is retried.
        """

    def end_row(
        self,
        stage: int,
        row: int,
        outcome: RowOutcome,
        digest: bytes,
        value: Any,
        *,
        node: str | None = None,
        key: str | None = None,
    ) -> None:
        """End a row.

        `value`: its outputs, or the error; `key`: the group that it is gathered into.
        """

    def keep_record(self, record: bytes) -> None:
        """Store the run's record, as JSON, for hosts that may resume it."""

    def is_empty(self) -> bool: ...

    def resumed(self, stage: int, rows: Sequence[int]) -> Mapping[int, Resumed]:
        """Return the stored state of these rows; blocks."""

    def written(self, stage: int, rows: int) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the outputs of the first `rows` rows, in their order."""

    def failed(self, stage: int, rows: int) -> Iterator[FailedRow]:
        """Yield the failures of the first `rows` rows, in their order."""

    def outcomes(self, stage: int, rows: int) -> dict[str, int]:
        """Return the number of the first `rows` rows by outcome."""

    def groups(self, rows: int, *, part: int = 0, parts: int = 1) -> Iterator[NumberedGroup]:
        """Yield the groups of the first `rows` rows of stage 0, or every `parts`-th from `part` on.

        A group has its number, its key and its items. Keys are in the order of their smallest row,
        items in the order of rows. None replaces the items of a group that exceeds the limit of a
        row. Of skipped groups only the keys are read.
        """

    def settle(self) -> None:
        """Wait until all changes are stored; blocks."""

    def close(self, *, give_up: bool = False) -> None:
        """Close the store.

        `give_up`: drop changes that cannot be stored; a resumed run repeats them.
        """

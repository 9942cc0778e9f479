"""The store of results: of a run, and of earlier runs that it may use.

Two stores do it: SQLite files of one host (`journal.py`), and a PostgreSQL that many hosts share
(`postgres_results.py`). In both the first writer counts. Sampled operators and effects are kept by
run, row and node; pure ones by their content, which is the signature. A partition of a run has an
owner, whose epoch is checked in the transaction of each write: of two owners the later one writes.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from kairos.workflows.run.journal_changes import RowOutcome


class KeptResult(msgspec.Struct, frozen=True):
    signature: str
    value: Any


class CachedValue(NamedTuple):
    """A result, which may be null."""

    value: Any


class FailedRow(msgspec.Struct, frozen=True):
    """A row of the table of errors."""

    row: int
    node: str | None
    error: str


class Resumed(msgspec.Struct, frozen=True):
    """Knowledge of a row. `ended`: the digest of its beginning, if it ended and did not fail."""

    ended: bytes | None = None
    results: Mapping[str, KeptResult] = {}


class Claims(Protocol):
    """Agreement of the partitions of a run on who makes a call that no store has an answer to."""

    def ask(self, call: int, signature: str, found: "Found") -> None:
        """Call `found` with the answer that another partition had, or with None: make the call."""

    def answered(self, signature: str, encoded: bytes) -> None: ...

    def ended(self, call: int) -> None: ...


class NoClaims:
    """One process makes all calls."""

    def ask(self, call: int, signature: str, found: "Found") -> None:  # noqa: ARG002
        found(None)

    def answered(self, signature: str, encoded: bytes) -> None:
        """Do nothing: nobody waits."""

    def ended(self, call: int) -> None:
        """Do nothing: nobody waits."""


Found = Callable[[CachedValue | None], None]


class ResultStore(Protocol):
    """Writes in groups, from a thread of its own. What is read of rows is read after `settle`."""

    @property
    def backlog(self) -> int:
        """Return how many changes are not kept for good yet."""

    @property
    def backlog_bytes(self) -> int:
        """Return what these hold."""

    def find(self, call: int, signature: str, found: Found) -> None:
        """Look for a result of a deterministic operator, of this run or of an earlier one.

        `found` is called once, in the loop's thread, now or later. With None, the caller computes
        it, and calls `store`; or `ended`, if nothing comes of the call.
        """

    def store(self, signature: str, value: Any) -> None:
        """Keep a result for others. The first value of a signature stays."""

    def ended(self, call: int) -> None:
        """Take notice of the end of a call for which nothing was found, with a value or without."""

    def keep(
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
        """Keep a node's result.

        If `shared`, all that have the signature have the value. If `until_end`, it is forgotten
        when the row has ended, unless that failed, and will be tried again.
        """

    def end(
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
        """End a row. `value`: what it gives, or the error; `key`: into which group."""

    def tell(self, record: bytes) -> None:
        """Pass on what is known of the run, as JSON, to others that may go on with it."""

    def is_empty(self) -> bool: ...

    def resumed(self, stage: int, rows: Sequence[int]) -> Mapping[int, Resumed]:
        """Return what is known of these rows; blocks."""

    def written(self, stage: int, rows: int) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the outputs of the first `rows` rows, in their order."""

    def failed(self, stage: int, rows: int) -> Iterator[FailedRow]:
        """Yield the failures of the first `rows` rows, in their order."""

    def outcomes(self, stage: int, rows: int) -> dict[str, int]:
        """Return how many of the first `rows` rows ended how."""

    def groups(
        self, rows: int, *, part: int = 0, parts: int = 1
    ) -> Iterator[tuple[str, list[Any] | None]]:
        """Yield the groups of the first `rows` rows of stage 0, or every `parts`-th from `part` on.

        Keys come in the order of their smallest row, items in that of rows. None is in place of a
        group that is larger than a row may be. Nothing of the other groups is read but their keys.
        """

    def settle(self) -> None:
        """Return once all is kept for good; blocks."""

    def close(self, *, give_up: bool = False) -> None:
        """`give_up`: drop what is not kept yet, if nothing takes it; it is done again later."""

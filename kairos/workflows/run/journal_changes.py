"""Changes of a run's journal, each with its SQL statement.

The same changes, applied in the same order, make the same journal.
"""

from typing import Annotated, Any, Literal

import msgspec

RowOutcome = Literal["written", "failed", "dropped", "gathered"]
Number = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]  # within SQLite's range
Statement = tuple[str, tuple[Any, ...]]  # SQL and its parameters

NO_VALUE = msgspec.Raw(b"")

_ANSWER = "INSERT OR IGNORE INTO answers VALUES (?, ?)"
_RESULT = """
    INSERT INTO results VALUES (?, ?, ?, ?, ?, ?)
    ON CONFLICT DO UPDATE SET signature = excluded.signature, value = excluded.value,
        until_end = excluded.until_end
    WHERE signature != excluded.signature
"""
_END = """
    INSERT INTO ends VALUES (?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT DO UPDATE SET outcome = excluded.outcome, digest = excluded.digest,
        node = excluded.node, key = excluded.key, value = excluded.value
    WHERE digest != excluded.digest OR outcome = 'failed'
"""
_FORGET = "DELETE FROM results WHERE stage = ? AND row = ? AND until_end"


class AnswerKept(msgspec.Struct, frozen=True, tag="answer"):
    """Value (JSON) of all nodes with a signature. The first one written stays."""

    signature: str
    value: msgspec.Raw

    @property
    def statement(self) -> Statement:
        return _ANSWER, (self.signature, bytes(self.value))


class NodeKept(msgspec.Struct, frozen=True, tag="result", omit_defaults=True):
    """Result of a node of a row. `value`: `NO_VALUE` if it is stored by its signature."""

    stage: Number
    row: Number
    node: str
    signature: str
    value: msgspec.Raw = NO_VALUE
    until_end: bool = False

    @property
    def statement(self) -> Statement:
        value = bytes(self.value) or None
        return _RESULT, (self.stage, self.row, self.node, self.signature, value, self.until_end)


class RowEnded(msgspec.Struct, frozen=True, tag="end", omit_defaults=True):
    stage: Number
    row: Number
    outcome: RowOutcome
    digest: bytes  # of its input
    value: msgspec.Raw
    node: str | None = None  # where it failed
    key: str | None = None  # group that it was gathered into

    @property
    def statement(self) -> Statement:
        ended = (self.stage, self.row, self.outcome, self.digest, self.node, self.key)
        return _END, (*ended, bytes(self.value))


class PassingForgotten(msgspec.Struct, frozen=True, tag="forget"):
    """Deletion of values that were stored until the row ended."""

    stage: Number
    row: Number

    @property
    def statement(self) -> Statement:
        return _FORGET, (self.stage, self.row)


JournalChange = AnswerKept | NodeKept | RowEnded | PassingForgotten

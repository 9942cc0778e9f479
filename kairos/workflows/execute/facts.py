"""What the executor of a flow is told. Values are JSON; rows count from 0.

Stage 0 goes over the rows of the table, stage 1 over the groups that they were gathered in, if the
flow has a `group`. A *node* is an operator, by its name, or in a body with its rounds and items:
`refine.2.better`. A result is of a stage, a node and a row.
"""

from collections.abc import Mapping

import msgspec


class Known(msgspec.Struct, frozen=True, gc=False):
    """A result of an earlier session of the run. It counts where it has the same signature."""

    signature: str
    value: object


class RowRead(msgspec.Struct, frozen=True):
    """A row of the table that did not end in an earlier session. `known`: its results, by node."""

    row: int
    values: Mapping[str, object]
    known: Mapping[str, Known] = {}
    size_bytes: int = 0  # about what it takes in memory


class RowUnreadable(msgspec.Struct, frozen=True):
    """A row, or a group, that cannot be used: it fails."""

    row: int
    error: str


class RowsAwaited(msgspec.Struct, frozen=True):
    """Rows that were asked for are not there yet, and may not be for a while."""


class InputEnded(msgspec.Struct, frozen=True):
    """There are no more rows in the table."""


class GroupRead(msgspec.Struct, frozen=True):
    """A group of the rows that were gathered: the values of its rows, in their order."""

    row: int
    key: str
    items: list[object]
    known: Mapping[str, Known] = {}
    size_bytes: int = 0


class GroupsEnded(msgspec.Struct, frozen=True):
    """There are no more groups."""


class Stays(msgspec.Struct, frozen=True, gc=False):
    """In place of a processor's value, which stays there: `HOST:PORT`, and what it takes."""

    place: str
    size_bytes: int


class CallAnswered(msgspec.Struct, frozen=True, gc=False):
    """A call has its result: an answer's text, or what a function or a processor gave, or that this
    `Stays`."""

    call: int
    value: object
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0  # of the prompt, found in the engine's prefix cache
    cut: str | None = None  # why the answer is not whole
    finish_reason: str | None = None
    took_us: int | None = None  # of a function, from when it was called; a share of a processor's


class ItemsFinished(msgspec.Struct, frozen=True, gc=False):
    """A call whose command asked for it has more of its list: these items are finished, the first
    of them at that position. From 0 on: its answer has begun, or has begun again. The whole answer
    follows, and may be another one."""

    call: int
    first: int
    items: list[object]


class CallBroke(msgspec.Struct, frozen=True, gc=False):
    """A call has no result. `retry`: another attempt may have one. `lost`: ids of values that it
    needs, and that are no longer where they stayed."""

    call: int
    error: str
    retry: bool
    lost: tuple[str, ...] = ()


class CacheAnswered(msgspec.Struct, frozen=True, gc=False):
    """What the cache has under the signature that was asked for."""

    call: int
    hit: bool
    value: object = None


class PrefixTouched(msgspec.Struct, frozen=True, gc=False):
    """The beginning of that number was used. `cached_tokens`: of it, found in the cache."""

    number: int
    cached_tokens: int


class EnginesIdle(msgspec.Struct, frozen=True, gc=False):
    """Engines have had nothing to do for the run for a while. The fact repeats while that lasts."""


class CapacityTold(msgspec.Struct, frozen=True, gc=False):
    """How many calls the engines can run at once, from now on."""

    calls: int


class OperatorsOpened(msgspec.Struct, frozen=True):
    """Calls of these operators alone are to be issued from now on, since engines have their models;
    None: of all. Those of others are held."""

    operators: frozenset[str] | None


class StopAsked(msgspec.Struct, frozen=True):
    """Nothing more is to be begun. What is in flight is still waited for."""


FlowFact = (
    RowRead
    | RowUnreadable
    | RowsAwaited
    | InputEnded
    | GroupRead
    | GroupsEnded
    | CallAnswered
    | ItemsFinished
    | CallBroke
    | CacheAnswered
    | PrefixTouched
    | EnginesIdle
    | CapacityTold
    | OperatorsOpened
    | StopAsked
)

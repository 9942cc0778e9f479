"""Facts for the executor of a flow. Values are JSON; rows count from 0.

Stage 0 is about the rows of the table, stage 1 about the groups that they were gathered into, if
the flow has a `group`. A *node* is an operator, by its name, or in a body with its rounds and
items: `refine.2.better`. A result belongs to a stage, a node and a row.
"""

from collections.abc import Mapping

import msgspec


class Known(msgspec.Struct, frozen=True, gc=False):
    """Result of an earlier session of the run. It is valid if its signature is the same."""

    signature: str
    value: object


class RowRead(msgspec.Struct, frozen=True):
    """Row of the table that did not end in an earlier session. `known`: its results, by node."""

    row: int
    values: Mapping[str, object]
    known: Mapping[str, Known] = {}
    size_bytes: int = 0  # approximate memory of the row


class RowUnreadable(msgspec.Struct, frozen=True):
    """Row, or group, that cannot be read: it fails."""

    row: int
    error: str


class RowsAwaited(msgspec.Struct, frozen=True):
    """Rows that were asked for are delayed."""


class InputEnded(msgspec.Struct, frozen=True):
    """End of the table."""


class GroupRead(msgspec.Struct, frozen=True):
    """Group of rows: the values of its rows, in their order."""

    row: int
    key: str
    items: list[object]
    known: Mapping[str, Known] = {}
    size_bytes: int = 0


class GroupsEnded(msgspec.Struct, frozen=True):
    """End of the groups."""


class Stays(msgspec.Struct, frozen=True, gc=False):
    """Stand-in for a value held by a processor: `HOST:PORT`, and its size."""

    place: str
    size_bytes: int


class CallAnswered(msgspec.Struct, frozen=True, gc=False):
    """Result of a call: an answer's text, or the value of a function or a processor.

    A processor that keeps the value answers with `Stays`.
    """

    call: int
    value: object
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0  # of the prompt, found in the engine's prefix cache
    cut: str | None = None  # why the answer is not whole
    finish_reason: str | None = None
    took_us: int | None = None  # of a function, its time; of a processor, its share


class ItemsFinished(msgspec.Struct, frozen=True, gc=False):
    """Finished items of a list that a call's answer is still writing.

    Sent only if the call's command asked for them.

    `first`: position of the first item; 0 when the answer has begun, or begins again. The whole
    answer follows, and may differ.
    """

    call: int
    first: int
    items: list[object]


class CallBroke(msgspec.Struct, frozen=True, gc=False):
    """Failure of a call.

    `retry`: another attempt may succeed. `lost`: ids of values that it needs, and that their
    processors no longer hold.
    """

    call: int
    error: str
    retry: bool
    lost: tuple[str, ...] = ()


class CacheAnswered(msgspec.Struct, frozen=True, gc=False):
    """Cached value for the signature that was looked up."""

    call: int
    hit: bool
    value: object = None


class PrefixTouched(msgspec.Struct, frozen=True, gc=False):
    """The prefix of that number was used. `cached_tokens`: the part found in the cache."""

    number: int
    cached_tokens: int


class EnginesIdle(msgspec.Struct, frozen=True, gc=False):
    """Engines have had nothing to do for the run for a while. Repeated while that lasts."""


class CapacityTold(msgspec.Struct, frozen=True, gc=False):
    """Number of calls that the engines can run at once from now on."""

    calls: int


class OperatorsOpened(msgspec.Struct, frozen=True):
    """Operators whose models engines have loaded; None: all.

    Only their calls are issued from now on; calls of others are held.
    """

    operators: frozenset[str] | None


class StopAsked(msgspec.Struct, frozen=True):
    """The run is to begin nothing more; calls in flight are awaited."""


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

"""Messages, in JSON, between a process that runs flows and a processor as a separate service."""

from collections.abc import Mapping, Sequence
from typing import Annotated

import msgspec

from kairos.core import InvalidRequest
from kairos.workflows.compile.operators import Embedding, Ingest, Processing, Rerank, Search
from kairos.workflows.execute.commands import RunProcessor

MOST_BYTES = 128 << 20  # of a message: texts and vectors of one operator
MOST_DROPPED = 1_000  # ids in one message
TASKS, ABOUT, HELD = "/process", "/about", "/held"
_MOST = 10_000  # passages found, or texts of a batch

ValueId = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]
RunName = Annotated[str, msgspec.Meta(pattern="^[A-Za-z0-9_-]{1,64}$")]


class ProcessorTask(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Task of a processor.

    `place`: name of this processor as a holder of values; `began_at`: tasks of earlier runs are
    first in the queue for engines; `drop`: ids of values that the run no longer needs.
    """

    run: RunName
    tenant: Annotated[str, msgspec.Meta(max_length=512)]
    place: Annotated[str, msgspec.Meta(max_length=255)]
    began_at: int
    command: RunProcessor
    drop: Annotated[tuple[ValueId, ...], msgspec.Meta(max_length=MOST_DROPPED)] = ()


class ProcessorReply(msgspec.Struct, frozen=True, omit_defaults=True):
    """Result of a task: `value`; the size of a held value (`held_bytes`); or `lost` values."""

    value: msgspec.Raw = msgspec.Raw(b"null")
    held_bytes: int | None = None
    lost: tuple[ValueId, ...] = ()


class AboutProcessor(msgspec.Struct, frozen=True):
    """Models and collections of a processor, as `Processors` in `run/processing.py`.

    `collections`: equal for processors that keep the same ones; None: it keeps none.
    """

    models: Mapping[str, Sequence[str]]
    collections: str | None = None


def params_of(command: RunProcessor) -> Processing:
    """Return the operator of a command, with the parameters that its execution needs.

    Raises:
        InvalidRequest: there is no such operator.
    """
    told = command.arguments
    match command.kind:
        case "embed":
            return Embedding(command.model, _count(told, "batch"))
        case "ingest":
            return Ingest(_collection(told))
        case "search":
            where = told.get("collection")
            named = isinstance(where, str) and not where.startswith("held:")
            return Search(_count(told, "top_k"), _collection(told) if named else None)
        case "rerank":
            return Rerank(_count(told, "top_k"), command.model, _count(told, "batch"))


def _count(told: Mapping[str, object], name: str) -> int:
    value = told.get(name)
    if type(value) is not int or not 1 <= value <= _MOST:
        raise InvalidRequest(f"`{name}` must be a number from 1 to {_MOST}")
    return value


def _collection(told: Mapping[str, object]) -> str | None:
    name = told.get("collection")
    if name is not None and not isinstance(name, str):
        raise InvalidRequest("`collection` must be a name")
    return name

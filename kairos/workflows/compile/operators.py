"""Operators of a declared workflow, over the rows of a table.

An operator has a name, the parameters of its kind, and arguments: names in its templates, each
bound to the value of another operator, to a list of such values, or to a constant. Values are JSON.
An operator may also be *absent* for a row: a filter that is false, an operator that failed with
`on_error: skip`, and every operator that needs an absent one. In a list absent values are left out.

Operators are evaluated on demand of the outputs, so of a branch only the chosen case is.

Loops and maps have a body: operators that are evaluated once a round, or once an item. Within it
`NAME.state` and `NAME.round`, `NAME.item` and `NAME.index` stand for the values that differ between
them.
"""

from collections.abc import Mapping
from typing import Literal

import msgspec

NAME = r"\A[A-Za-z][A-Za-z0-9_]{0,63}\Z"
# Names used in templates of a loop's or a map's body, and Jinja's own.
RESERVED = frozenset({"state", "round", "item", "index", "loop", "self", "super"})

MOST_OPERATORS = 1_000
MOST_ROUNDS, MOST_ITEMS = 100, 10_000  # also of passages, and vectors
DEEPEST_BODY = 4
# Batch sizes if none was measured or declared.
USUAL_BATCHES = {"embed": 16, "rerank": 32, "ingest": 64, "call": 16}
ENGINE_RETRIES = 2  # of calls of engines and collections, if a flow does not set it

Purity = Literal["pure", "sampled", "effect"]
OnError = Literal["fail", "skip", "default"]
OnCut = Literal["error", "keep", "retry"]
Parse = Literal["strict", "lenient"]
Role = Literal["system", "user", "assistant"]
Path = tuple[str | int, ...]  # keys and positions within a JSON value


class Reference(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Value of an operator, or a part of it."""

    operator: str
    path: Path = ()

    @property
    def label(self) -> str:
        return ".".join(map(str, (self.operator, *self.path)))


class References(msgspec.Struct, frozen=True, tag=True):
    """List of operators' values, without absent ones."""

    each: tuple[Reference, ...]


class Constant(msgspec.Struct, frozen=True, tag=True):
    value: object  # JSON


Argument = Reference | References | Constant
Arguments = Mapping[str, Argument]


class Input(msgspec.Struct, frozen=True, tag="input"):
    """Row of the table: an object of its columns.

    `columns`: columns that it must have, in addition to columns in templates.
    """

    columns: tuple[str, ...] = ()


class Data(msgspec.Struct, frozen=True, tag="data"):
    """Value that is the same for every row."""

    value: object


class Format(msgspec.Struct, frozen=True, tag="format"):
    """Text made by a template."""

    template: str


class MessageTemplate(msgspec.Struct, frozen=True):
    role: Role
    template: str


class Generation(msgspec.Struct, frozen=True, tag="llm", omit_defaults=True):
    """Chat completion. Its value is the answer's text, or with a `schema` the JSON in it."""

    messages: tuple[MessageTemplate, ...]
    model: str | None = None  # none: the run's model, or the only one served
    max_tokens: int | None = None
    temperature: float = 0.0  # 0: greedy, so equal calls have equal answers
    top_p: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    schema: Mapping[str, object] | None = None  # JSON Schema
    on_cut: OnCut = "error"  # for an answer that was cut, or has no text
    parse: Parse = "strict"  # of an answer with a schema


class RegisteredCall(msgspec.Struct, frozen=True, tag="call", omit_defaults=True):
    """Call of a Python function that was registered under a name.

    Its arguments are the operator's inputs. `version`: of the function; results of another version
    are recomputed. `is_batched`: the function takes the arguments of several calls at once, at most
    `batch`. `partial`: it returns a list of parts of a text, and may be called on a prefix of that
    text. `cpus`: it is heavy, and a run on Ray calls it as a task with this number of CPUs.
    """

    function: str
    purity: Purity = "effect"
    version: str = ""
    is_batched: bool = False
    batch: int | None = None
    partial: bool = False
    cpus: int | None = None


class Chunking(msgspec.Struct, frozen=True, tag="chunk"):
    """Text, or list of texts, cut into passages of `size` words.

    Each begins with the last `overlap` words of the passage before.
    """

    size: int = 120
    overlap: int = 20


class Embedding(msgspec.Struct, frozen=True, tag="embed", omit_defaults=True):
    """Vector of a text, or vectors of a list of texts (`workflows/compile/retrieval.py`)."""

    model: str | None = None  # none: the run's model for it
    batch: int | None = None  # texts at once; none: as measured

    is_batched = True


class Ingest(msgspec.Struct, frozen=True, tag="ingest", omit_defaults=True):
    """Passages with their vectors, for searches.

    They form a collection of this row only, or are added to the `collection` of that name, which
    outlives the run and has each passage once.
    """

    collection: str | None = None
    batch: int | None = None  # passages added to a named collection at once

    is_batched = True


class Search(msgspec.Struct, frozen=True, tag="search", omit_defaults=True):
    """Passages nearest to a vector, or to any of several.

    They come from the `collection` of that name, or from a collection of this row.
    """

    top_k: int = 5
    collection: str | None = None


class Rerank(msgspec.Struct, frozen=True, tag="rerank", omit_defaults=True):
    """Passages that answer a query best, out of a list."""

    top_k: int = 3
    model: str | None = None  # none: the run's model for it
    batch: int | None = None  # passages at once; none: as measured

    is_batched = True


# Work of processors: engines that embed or rank, and collections.
Processing = Embedding | Ingest | Search | Rerank
Batched = Embedding | Ingest | Rerank | RegisteredCall  # what takes several items at once


class Filter(msgspec.Struct, frozen=True, tag="filter"):
    """Value of `of` if the expression `where` is true, else absent. `of` is computed on demand."""

    where: str
    of: Argument


class Branch(msgspec.Struct, frozen=True, tag="branch"):
    """Case chosen by the expression `on`, as text; otherwise `otherwise`, if given."""

    on: str
    cases: Mapping[str, Argument]
    otherwise: Argument | None = None


class Loop(msgspec.Struct, frozen=True, tag="loop"):
    """Loop: the body is evaluated on its own result, at first on `start`.

    It ends when the expression `until` is true of the result, or after `max_rounds`.
    """

    start: Argument
    body: tuple["Operator", ...]
    result: Reference
    max_rounds: int
    until: str | None = None
    until_inputs: Arguments = {}  # seen from within the body


class MapOver(msgspec.Struct, frozen=True, tag="map"):
    """Results of the body for each item of a list that is known at run time, in its order."""

    over: Argument
    body: tuple["Operator", ...]
    result: Reference
    max_items: int = 1_000


class StagedMap(MapOver, frozen=True, tag="stages", kw_only=True):
    """Results of the body for each batch of a list; without a batch, for each item.

    A value that is not a list, or an empty list, is one batch. Never declared: the passes `stages`
    and `decoding` make it. `declared`: maps names made by a pass to the names of the replaced
    operators.
    """

    batch: int | None
    declared: Mapping[str, str] = {}


class Aggregate(msgspec.Struct, frozen=True, tag="aggregate"):
    """Single collection of the row, joined from parts in their order. Made by the pass `stages`."""


class Group(msgspec.Struct, frozen=True, tag="group"):
    """Rows with the same key: an object of `key` (text) and `items`, the rows' `value`s in order.

    It is the only barrier across rows; operators that need it are computed once a group.
    """

    by: str  # an expression
    value: Argument


# Kinds whose inputs are their arguments, rather than names in templates.
Argued = RegisteredCall | Chunking | Processing | Aggregate

# Operators that make calls, whose values come later.
Asking = Generation | RegisteredCall | Processing

Repeated = Loop | MapOver | StagedMap
Params = Input | Data | Format | Asking | Chunking | Filter | Branch | Repeated | Aggregate | Group


def kind_of(params: Params) -> str:
    return str(type(params).__struct_config__.tag)


def batch_size(params: Batched) -> int:
    """Return how many calls, texts or passages go together, at most."""
    return params.batch or USUAL_BATCHES[kind_of(params)]


class Operator(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Operator of a flow.

    `inputs` binds the names in its templates and expressions. It is computed after the operators
    `after`, even if these are absent.
    """

    name: str
    params: Params
    inputs: Arguments = {}
    after: tuple[str, ...] = ()
    on_error: OnError = "fail"
    default: object = None  # its value after a failure, with `on_error: default`
    retries: int = 0  # of a failed call

    @property
    def kind(self) -> str:
        return kind_of(self.params)

    @property
    def purity(self) -> Purity:
        """Return pure, sampled or effect.

        pure: equal inputs give equal values. sampled: computed separately for each row. effect:
        never merged, stored or computed ahead.
        """
        match self.params:
            case RegisteredCall(purity=purity):
                return purity
            case Generation(temperature=temperature):
                return "sampled" if temperature > 0 else "pure"
            case Ingest(collection=str()):
                return "effect"
            case Search(collection=str()):
                return "sampled"  # others put passages there, at any time
        return "pure"

    @property
    def body(self) -> "tuple[Operator, ...]":
        return self.params.body if isinstance(self.params, Loop | MapOver) else ()


class Output(msgspec.Struct, frozen=True):
    """Column of the output table."""

    column: str
    value: Argument


class Declaration(msgspec.Struct, frozen=True, omit_defaults=True):
    """Declared workflow, as a user wrote it.

    `settable`: parameters that a query may set in addition to the usual ones, as
    OPERATOR.PARAMETER: templates, and values of `data`.
    """

    name: str
    operators: tuple[Operator, ...]
    outputs: tuple[Output, ...]
    settable: tuple[str, ...] = ()

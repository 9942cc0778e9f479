"""What a declared workflow consists of: operators over the rows of a table.

An operator has a name, what its kind needs, and arguments: names in its templates, each bound to
what another operator gives, to a list of such, or to a constant. Values are JSON. An operator may
also give nothing for a row (it is *absent*): a filter that is false, one that failed with
`on_error: skip`, and every operator that needs one of these. In a list what is absent is left out.

Operators are evaluated on demand of the outputs, so of a branch only the chosen case is.

Loops and maps have a body: operators that are evaluated once a round, or once an item. Within it
`NAME.state` and `NAME.round`, `NAME.item` and `NAME.index` stand for what differs between them.
"""

from collections.abc import Mapping
from typing import Literal

import msgspec

NAME = r"\A[A-Za-z][A-Za-z0-9_]{0,63}\Z"
# Names that templates of a loop's or a map's body know, and Jinja's own.
RESERVED = frozenset({"state", "round", "item", "index", "loop", "self", "super"})

MOST_OPERATORS = 1_000
MOST_ROUNDS, MOST_ITEMS = 100, 10_000  # also passages, and vectors
DEEPEST_BODY = 4
# Items that go together where nothing was measured and the flow says nothing.
USUAL_BATCHES = {"embed": 16, "rerank": 32, "ingest": 64, "call": 16}
ENGINE_RETRIES = 2  # of calls of engines and collections, where a flow says nothing

Purity = Literal["pure", "sampled", "effect"]
OnError = Literal["fail", "skip", "default"]
OnCut = Literal["error", "keep", "retry"]
Parse = Literal["strict", "lenient"]
Role = Literal["system", "user", "assistant"]
Path = tuple[str | int, ...]  # keys and positions within a JSON value


class Reference(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """What an operator gives, or a part of it."""

    operator: str
    path: Path = ()


class References(msgspec.Struct, frozen=True, tag=True):
    """A list of what operators give; of those that are absent it has nothing."""

    each: tuple[Reference, ...]


class Constant(msgspec.Struct, frozen=True, tag=True):
    value: object  # JSON


Argument = Reference | References | Constant
Arguments = Mapping[str, Argument]


class Input(msgspec.Struct, frozen=True, tag="input"):
    """The row: an object of its columns. `columns`: those that it must have beside those that
    templates name."""

    columns: tuple[str, ...] = ()


class Data(msgspec.Struct, frozen=True, tag="data"):
    """The same value for every row."""

    value: object


class Format(msgspec.Struct, frozen=True, tag="format"):
    """A text made of others."""

    template: str


class MessageTemplate(msgspec.Struct, frozen=True):
    role: Role
    template: str


class Generation(msgspec.Struct, frozen=True, tag="llm", omit_defaults=True):
    """A chat completion. It gives the answer's text, or with a `schema` what that says as JSON."""

    messages: tuple[MessageTemplate, ...]
    model: str | None = None  # none: the one that the run names, or the only one served
    max_tokens: int | None = None
    temperature: float = 0.0  # 0: greedy, so equal calls have equal answers
    top_p: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    schema: Mapping[str, object] | None = None  # JSON Schema
    on_cut: OnCut = "error"  # of an answer that was cut, or has no text
    parse: Parse = "strict"  # of the answer, where it has a schema


class RegisteredCall(msgspec.Struct, frozen=True, tag="call", omit_defaults=True):
    """A Python function that whoever runs the flow has registered under a name. Its arguments are
    the operator's. `version`: of the function; another one means that results are computed anew.
    `is_batched`: the function takes the arguments of several calls at once, `batch` at most.
    `partial`: it gives a list of parts of a text, and may be called on a prefix of that text."""

    function: str
    purity: Purity = "effect"
    version: str = ""
    is_batched: bool = False
    batch: int | None = None
    partial: bool = False

    @property
    def items(self) -> int:
        """Return how many calls go together at most."""
        return self.batch or USUAL_BATCHES["call"]


class Chunking(msgspec.Struct, frozen=True, tag="chunk"):
    """A text, or a list of texts, cut into passages: of `size` words each, of which `overlap` are
    the last ones of the passage before."""

    size: int = 120
    overlap: int = 20


class Embedding(msgspec.Struct, frozen=True, tag="embed", omit_defaults=True):
    """The vector of a text, or those of a list of texts (`workflows/compile/retrieval.py`)."""

    model: str | None = None  # none: the one that the run has for it
    batch: int | None = None  # texts that are embedded at a time; none: what was measured

    is_batched = True

    @property
    def items(self) -> int:
        """Return how many texts are embedded at a time."""
        return self.batch or USUAL_BATCHES["embed"]


class Ingest(msgspec.Struct, frozen=True, tag="ingest", omit_defaults=True):
    """Passages with their vectors, to be searched: a collection of this row alone, or what is put
    into the `collection` of that name, which stays. The same passage is in that once."""

    collection: str | None = None
    batch: int | None = None  # passages that are put into one that stays at a time

    is_batched = True

    @property
    def items(self) -> int:
        """Return how many passages are put into a collection that stays at a time."""
        return self.batch or USUAL_BATCHES["ingest"]


class Search(msgspec.Struct, frozen=True, tag="search", omit_defaults=True):
    """The passages nearest to a vector, or to any of several: of the `collection` of that name, or
    of one of this row."""

    top_k: int = 5
    collection: str | None = None


class Rerank(msgspec.Struct, frozen=True, tag="rerank", omit_defaults=True):
    """Those of some passages that answer a query best."""

    top_k: int = 3
    model: str | None = None  # none: the one that the run has for it
    batch: int | None = None  # passages that are ranked at a time; none: what was measured

    is_batched = True

    @property
    def items(self) -> int:
        """Return how many passages are ranked at a time."""
        return self.batch or USUAL_BATCHES["rerank"]


# What a processor does: an engine for embeddings, one that ranks, a collection.
Processing = Embedding | Ingest | Search | Rerank
Batched = Embedding | Ingest | Rerank | RegisteredCall  # what takes several items at once


class Filter(msgspec.Struct, frozen=True, tag="filter"):
    """`of` where the expression `where` is true, else nothing. `of` is not computed before."""

    where: str
    of: Argument


class Branch(msgspec.Struct, frozen=True, tag="branch"):
    """The case that the expression `on` names, as text; else `otherwise`, if there is one."""

    on: str
    cases: Mapping[str, Argument]
    otherwise: Argument | None = None


class Loop(msgspec.Struct, frozen=True, tag="loop"):
    """The body is evaluated on its own result, at first on `start`, until the expression `until`
    is true of it, and `max_rounds` times at most."""

    start: Argument
    body: tuple["Operator", ...]
    result: Reference
    max_rounds: int
    until: str | None = None
    until_inputs: Arguments = {}  # seen from within the body


class MapOver(msgspec.Struct, frozen=True, tag="map"):
    """The body's results for each item of a list that is known at run time, in its order."""

    over: Argument
    body: tuple["Operator", ...]
    result: Reference
    max_items: int = 1_000


class StagedMap(MapOver, frozen=True, tag="stages", kw_only=True):
    """The body's results for each batch of a list; what is no list, or has nothing in it, is one
    batch. Without a batch, for each item of a list. Never declared: the passes `stages` and
    `decoding` make it. `declared`: by the names that a pass made, the names of the operators that
    these stand for."""

    batch: int | None
    declared: Mapping[str, str] = {}


class Aggregate(msgspec.Struct, frozen=True, tag="aggregate"):
    """One collection of the row, of its parts in their order. Made by the pass `stages`."""


class Group(msgspec.Struct, frozen=True, tag="group"):
    """Rows with the same key together: an object of `key` (text) and `items`, the `value`s of these
    rows in their order. It is the only barrier across rows; what follows from it is computed once
    a group."""

    by: str  # an expression
    value: Argument


# Kinds whose inputs are their arguments, rather than names in templates.
Argued = RegisteredCall | Chunking | Processing | Aggregate

# What is asked of others, and answered later.
Asking = Generation | RegisteredCall | Processing

Repeated = Loop | MapOver | StagedMap
Params = Input | Data | Format | Asking | Chunking | Filter | Branch | Repeated | Aggregate | Group


def kind_of(params: Params) -> str:
    return str(type(params).__struct_config__.tag)


class Operator(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`inputs` binds the names in its templates and expressions. It is computed after the
    operators `after`, whatever they give."""

    name: str
    params: Params
    inputs: Arguments = {}
    after: tuple[str, ...] = ()
    on_error: OnError = "fail"
    default: object = None  # its value where it failed, with `on_error: default`
    retries: int = 0  # how often a call that failed is made again

    @property
    def kind(self) -> str:
        return kind_of(self.params)

    @property
    def purity(self) -> Purity:
        """pure: equal inputs, equal values. sampled: computed for each row by itself. effect: never
        merged, kept or tried ahead."""
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
    """A column of the table that comes out."""

    column: str
    value: Argument


class Declaration(msgspec.Struct, frozen=True, omit_defaults=True):
    """A declared workflow, as a user wrote it.

    `settable`: what a query may set beyond the usual, as OPERATOR.PARAMETER: templates, and values
    of `data`.
    """

    name: str
    operators: tuple[Operator, ...]
    outputs: tuple[Output, ...]
    settable: tuple[str, ...] = ()

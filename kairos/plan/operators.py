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
MOST_ROUNDS, MOST_ITEMS = 100, 10_000
DEEPEST_BODY = 4

Purity = Literal["pure", "sampled", "effect"]
OnError = Literal["fail", "skip", "default"]
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


class RegisteredCall(msgspec.Struct, frozen=True, tag="call", omit_defaults=True):
    """A Python function that whoever runs the flow has registered under a name. Its arguments are
    the operator's. `version`: of the function; another one means that results are computed anew."""

    function: str
    purity: Purity = "effect"
    version: str = ""


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


class Group(msgspec.Struct, frozen=True, tag="group"):
    """Rows with the same key together: an object of `key` (text) and `items`, the `value`s of these
    rows in their order. It is the only barrier across rows; what follows from it is computed once
    a group."""

    by: str  # an expression
    value: Argument


Params = (
    Input | Data | Format | Generation | RegisteredCall | Filter | Branch | Loop | MapOver | Group
)


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
        return str(type(self.params).__struct_config__.tag)

    @property
    def purity(self) -> Purity:
        """pure: equal inputs, equal values. sampled: computed for each row by itself. effect: never
        merged, kept or tried ahead."""
        if isinstance(self.params, RegisteredCall):
            return self.params.purity
        if isinstance(self.params, Generation) and self.params.temperature > 0:
            return "sampled"
        return "pure"

    @property
    def body(self) -> "tuple[Operator, ...]":
        return self.params.body if isinstance(self.params, Loop | MapOver) else ()


class Output(msgspec.Struct, frozen=True):
    """A column of the table that comes out."""

    column: str
    value: Argument


class Declaration(msgspec.Struct, frozen=True):
    """A declared workflow, as a user wrote it."""

    name: str
    operators: tuple[Operator, ...]
    outputs: tuple[Output, ...]

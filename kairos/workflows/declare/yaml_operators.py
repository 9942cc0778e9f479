"""Operators from YAML: their entries by kind, and the meaning of names in their templates."""

from collections.abc import Iterable, Mapping

import msgspec

from kairos.workflows.compile.check_templates import names_used, unknown_name, uses_of
from kairos.workflows.compile.invalid import InvalidFlow
from kairos.workflows.compile.operators import (
    ENGINE_RETRIES,
    Argument,
    Branch,
    Chunking,
    Constant,
    Data,
    Embedding,
    Filter,
    Format,
    Generation,
    Group,
    Ingest,
    Input,
    Loop,
    MapOver,
    MessageTemplate,
    OnCut,
    OnError,
    Operator,
    Params,
    Parse,
    Purity,
    Reference,
    References,
    RegisteredCall,
    Rerank,
    Role,
    Search,
)
from kairos.workflows.compile.templates import expression

NOT_YET = ("sql",)


class OperatorEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Keys of operators of every kind.

    `inputs` binds names in templates: to OPERATOR or OPERATOR.FIELD, to a list of such, or to a
    constant as `{value: ...}`.
    """

    kind: str
    inputs: dict[str, object] = {}
    after: list[str] = []


class InputEntry(OperatorEntry, frozen=True, kw_only=True):
    columns: list[str] = []


class DataEntry(OperatorEntry, frozen=True, kw_only=True):
    value: object


class FormatEntry(OperatorEntry, frozen=True, kw_only=True):
    template: str


class Fallible(OperatorEntry, frozen=True, kw_only=True):
    on_error: OnError = "fail"
    default: object = None
    retries: int | None = None


class MessageEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    role: Role
    content: str


class LlmEntry(Fallible, frozen=True, kw_only=True):
    prompt: str | None = None
    system: str | None = None
    messages: list[MessageEntry] | None = None
    model: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: list[str] = []
    schema: dict[str, object] | None = None
    on_cut: OnCut | None = None
    parse: Parse = "strict"


class CallEntry(Fallible, frozen=True, kw_only=True):
    function: str
    purity: Purity = "effect"
    version: str = ""
    batched: bool = False
    batch: int | None = None
    partial: bool = False
    cpus: int | None = None


class ChunkEntry(OperatorEntry, frozen=True, kw_only=True):
    size: int = Chunking().size
    overlap: int = Chunking().overlap


class EmbedEntry(Fallible, frozen=True, kw_only=True):
    model: str | None = None
    batch: int | None = None


class IngestEntry(Fallible, frozen=True, kw_only=True):
    collection: str | None = None
    batch: int | None = None


class SearchEntry(Fallible, frozen=True, kw_only=True):
    top_k: int = Search().top_k
    collection: str | None = None


class RerankEntry(Fallible, frozen=True, kw_only=True):
    top_k: int = Rerank().top_k
    model: str | None = None
    batch: int | None = None


class FilterEntry(OperatorEntry, frozen=True, kw_only=True):
    of: str
    where: str


class BranchEntry(OperatorEntry, frozen=True, kw_only=True):
    on: str
    cases: dict[str, object]
    otherwise: object = msgspec.UNSET


class LoopEntry(OperatorEntry, frozen=True, kw_only=True):
    start: object
    body: dict[str, object]
    result: str
    max_rounds: int
    until: str | None = None


class MapEntry(OperatorEntry, frozen=True, kw_only=True):
    over: str
    body: dict[str, object]
    result: str
    max_items: int = 1_000


class GroupEntry(OperatorEntry, frozen=True, kw_only=True):
    by: str
    value: str


# Parameters that have the same fields as their entries; arguments of retrieval are its `inputs`.
_SAME: Mapping[type[OperatorEntry], type[Params]] = {
    DataEntry: Data,
    FormatEntry: Format,
    ChunkEntry: Chunking,
    EmbedEntry: Embedding,
    IngestEntry: Ingest,
    SearchEntry: Search,
    RerankEntry: Rerank,
}


class Defaults(msgspec.Struct, frozen=True):
    """Defaults of LLM calls; `retries` also of calls of processors."""

    model: str | None = None
    max_tokens: int | None = None
    temperature: float = 0.0
    retries: int = ENGINE_RETRIES
    on_cut: OnCut = "error"


class FlowEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Top level of a file."""

    flow: str
    operators: dict[str, object]
    outputs: dict[str, object]
    defaults: dict[str, object] = {}
    settable: list[str] = []


KINDS: dict[str, type[OperatorEntry]] = {
    "input": InputEntry,
    "data": DataEntry,
    "format": FormatEntry,
    "llm": LlmEntry,
    "call": CallEntry,
    "chunk": ChunkEntry,
    "embed": EmbedEntry,
    "ingest": IngestEntry,
    "search": SearchEntry,
    "rerank": RerankEntry,
    "filter": FilterEntry,
    "branch": BranchEntry,
    "loop": LoopEntry,
    "map": MapEntry,
    "group": GroupEntry,
}


Scope = Mapping[str, str]  # by name, the operator that is meant; in bodies `state` or `item`, too


def scope_within(name: str, entry: OperatorEntry, body: Iterable[str], around: Scope) -> Scope:
    inner = ("item", "index") if isinstance(entry, MapEntry) else ("state", "round")
    meanings = {each: f"{name}.{each}" for each in inner}
    return {**around, **meanings, **{each: each for each in body}}


def argument_of(operator: str | None, key: str, value: object, scope: Scope) -> Argument:
    """Return the argument for OPERATOR or OPERATOR.FIELD, a list of such, or `{value: constant}`.

    Raises:
        InvalidFlow: it is something else.
    """
    if isinstance(value, str) and value:
        name, *path = value.split(".")
        keys = tuple(int(each) if each.isdecimal() else each for each in path)
        return Reference(scope.get(name, name), keys)
    if isinstance(value, list) and value:
        each = [argument_of(operator, key, one, scope) for one in value]
        if all(isinstance(one, Reference) for one in each):
            return References(tuple(one for one in each if isinstance(one, Reference)))
    if isinstance(value, dict) and set(value) == {"value"}:
        return Constant(value["value"])
    raise InvalidFlow(
        operator,
        "it is OPERATOR or OPERATOR.FIELD, a list of such, or a constant as {value: ...}",
        key=key,
    )


def bind(name: str, entry: OperatorEntry, params: Params, scope: Scope) -> dict[str, Argument]:
    """Return the bindings of `inputs`, and of other names in templates to operators."""
    given = {
        key: argument_of(name, f"inputs.{key}", value, scope) for key, value in entry.inputs.items()
    }
    operator = Operator(name=name, params=params)
    names = names_used(operator) - set(given)
    for each in sorted(names):
        if each not in scope:
            raise unknown_name(operator, each, {*given, *scope})
    return given | _by_name(names, scope)


def _by_name(names: Iterable[str], scope: Scope) -> dict[str, Argument]:
    return {name: Reference(scope[name]) for name in sorted(names) if name in scope}


def params_of(
    name: str,
    entry: OperatorEntry,
    body: tuple[Operator, ...],
    scopes: tuple[Scope, Scope],
    defaults: Defaults,
) -> Params:
    """Return the parameters of an operator.

    `body`: operators of a loop or a map. `scopes`: meanings of names around it, and in it.
    """
    scope, inner = scopes
    match entry:
        case LlmEntry():
            return _generation(name, entry, defaults)
        case CallEntry():
            return RegisteredCall(
                entry.function,
                entry.purity,
                entry.version,
                entry.batched,
                entry.batch,
                entry.partial,
                entry.cpus,
            )
        case BranchEntry():
            return _branch(name, entry, scope)
        case LoopEntry():
            return _loop(name, entry, body, scope, inner)
        case MapEntry():
            over = argument_of(name, "over", entry.over, scope)
            return MapOver(over, body, _result(name, entry.result, inner), entry.max_items)
        case InputEntry():
            return Input(tuple(entry.columns))
        case FilterEntry():
            return Filter(entry.where, argument_of(name, "of", entry.of, scope))
        case GroupEntry():
            return Group(entry.by, argument_of(name, "value", entry.value, scope))
    same = _SAME[type(entry)]
    return same(**{field: getattr(entry, field) for field in same.__struct_fields__})


def _generation(name: str, entry: LlmEntry, defaults: Defaults) -> Generation:
    if (entry.prompt is None) == (entry.messages is None):
        raise InvalidFlow(name, "an llm has either a `prompt` or `messages`")
    messages = [MessageTemplate(each.role, each.content) for each in entry.messages or ()]
    if entry.system is not None:
        messages.insert(0, MessageTemplate("system", entry.system))
    if entry.prompt is not None:
        messages.append(MessageTemplate("user", entry.prompt))
    return Generation(
        messages=tuple(messages),
        model=entry.model or defaults.model,
        max_tokens=defaults.max_tokens if entry.max_tokens is None else entry.max_tokens,
        temperature=defaults.temperature if entry.temperature is None else entry.temperature,
        top_p=entry.top_p,
        seed=entry.seed,
        stop=tuple(entry.stop),
        schema=entry.schema,
        on_cut=entry.on_cut or defaults.on_cut,
        parse=entry.parse,
    )


def _branch(name: str, entry: BranchEntry, scope: Scope) -> Branch:
    cases = {
        case: argument_of(name, f"cases.{case}", value, scope)
        for case, value in entry.cases.items()
    }
    if entry.otherwise is msgspec.UNSET:
        return Branch(entry.on, cases)
    return Branch(entry.on, cases, argument_of(name, "otherwise", entry.otherwise, scope))


def _result(name: str, result: str, inner: Scope) -> Reference:
    argument = argument_of(name, "result", result, inner)
    assert isinstance(argument, Reference)
    return argument


def _loop(
    name: str, entry: LoopEntry, body: tuple[Operator, ...], scope: Scope, inner: Scope
) -> Loop:
    result = _result(name, entry.result, inner)
    until: dict[str, Argument] = {}
    if entry.until is not None:
        names = {use.name for use in uses_of(name, "until", entry.until, expression)}
        # `state` is the latest result there, not what the round began with.
        until = {"state": result, **_by_name(names - {"state"}, inner)}
    start = argument_of(name, "start", entry.start, scope)
    return Loop(start, body, result, entry.max_rounds, entry.until, until)

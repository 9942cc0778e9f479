"""Entries of operators in YAML, by kind."""

import msgspec

from kairos.workflows.compile.operators import (
    ENGINE_RETRIES,
    Chunking,
    OnCut,
    OnError,
    Parse,
    Purity,
    Rerank,
    Role,
    Search,
)

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

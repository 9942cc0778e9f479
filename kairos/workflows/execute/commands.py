"""Commands of a flow's executor. Stages, nodes and rows: see `facts.py`."""

from collections.abc import Mapping
from typing import Literal

import msgspec

from kairos.workflows.compile.passes.decoding import PartialDecode


class ReadRows(msgspec.Struct, frozen=True, gc=False):
    """Read up to `count` more rows of the table; InputEnded follows if there are fewer."""

    count: int


class ReadGroups(msgspec.Struct, frozen=True, gc=False):
    """Read up to `count` more groups, in the order of their first rows.

    All rows of stage 0 have ended. GroupsEnded follows if there are fewer groups.
    """

    count: int


class CallAttempt(msgspec.Struct, frozen=True):
    """Make a call: CallAnswered or CallBroke follows.

    `attempt` counts from 1; `delay_us`: wait before it.
    """

    call: int
    stage: int
    node: str
    row: int
    attempt: int
    operator: str
    signature: str
    delay_us: int


class IssueCall(CallAttempt, frozen=True):
    """Make an LLM call: a chat completion.

    `body` is the request, without `model` if none is named. With `items`, ItemsFinished may precede
    the answer, as the JSON list at that path grows.
    """

    model: str | None
    body: Mapping[str, object]
    items: PartialDecode | None = None


class RunFunction(CallAttempt, frozen=True):
    """Call a registered function, with copies of these arguments.

    `idempotency_key`: within the run, for a function with effects. `batch`: calls that the function
    takes at once; `depth`: as below; `cpus`: of a heavy function.
    """

    function: str
    arguments: Mapping[str, object]
    idempotency_key: str | None
    batch: int | None = None
    depth: int = 0
    cpus: int | None = None


class RunProcessor(CallAttempt, frozen=True):
    """Have a processor embed, ingest, search or rank.

    `arguments`: checked arguments of the kind, and the operator's settings
    (`workflows/compile/retrieval.py`). `model` None: the only one available. `depth`: number of
    operators on the longest path to an output. `idempotency_key`: within the run, for an effect.
    `stays`: the processor may keep the value (`facts.Stays`), with the signature as its id. `held`:
    places of held values by their ids; the arguments have a text in place of each
    (`workflows/compile/held.py`).
    """

    kind: Literal["embed", "ingest", "search", "rerank"]
    model: str | None
    arguments: Mapping[str, object]
    idempotency_key: str | None
    depth: int
    stays: bool = False
    held: Mapping[str, str] = {}

    @property
    def items(self) -> int:
        """Return the number of items; 1 if it is not known here."""
        items = self.arguments.get(_ITEMS[self.kind])
        return max(1, len(items)) if isinstance(items, list) else 1


_ITEMS = {"embed": "texts", "ingest": "texts", "search": "vectors", "rerank": "passages"}


class DropHeld(msgspec.Struct, frozen=True, gc=False):
    """Drop a held value that no row needs any more. No fact follows."""

    value_id: str
    place: str


TOUCH_AGENT = "touch-prefix"  # agent of these calls; no operator can have this name


class TouchPrefix(msgspec.Struct, frozen=True):
    """Use the static prefix of the operator's prompts on an engine, to keep it cached.

    The engine computes it if necessary. With a `number`, PrefixTouched follows on success;
    otherwise no fact follows.
    """

    operator: str
    model: str | None
    body: Mapping[str, object]
    number: int | None = None


class FetchCached(msgspec.Struct, frozen=True, gc=False):
    """Look up a result in the cache. CacheAnswered follows."""

    call: int
    signature: str
    operator: str = ""


class DropCall(msgspec.Struct, frozen=True, gc=False):
    """Forget a call that the cache did not have: no row wants it any more."""

    call: int


class KeepResult(msgspec.Struct, frozen=True, gc=False):
    """Write a result to the journal.

    `store`: to the cache, too. `until_end`: it is large, and not needed after its row has ended.
    """

    stage: int
    node: str
    row: int
    signature: str
    value: object
    origin: Literal["called", "merged", "fetched"]
    store: bool
    until_end: bool = False


class KeepAnswer(msgspec.Struct, frozen=True, gc=False):
    """Cache the text of an answer that could not be read as JSON, for `parse: lenient`.

    `FetchCached` asks for it by the same signature.
    """

    signature: str
    text: str


class WriteRow(msgspec.Struct, frozen=True):
    """Write a row of the output table. One of these four commands ends each row, in any order."""

    stage: int
    row: int
    values: Mapping[str, object]


class FailRow(msgspec.Struct, frozen=True, gc=False):
    stage: int
    row: int
    node: str
    error: str


class DropRow(msgspec.Struct, frozen=True, gc=False):
    """Drop a row that was filtered out: none of its outputs has a value."""

    stage: int
    row: int


class GatherRow(msgspec.Struct, frozen=True, gc=False):
    """Add a row of stage 0 to a group."""

    row: int
    key: str
    value: object


class EndRun(msgspec.Struct, frozen=True, gc=False):
    """End the run. `stopped`, `budget`: rows are left, and the run can be resumed."""

    reason: Literal["done", "stopped", "budget"]


FlowCommand = (
    ReadRows
    | ReadGroups
    | IssueCall
    | RunFunction
    | RunProcessor
    | DropHeld
    | TouchPrefix
    | FetchCached
    | DropCall
    | KeepResult
    | KeepAnswer
    | WriteRow
    | FailRow
    | DropRow
    | GatherRow
    | EndRun
)

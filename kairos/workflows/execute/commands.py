"""What the executor of a flow asks for. Stages, nodes and rows: see `facts.py`."""

from collections.abc import Mapping
from typing import Literal

import msgspec

from kairos.workflows.compile.passes.decoding import PartialDecode


class ReadRows(msgspec.Struct, frozen=True, gc=False):
    """Up to `count` more rows of the table are wanted; InputEnded, if there are fewer."""

    count: int


class ReadGroups(msgspec.Struct, frozen=True, gc=False):
    """Up to `count` more groups are wanted, in order of their first rows; all rows of stage 0 have
    ended. GroupsEnded, if there are fewer."""

    count: int


class CallAttempt(msgspec.Struct, frozen=True):
    """A call is to be made: CallAnswered or CallBroke follows. `attempt` counts from 1; `delay_us`:
    to wait before it."""

    call: int
    stage: int
    node: str
    row: int
    attempt: int
    operator: str
    signature: str
    delay_us: int


class IssueCall(CallAttempt, frozen=True):
    """Of a model, for a chat completion. `body` is the request, without `model` where none is
    named. With `items`, ItemsFinished is welcome before, as the JSON list at that path grows."""

    model: str | None
    body: Mapping[str, object]
    items: PartialDecode | None = None


class RunFunction(CallAttempt, frozen=True):
    """Of a registered function, with copies of these arguments. `idempotency_key`: within the run,
    for what has an effect. `batch`: the function takes as many calls at once; `depth`: as below."""

    function: str
    arguments: Mapping[str, object]
    idempotency_key: str | None
    batch: int | None = None
    depth: int = 0


class RunProcessor(CallAttempt, frozen=True):
    """Of a processor, to embed, put into a collection, search or rank. `arguments`: what the kind
    takes, checked, and the operator's settings beside it (`workflows/compile/retrieval.py`);
    `model` None: the only one there is for that. `depth`: so many operators follow until something
    comes out. `idempotency_key`: within the run, for what has an effect. `stays`: the value may
    stay where it is made (`facts.Stays`), with the signature as its id; `held`: where those are,
    by id, that have a text in their place in the arguments (`workflows/compile/held.py`)."""

    kind: Literal["embed", "ingest", "search", "rerank"]
    model: str | None
    arguments: Mapping[str, object]
    idempotency_key: str | None
    depth: int
    stays: bool = False
    held: Mapping[str, str] = {}

    @property
    def items(self) -> int:
        """Return how many it works on: 1 where that is not known here."""
        items = self.arguments.get(_ITEMS[self.kind])
        return max(1, len(items)) if isinstance(items, list) else 1


_ITEMS = {"embed": "texts", "ingest": "texts", "search": "vectors", "rerank": "passages"}


class DropHeld(msgspec.Struct, frozen=True, gc=False):
    """Nothing needs a value any more that stayed at that place. Nothing follows."""

    value_id: str
    place: str


TOUCH = "touch-prefix"  # the agent of such calls: no operator can be called so


class TouchPrefix(msgspec.Struct, frozen=True):
    """An engine is to use what prompts of the operator begin with for every row, and to compute it
    if it must. With a `number`, PrefixTouched follows where it succeeds; else nothing does."""

    operator: str
    model: str | None
    body: Mapping[str, object]
    number: int | None = None


class FetchCached(msgspec.Struct, frozen=True, gc=False):
    """Does the cache have this result? CacheAnswered follows."""

    call: int
    signature: str
    operator: str = ""


class DropCall(msgspec.Struct, frozen=True, gc=False):
    """A call that the cache did not have is not made: nobody wants it any more."""

    call: int


class KeepResult(msgspec.Struct, frozen=True, gc=False):
    """A result for the journal. `store`: for the cache, too. `until_end`: it is large, and nothing
    needs it when its row has ended."""

    stage: int
    node: str
    row: int
    signature: str
    value: object
    origin: Literal["called", "merged", "fetched"]
    store: bool
    until_end: bool = False


class KeepAnswer(msgspec.Struct, frozen=True, gc=False):
    """Keep in the cache the text of an answer that could not be read as JSON, for `parse: lenient`.

    `FetchCached` asks for it by the same signature.
    """

    signature: str
    text: str


class WriteRow(msgspec.Struct, frozen=True):
    """A row of the table that comes out. One of these four ends each row, in any order."""

    stage: int
    row: int
    values: Mapping[str, object]


class FailRow(msgspec.Struct, frozen=True, gc=False):
    stage: int
    row: int
    node: str
    error: str


class DropRow(msgspec.Struct, frozen=True, gc=False):
    """It was filtered away: none of its outputs has a value."""

    stage: int
    row: int


class GatherRow(msgspec.Struct, frozen=True, gc=False):
    """A row of stage 0 belongs to a group."""

    row: int
    key: str
    value: object


class EndRun(msgspec.Struct, frozen=True, gc=False):
    """The last command. `stopped`, `budget`: rows are left, and the run can be resumed."""

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

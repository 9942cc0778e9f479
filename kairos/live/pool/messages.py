"""What those who perform calls and the active balancer of a pool tell each other.

On `kairos.requests` (key: the pool), by the header `kairos-type`:
    told   a fact about a call, from the process that performs it
    alive  that process is still there; once a second
    call   an LLM call to be performed by whoever takes it: OpenAI's body, and `CallHeaders`
On `kairos.dispatches` (key: the pool, header `kairos-performer`: for whom): `Orders`.
On `kairos.events`: a `Record`, or, with the header `kairos-takeover`, that another process decides
from here on. `kairos-epoch` is the offset of the latest such announcement.
"""

import re
from typing import Annotated

import msgspec

from kairos.core_names import NAME
from kairos.declared_plan import check_plan
from kairos.envelope import Name
from kairos.errors import InvalidRequest, KairosError
from kairos.events import Dispatch, Event, Finished, PlanDeclared, Progressed, Refuse
from kairos.header_names import OF_FIELDS
from kairos.live.request.budgets import MAX_BUDGET
from kairos.model import IDENTIFIER, PREFIX_MARKS, Budget, Request
from kairos.rate_limits import RateLimits
from kairos.topics import REPLIES

TYPE, TOLD, ALIVE, CALL = "kairos-type", "told", "alive", "call"
PERFORMER = "kairos-performer"  # who performs the call that a record or an order is about
POOL = "kairos-pool"
EPOCH = "kairos-epoch"
TAKEOVER = "kairos-takeover"  # who decides from here on
CAUSE = "kairos-cause"  # of a record: the offset in kairos.requests of what told the fact
TURN = "kairos-turn"  # of a record: see `Told`
REDO = "kairos-redo"  # on a Cancelled: the call is to be begun anew

TOLD_BYTES = 1 << 16  # of a fact: with what is decided on it, its record must fit the bus
TOLD_CALLS = 400  # in one fact: with ids as long as they may be, that is within these bytes
_TOKENS = range(1, 10**9)
_COUNTED = range(1 << 48)  # tokens, as engines tell them: see `sse.py`
_INSTANTS = range(10**18)  # µs since the epoch
_ATTEMPTS = range(1, 10**6)
_SEQUENCES = range(1, 10**8)
_UNITS = range(10**9)
_BUDGETS = range(1, 10**16)
_HASHES = range(-(1 << 63), 1 << 64)

Identifier = Annotated[str, msgspec.Meta(pattern=IDENTIFIER)]
ReplyTopic = Annotated[
    str, msgspec.Meta(pattern=rf"\A{re.escape(REPLIES)}[A-Za-z0-9._-]{{1,200}}\Z")
]
AtMost = Annotated[int, msgspec.Meta(ge=1, le=MAX_BUDGET)]
# A process, or whoever awaits a reply on the topic of that name.
Teller = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9._-]{1,249}\Z")]


class Told(msgspec.Struct, frozen=True, omit_defaults=True):
    """A fact. Of a call that came over the bus, only who asked for it may tell that it is
    cancelled: its `performer` is then the topic on which it awaits the reply."""

    performer: Teller
    event: Event
    turn: int = 0  # of a call that waits from then on; 0: as long as it does, it has but one


_told = msgspec.json.Decoder(Told)


class Alive(msgspec.Struct, frozen=True):
    performer: Teller


class Declined(msgspec.Struct, frozen=True, tag=True):
    """The request that arrived is refused, as `errors.py` says it."""

    request_id: str
    status: Annotated[int, msgspec.Meta(ge=400, le=599)]
    code: str
    message: str
    retry_after_s: Annotated[int, msgspec.Meta(ge=0, le=86_400)] | None = None
    limits: RateLimits | None = None

    @classmethod
    def of(cls, request_id: str, error: KairosError) -> "Declined":
        after_s, limits = error.retry_after_s, error.limits
        return cls(request_id, error.status, error.code, str(error), after_s, limits)

    def error(self) -> KairosError:
        error = KairosError(self.message)
        error.status, error.code, error.retry_after_s = self.status, self.code, self.retry_after_s
        error.limits = self.limits
        return error


class Orders(msgspec.Struct, frozen=True):
    """What a performer is to do, in this order."""

    commands: tuple[Dispatch | Refuse | Declined, ...]
    turns: tuple[int, ...]  # of each: the one that was decided on


class CallHeaders(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    rename=OF_FIELDS,
):
    """Who makes a call that comes over the bus, and where its answer goes."""

    request_id: Identifier
    reply_to: ReplyTopic
    workflow_id: Identifier | None = None
    app: Name | None = None
    agent: Name | None = None
    upstream: Name | None = None
    started_at: Annotated[int, msgspec.Meta(ge=0, lt=10**18)] | None = None
    parent: Identifier | None = None
    attempt: Annotated[int, msgspec.Meta(ge=1, lt=1_000)] = 1
    service_class: Name | None = None
    deadline: Annotated[int, msgspec.Meta(ge=0, lt=10**18)] | None = None  # µs since the epoch
    budget_calls: AtMost | None = None
    budget_tokens: AtMost | None = None
    budget_ms: AtMost | None = None

    @property
    def budget(self) -> Budget | None:
        """What the call's workflow may use at most."""
        wall_us = None if self.budget_ms is None else self.budget_ms * 1_000
        budget = Budget(self.budget_calls, self.budget_tokens, wall_us)
        return budget if budget != Budget() else None


def check_request(request: Request) -> None:
    """Raises InvalidRequest: what was told is no request's, and arithmetic would not survive it."""
    if not re.match(IDENTIFIER, request.id):
        raise InvalidRequest("the request's id is no identifier")
    if not re.match(NAME, request.service_class):
        raise InvalidRequest("the request's class of service is no name")
    budget = request.budget or Budget()
    numbers = (
        *((each, _BUDGETS) for each in msgspec.structs.astuple(budget) if each is not None),
        (request.prompt_tokens, _TOKENS),
        (request.completion_tokens, _TOKENS),
        (request.arrived_at, _INSTANTS),
        (request.workflow_started_at, _INSTANTS),
        (request.attempt, _ATTEMPTS),
        (request.sequences, _SEQUENCES),
        (0 if request.deadline_at is None else request.deadline_at, _INSTANTS),
        (1 if request.completion_limit is None else request.completion_limit, _TOKENS),
        (request.prefix_units, _UNITS),
        *((mark, _HASHES) for mark in request.prefix[: len(PREFIX_MARKS)]),
    )
    if len(request.prefix) > len(PREFIX_MARKS):
        raise InvalidRequest("the request's prefix has more marks than there are")
    if not all(number in limits for number, limits in numbers):
        raise InvalidRequest("a number of the request is out of range")


def read_told(value: bytes) -> Told:
    """Raises InvalidRequest: it is not what any performer says."""
    if len(value) > TOLD_BYTES:
        raise InvalidRequest(f"a fact is at most {TOLD_BYTES} bytes")
    told = _told.decode(value)
    check_counts(told.event)
    if isinstance(told.event, PlanDeclared):
        check_plan(told.event.plan)
    return told


def check_counts(event: Event) -> None:
    """Raises InvalidRequest: tokens were told that no engine counts."""
    told: list[int | None]
    if isinstance(event, Finished):
        told = [event.prompt_tokens, event.completion_tokens, event.cached_tokens]
    elif isinstance(event, Progressed):
        told = list(event.completion_tokens.values())
    else:
        return
    if not all(tokens is None or tokens in _COUNTED for tokens in told):
        raise InvalidRequest("a number of tokens is out of range")


def read_call_headers(headers: object) -> CallHeaders:
    """Raises InvalidRequest: they do not say who calls, and where the answer goes."""
    try:
        return msgspec.convert(headers, CallHeaders, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"the message's headers are no LLM call's: {error}") from error

"""Messages between a pool's performers (processes that perform calls) and its active balancer.

On `kairos.requests` (key: the pool), by the header `kairos-type`:
 told   a fact about a call, from its performer
 alive  a performer's sign of life, once a second
 call   an LLM call for any performer: OpenAI's body, and `CallHeaders`

On `kairos.dispatches` (key: the pool, header `kairos-performer`: the receiver): `Orders`.

On `kairos.events`: a `Record`, or, with the header `kairos-takeover`, the announcement of a new
active balancer. `kairos-epoch` is the offset of the latest such announcement.
"""

import re
from collections.abc import Mapping
from typing import Annotated

import msgspec

from kairos.cluster.bus.envelope import NUMBER, Name
from kairos.cluster.decisions.messages import Declined, LoggedDecision
from kairos.cluster.kafka.items import ReceivedMessage
from kairos.core import (
    FIELD_HEADERS,
    IDENTIFIER_PATTERN,
    NAME_PATTERN,
    PARENTS_LIMIT,
    POLICY_NAMES,
    PREFIX_MARKS,
    Arrived,
    Bounced,
    Budget,
    Command,
    Dispatch,
    EntitlementsChanged,
    Event,
    Failed,
    Finished,
    InstanceJoined,
    InstanceLeft,
    InstanceStatus,
    InvalidRequest,
    PlanDeclared,
    PolicyChosen,
    PrefillFailed,
    ProfilesLearnt,
    Progressed,
    Record,
    Refuse,
    Request,
    Tick,
    Topic,
    check_plan,
)
from kairos.request import MAX_BUDGET
from kairos.settings import ENTITLEMENTS_BYTES, check_entitlements

TYPE_HEADER, TOLD, ALIVE, CALL = "kairos-type", "told", "alive", "call"
PERFORMER = "kairos-performer"  # who performs the call that a record or an order is about
POOL_HEADER = "kairos-pool"
EPOCH = "kairos-epoch"
TAKEOVER_HEADER = "kairos-takeover"  # who decides from here on
CAUSE = "kairos-cause"  # of a record: the offset in kairos.requests of the fact's message
TURN = "kairos-turn"  # of a record: see `LoggedDecision`
REDO = "kairos-redo"  # on a Cancelled: the call is to be repeated

TOLD_BYTES = 1 << 16  # of a fact: with what is decided on it, its record must fit the bus
TOLD_CALLS = 400  # in one fact: with ids as long as they may be, that is within these bytes
_TOKENS = range(1, 10**9)
_COUNTED = range(1 << 48)  # tokens, as engines report them: see `sse.py`
_INSTANTS = range(10**18)  # µs since the epoch
_ATTEMPTS = range(1, 10**6)
_SEQUENCES = range(1, 10**8)
_UNITS = range(10**9)
_BUDGETS = range(1, 10**16)
_HASHES = range(-(1 << 63), 1 << 64)

_PRIORITIES = range(-(1 << 31), 1 << 31)
_NAMES = 256  # characters of what names a tenant, a model, an instance, an error
# Of one record, and of one message to a performer: more of them would be over the bus's limit.
MOST_COMMANDS = 1_000

Identifier = Annotated[str, msgspec.Meta(pattern=IDENTIFIER_PATTERN)]
ReplyTopic = Annotated[
    str, msgspec.Meta(pattern=rf"\A{re.escape(Topic.REPLIES)}[A-Za-z0-9._-]{{1,200}}\Z")
]
AtMost = Annotated[int, msgspec.Meta(ge=1, le=MAX_BUDGET)]
# A process, or the caller that awaits a reply on the topic of that name.
Teller = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9._-]{1,249}\Z")]


class Told(msgspec.Struct, frozen=True, omit_defaults=True):
    """A fact from a performer.

    Only the caller of a call over the bus may report that it is cancelled: `performer` is then the
    topic on which the caller awaits the reply.
    """

    performer: Teller
    event: Event
    turn: int = 0  # of a call that waits from then on; 0: the only turn of its wait


_told = msgspec.json.Decoder(Told)
_record = msgspec.json.Decoder(Record)


class Alive(msgspec.Struct, frozen=True):
    performer: Teller


class Orders(msgspec.Struct, frozen=True):
    """Commands for a performer, in this order."""

    commands: tuple[Dispatch | Refuse | Declined, ...]
    turns: tuple[int, ...]  # of each: the one that was decided on


_orders = msgspec.json.Decoder(Orders)


class Epochs:
    """Tracker of a pool's newest balancer, by the offsets of announcements.

    Epoch numbers in messages alone prove nothing.
    """

    def __init__(self, first: int, newest: int | None) -> None:
        """Start to read announcements at an offset; `newest`: the epoch in force before it."""
        self._first = first
        self._newest = newest if newest is not None and newest < first else None

    def announce(self, offset: int) -> None:
        self._newest = offset

    def count(self, epoch: int) -> bool:
        """Return whether a message of that epoch is valid now."""
        return epoch < self._first if self._newest is None else epoch == self._newest

    def is_forged(self, epoch: int) -> bool:
        """Return whether no balancer can have announced itself at that offset yet."""
        return epoch >= self._first if self._newest is None else epoch > self._newest


class CallHeaders(msgspec.Struct, frozen=True, kw_only=True, rename=FIELD_HEADERS):
    """Headers of a call over the bus: its caller, and the topic for its answer."""

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
        wall_us = None if self.budget_ms is None else self.budget_ms * 1_000
        budget = Budget(self.budget_calls, self.budget_tokens, wall_us)
        return budget if budget != Budget() else None


def read_told(value: bytes) -> Told:
    """Parse a fact from `kairos.requests`.

    Raises:
        InvalidRequest, msgspec.MsgspecError, RecursionError: It is not a fact of a performer.
    """
    if len(value) > TOLD_BYTES:
        raise InvalidRequest(f"a fact is at most {TOLD_BYTES} bytes")
    told = _told.decode(value)
    if not isinstance(told.event, Arrived):  # `ActiveBalancer` answers that one where it is wrong
        check_event(told.event)
    return told


def read_record(message: ReceivedMessage) -> tuple[int, LoggedDecision]:
    """Parse and check a decision from `kairos.events`; return its epoch, and it.

    Raises:
        InvalidRequest, msgspec.MsgspecError, RecursionError: It is not a record of a balancer.
    """
    headers = message.headers
    epoch = _number(headers, EPOCH)
    if epoch is None:
        raise InvalidRequest(f"the header {EPOCH} is missing")
    value = message.value or b""
    record = _record.decode(value)
    if record.at not in _INSTANTS:
        raise InvalidRequest("the instant of the record is out of range")
    event = record.event
    if isinstance(event, InstanceJoined | InstanceLeft | InstanceStatus):
        # Each process watches the instances itself; only the commands of the record matter.
        record = msgspec.structs.replace(record, event=Tick())
    elif isinstance(event, EntitlementsChanged) and len(value) > ENTITLEMENTS_BYTES + TOLD_BYTES:
        raise InvalidRequest(f"entitlements have more than {ENTITLEMENTS_BYTES} bytes")
    else:
        check_event(event)
    if len(record.commands) > MOST_COMMANDS:
        raise InvalidRequest(f"a record has at most {MOST_COMMANDS} commands")
    for command in record.commands:
        check_command(command)
    performer = headers.get(PERFORMER, "")
    _check_names(performer)
    turn = _number(headers, TURN) or 0
    return epoch, LoggedDecision(record, performer, _number(headers, CAUSE), turn, REDO in headers)


def read_orders(message: ReceivedMessage) -> tuple[int, Orders]:
    """Parse the epoch and the orders of a message of `kairos.dispatches`.

    Raises:
        InvalidRequest, msgspec.MsgspecError, RecursionError: It is not a message of a balancer.
    """
    epoch = _number(message.headers, EPOCH)
    if epoch is None:
        raise InvalidRequest(f"the header {EPOCH} is missing")
    orders = _orders.decode(message.value or b"")
    if len(orders.commands) != len(orders.turns):
        raise InvalidRequest("there are not as many turns as commands")
    if len(orders.commands) > MOST_COMMANDS or any(each not in _COUNTED for each in orders.turns):
        raise InvalidRequest("the orders are too many, or a turn is out of range")
    for command in orders.commands:
        check_command(command)
    return epoch, orders


def check_event(event: Event) -> None:
    """Validate a fact from another process, as strictly as settings.

    Raises:
        InvalidRequest: No process sends such a fact, and arithmetic on it may fail.
    """
    match event:
        case Arrived():
            check_request(event.request)
            _check_hash(event.body)
        case PlanDeclared():
            _check_names(event.tenant, event.app)
            check_plan(event.plan)
        case EntitlementsChanged():
            check_entitlements(event.entitlements)
        case PolicyChosen():
            if event.policy not in POLICY_NAMES:  # other processes must not name what is imported
                raise InvalidRequest("the policy is not known")
        case InstanceJoined() | InstanceStatus() | ProfilesLearnt():
            raise InvalidRequest(f"{type(event).__name__} is not accepted over the bus")
        case _:
            _check_call_fact(event)


def _check_call_fact(event: Event) -> None:
    """Validate a fact about a call or a workflow, known or not."""
    match event:
        case Finished():
            _check_counts(
                *(event.prompt_tokens, event.completion_tokens, event.cached_tokens),
                *(event.preemptions, event.recomputed_tokens),
            )
        case Progressed():
            _check_counts(*event.completion_tokens.values())
        case Failed():
            _check_names(event.reason)
            _check_counts(event.wasted_tokens)
            _check_hash(event.body)
        case Bounced():
            _check_names(event.reason)
            _check_hash(event.body)
        case PrefillFailed():
            _check_hash(event.body)


def check_command(command: Command | Declined) -> None:
    """Validate a command from another process.

    Raises:
        InvalidRequest: No balancer gives such a command.
    """
    _check_names(command.request_id)
    if isinstance(command, Declined):
        _check_names(command.code)
        return
    if isinstance(command, Refuse):
        _check_names(command.model)
        _check_counts(command.retry_after_s, command.needs_us)
        return
    _check_names(command.instance_id, command.prefill_id)
    _check_counts(
        *(command.waiting, command.remaining_us, command.cached_tokens),
        *(command.tenants, command.tenants_before),
    )
    if command.priority is not None and command.priority not in _PRIORITIES:
        raise InvalidRequest("the priority of a call is out of range")


def check_request(request: Request) -> None:
    """Validate a request that another process admitted.

    Raises:
        InvalidRequest: No gateway admits such a request.
    """
    if not re.match(IDENTIFIER_PATTERN, request.id):
        raise InvalidRequest("the request's id is not a valid identifier")
    if not re.match(NAME_PATTERN, request.service_class):
        raise InvalidRequest("the request's class of service is not a valid name")
    _check_names(
        *(request.tenant, request.workflow_id, request.app, request.agent, request.upstream),
        *(request.model, request.key, request.trace_id, *request.parent_ids),
    )
    if len(request.parent_ids) > PARENTS_LIMIT:
        raise InvalidRequest("the request has too many parents")
    if len(request.prefix) > len(PREFIX_MARKS):
        raise InvalidRequest("the request's prefix has more marks than there are")
    budget = request.budget or Budget()
    numbers = (
        *((each, _BUDGETS) for each in msgspec.structs.astuple(budget) if each is not None),
        (request.prompt_tokens, _TOKENS),
        (request.least_prompt_tokens, _UNITS),
        (request.completion_tokens, _TOKENS),
        (request.arrived_at, _INSTANTS),
        (request.workflow_started_at, _INSTANTS),
        (request.attempt, _ATTEMPTS),
        (request.sequences, _SEQUENCES),
        (0 if request.deadline_at is None else request.deadline_at, _INSTANTS),
        (1 if request.completion_limit is None else request.completion_limit, _TOKENS),
        (request.prefix_units, _UNITS),
        *((mark, _HASHES) for mark in request.prefix),
    )
    if not all(number in limits for number, limits in numbers):
        raise InvalidRequest("a number of the request is out of range")


def _check_counts(*counts: int | None) -> None:
    if not all(each is None or each in _COUNTED for each in counts):
        raise InvalidRequest("a number is out of range")


def _check_hash(hashed: int | None) -> None:
    if hashed is not None and hashed not in _HASHES:
        raise InvalidRequest("a hash is out of range")


def _check_names(*names: str | None) -> None:
    if not all(each is None or len(each) <= _NAMES for each in names):
        raise InvalidRequest(f"a name has more than {_NAMES} characters")


def _number(headers: Mapping[str, str], name: str) -> int | None:
    """Return a header's number; None if the header is missing.

    Raises:
        InvalidRequest: The header is not a number.
    """
    text = headers.get(name)
    if text is None:
        return None
    if not re.match(NUMBER, text):  # `int` would take "1_0", " 1" and digits of other scripts
        raise InvalidRequest(f"the header {name} must be a number")
    return int(text)


def read_call_headers(headers: object) -> CallHeaders:
    """Parse the headers of a call over the bus.

    Raises:
        InvalidRequest: A header is missing or malformed.
    """
    try:
        return msgspec.convert(headers, CallHeaders, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"the message's headers are not an LLM call's: {error}") from error

"""Facts, which tell the balancer what happened, and commands, with which it answers.

All are tagged values: a log line says `"type": "Arrived"` and decodes to exactly what was logged.
Those of calls are none of the garbage collector's business: a value holds no cycle.
"""

from typing import Literal

import msgspec

from kairos.core.agent_key import AgentKey
from kairos.core.declared_plan import PlannedWork
from kairos.core.entitlements import Entitlements
from kairos.core.learnt import AgentProfile, AgentRank, JoinPlace, RemainingModel
from kairos.core.model import Instance, Request
from kairos.core.rate_limits import RateLimits


class Arrived(msgspec.Struct, frozen=True, tag=True, gc=False, omit_defaults=True):
    """A client asked for an LLM call."""

    request: Request
    body: int | None = None  # its hash, where one of its length failed a while ago


class FirstToken(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The engine's first bytes of an answer arrived."""

    request_id: str


class Finished(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The engine ended an answer in good order. Token counts are the engine's, where it told."""

    request_id: str
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None  # of the prompt, found in the engine's prefix cache
    preemptions: int | None = None  # how often the engine took the call's memory away
    recomputed_tokens: int | None = None  # computed again because of that


class Failed(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The call ended without a whole answer."""

    request_id: str
    reason: str  # the code of the error that its client was told
    wasted_tokens: int | None = None  # of its answer, generated in vain, where the engine told
    by_instance: bool = False  # it may be the instance's fault
    body: int | None = None  # its hash, where it may be the instance's fault
    dropped: bool = False  # the instance had taken it, and broke the connection


class Bounced(msgspec.Struct, frozen=True, tag="Returned", gc=False):
    """The instance gave no answer, and the client has nothing of one yet. So the call waits for
    another instance, before all that were never dispatched."""

    request_id: str
    reason: str  # the code of the error
    body: int | None = None  # its hash
    by_instance: bool = True  # it may be the instance's fault, or the call's; False: nobody's
    about_itself: bool = False  # the instance cannot for now, whatever the call
    dropped: bool = False  # the instance had taken the call, and broke the connection


class PrefillFailed(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The instance that was to compute the call's prompt for another one did not. The other one,
    which generates the answer, computes it itself."""

    request_id: str
    body: int | None = None  # its hash


class Cancelled(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The client left, or no longer wants the answer."""

    request_id: str


class Progressed(msgspec.Struct, frozen=True, tag=True):
    """How many tokens of their answers calls have had so far, by request id. Told once a second of
    the calls that run, where it is known; those that are not named go on as they did."""

    completion_tokens: dict[str, int]


class InstanceStatus(msgspec.Struct, frozen=True, tag=True):
    """What an instance says of itself, once a second. What it does not tell is None.

    `kv_used` is the share of its KV memory that running calls hold. `preemptions`, `queried_tokens`
    and `cached_tokens` (of prompts, in its prefix cache) count since it started.
    """

    instance_id: str
    kv_used: float | None = None
    running: int | None = None
    waiting: int | None = None
    waiting_for_room: int | None = None  # those of `waiting` for which there is no room
    preemptions: int | None = None
    queried_tokens: int | None = None
    cached_tokens: int | None = None


class InstanceJoined(msgspec.Struct, frozen=True, tag=True):
    """An instance takes requests from now on. Said again, its limits are replaced."""

    instance: Instance


class InstanceLeft(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """An instance takes no more requests. What runs there ends with facts of its own."""

    instance_id: str
    drained: bool = False  # an operator took it out, so whatever it does now, no call is at fault


class WorkflowEnded(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """The user has the final reply of a workflow; or it is cancelled, and nobody wants one."""

    tenant: str
    workflow_id: str
    cancelled: bool = False


class ProfilesLearnt(msgspec.Struct, frozen=True, tag=True):
    """The orchestrator knows more: what changed replaces what was known of the same agent or app.
    `forgotten` agents are not known any more, nor is an app whose pool is among them."""

    profiles: tuple[AgentProfile, ...] = ()
    models: tuple[RemainingModel, ...] = ()
    ranks: tuple[AgentRank, ...] = ()
    forgotten: tuple[AgentKey, ...] = ()
    kendall_tau: float | None = None  # of the ranks, against the order of mean remaining work
    joins: tuple[JoinPlace, ...] | msgspec.UnsetType = msgspec.UNSET  # left out where none changed


class PlanDeclared(msgspec.Struct, frozen=True, tag=True):
    """A caller says which calls the workflows of its app consist of. It holds from now on, in place
    of what it said before; but a workflow keeps its plan while it has calls in flight."""

    tenant: str
    app: str
    plan: PlannedWork


class EntitlementsChanged(msgspec.Struct, frozen=True, tag=True):
    """The operator gave tenants other weights, classes of service or quotas, which hold from now
    on: these are all of them."""

    entitlements: Entitlements


class PolicyChosen(msgspec.Struct, frozen=True, tag=True):
    """The operator chose another order of the queue, by its name, which holds from now on."""

    policy: str


class Started(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Whoever decides has started, and writes this into its log alone. Of the calls and instances
    that were there before, these are still known; what became of the others was told to nobody."""

    calls: tuple[str, ...] = ()
    instances: tuple[str, ...] = ()


class Tick(msgspec.Struct, frozen=True, tag=True):
    """Time has passed, and some request has waited too long, or its workflow's time is up."""


Event = (
    Arrived
    | FirstToken
    | Finished
    | Failed
    | Cancelled
    | Bounced
    | PrefillFailed
    | Progressed
    | InstanceStatus
    | InstanceJoined
    | InstanceLeft
    | WorkflowEnded
    | ProfilesLearnt
    | PlanDeclared
    | EntitlementsChanged
    | PolicyChosen
    | Started
    | Tick
)


# first: by the policy; backfill: those before it did not fit; overdue: the starvation guard moved
# it forward, since its workflow had waited for as long as it may; returned: an instance gave it
# back; kept: memory was kept for it, where its context is; alone: one like it may have killed an
# instance, so nothing else runs where it goes.
Reason = Literal["first", "backfill", "overdue", "returned", "kept", "alone"]


class Dispatch(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Send the request to the instance. The rest says why it is this one's turn."""

    request_id: str
    instance_id: str
    reason: Reason = "first"
    waiting: int = 0  # other requests that stay in its queue
    remaining_us: int | None = None  # what its workflow was expected to need from here on
    rank: float | None = None  # of its agent at that time; None: nothing was ranked yet
    cached_tokens: int = 0  # of its prompt, expected to be in the instance's prefix cache
    priority: int | None = None  # inside the engine, lower first; None: it goes by arrival
    tenants: int = 0  # others that waited
    tenants_before: int = 0  # of these, with less service for their weight; nothing of them fitted
    limits: RateLimits | None = None  # what is left of the quotas that hold for it
    prefill_id: str | None = None  # the instance that computes its prompt; None: the same


Refusal = Literal[
    "no_instance",
    "no_other",
    "breaks_engines",
    "waited_too_long",
    "queue_full",
    "too_late",
    "cancelled",
    "out_of_time",
]


class Refuse(msgspec.Struct, frozen=True, tag=True, gc=False):
    """A waiting request is given up. The reason says why:

    - `no_instance`: no instance is left that serves its model.
    - `no_other`: each instance that serves its model has failed it.
    - `breaks_engines`: it failed where other calls are served, so it is the call's fault.
    - `waited_too_long`: it has waited as long as a request may.
    - `queue_full`: a call of a workflow that has begun needed its place.
    - `too_late`: it cannot be done by its deadline. This is said when it arrives.
    - `cancelled`: its workflow was cancelled. A request that runs is given up, too.
    - `out_of_time`: its workflow has used up its time. A request that runs is given up, too.
    """

    request_id: str
    model: str | None
    reason: Refusal = "no_instance"
    retry_after_s: int | None = None  # when to try again; None: the reason says it
    needs_us: int | None = None  # `too_late`: until it would be done, at the earliest


Command = Dispatch | Refuse


class Record(msgspec.Struct, frozen=True, gc=False):
    """One line of the log: a fact, when it was told, and what was decided on it."""

    at: int
    event: Event
    commands: tuple[Command, ...] = ()

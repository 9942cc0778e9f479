"""Facts, which report to the balancer what happened, and commands, its answers.

All are tagged values: a log line has `"type": "Arrived"` and decodes to exactly what was logged.
Facts and commands about calls are exempt from garbage collection, since they contain no cycles.
"""

from typing import Literal

import msgspec

from kairos.core.agent_key import AgentKey
from kairos.core.declared_plan import PlannedWork
from kairos.core.entitlements import Entitlements, RateLimits
from kairos.core.learnt import AgentProfile, AgentRank, JoinPlace, RemainingModel
from kairos.core.model import Instance, Request


class Arrived(msgspec.Struct, frozen=True, tag=True, gc=False, omit_defaults=True):
    """A client asked for an LLM call."""

    request: Request
    body: int | None = None  # hash of its body, if a body of the same length failed recently


class FirstToken(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The engine's first bytes of an answer arrived."""

    request_id: str


class Finished(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The engine completed an answer. Token counts are the engine's, if reported."""

    request_id: str
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None  # prompt tokens found in the engine's prefix cache
    preemptions: int | None = None  # number of times the engine preempted the call
    recomputed_tokens: int | None = None  # tokens computed again after preemptions


class Failed(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The call ended without a complete answer."""

    request_id: str
    reason: str  # the code of the error returned to its client
    wasted_tokens: int | None = None  # answer tokens generated in vain, if the engine reported them
    by_instance: bool = False  # it may be the instance's fault
    body: int | None = None  # hash of its body, if it may be the instance's fault
    dropped: bool = False  # the instance had accepted it, and dropped the connection


class Bounced(msgspec.Struct, frozen=True, tag="Returned", gc=False):
    """The instance gave no answer, and the client has received nothing of one yet.

    So the call waits for another instance, before all calls that were never dispatched.
    """

    request_id: str
    reason: str  # the code of the error
    body: int | None = None  # hash of its body
    by_instance: bool = True  # it may be a fault of the instance or the call; False: of neither
    about_itself: bool = False  # the instance cannot serve any call for now
    dropped: bool = False  # the instance had accepted the call, and dropped the connection


class PrefillFailed(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The instance that should compute the call's prompt for another one failed to.

    The other one, which generates the answer, computes it itself.
    """

    request_id: str
    body: int | None = None  # hash of the call's body


class Cancelled(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The client disconnected, or no longer wants the answer."""

    request_id: str


class Progressed(msgspec.Struct, frozen=True, tag=True):
    """Tokens of the answers so far, by request id.

    Reported once a second for running calls, as far as known; other calls are assumed to go on as
    before.
    """

    completion_tokens: dict[str, int]


class InstanceStatus(msgspec.Struct, frozen=True, tag=True):
    """Status that an instance reports once a second. None: not reported.

    `kv_used` is the share of its KV memory used by running calls. `preemptions`, `queried_tokens`
    and `cached_tokens` (of prompts, in its prefix cache) count since it started.
    """

    instance_id: str
    kv_used: float | None = None
    running: int | None = None
    waiting: int | None = None
    waiting_for_room: int | None = None  # calls in `waiting` that wait for memory
    preemptions: int | None = None
    queried_tokens: int | None = None
    cached_tokens: int | None = None


class InstanceJoined(msgspec.Struct, frozen=True, tag=True):
    """An instance takes requests from now on. If repeated, its limits are replaced."""

    instance: Instance


class InstanceLeft(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """An instance takes no more requests. Calls that run there end with their own facts."""

    instance_id: str
    drained: bool = False  # removed by an operator, so its failures from now on blame no call


class WorkflowEnded(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """The user has the final reply of a workflow, or the workflow is cancelled."""

    tenant: str
    workflow_id: str
    cancelled: bool = False


class ProfilesLearnt(msgspec.Struct, frozen=True, tag=True):
    """Newly learnt profiles, which replace the earlier ones of the same agent or app.

    `forgotten` agents are unknown from now on, and so is an app whose pool is among them.
    """

    profiles: tuple[AgentProfile, ...] = ()
    models: tuple[RemainingModel, ...] = ()
    ranks: tuple[AgentRank, ...] = ()
    forgotten: tuple[AgentKey, ...] = ()
    kendall_tau: float | None = None  # correlation of the ranks with mean remaining work
    joins: tuple[JoinPlace, ...] | msgspec.UnsetType = msgspec.UNSET  # omitted if none changed


class PlanDeclared(msgspec.Struct, frozen=True, tag=True):
    """A caller declares the calls of its app's workflows, in place of an earlier plan.

    A workflow keeps its plan while it has calls in flight.
    """

    tenant: str
    app: str
    plan: PlannedWork


class EntitlementsChanged(msgspec.Struct, frozen=True, tag=True):
    """The operator changed weights, classes of service or quotas: the complete new set."""

    entitlements: Entitlements


class PolicyChosen(msgspec.Struct, frozen=True, tag=True):
    """The operator chose another policy, by name, in force from now on."""

    policy: str


class Started(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """The deciding process has started; written only to its own log.

    The listed calls and instances are still known. For all others that were present before, no
    further facts follow.
    """

    calls: tuple[str, ...] = ()
    instances: tuple[str, ...] = ()


class Tick(msgspec.Struct, frozen=True, tag=True):
    """Time has passed, and a request has waited too long, or a workflow's time is up."""


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


# first: by the policy; backfill: requests before it did not fit; overdue: moved forward by the
# starvation guard, since its workflow had waited too long; returned: an instance had returned it;
# kept: memory was retained for it, where its context is cached; alone: it runs without other
# calls, since a call like it may have killed an instance.
Reason = Literal["first", "backfill", "overdue", "returned", "kept", "alone"]


class Dispatch(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Send the request to the instance. The other fields explain the decision."""

    request_id: str
    instance_id: str
    reason: Reason = "first"
    waiting: int = 0  # other requests that stay in its queue
    remaining_us: int | None = None  # expected latency of its workflow from this call on
    rank: float | None = None  # rank of its agent at that time; None: not ranked yet
    cached_tokens: int = 0  # prompt tokens expected in the instance's prefix cache
    priority: int | None = None  # priority inside the engine, lower first; None: by arrival
    tenants: int = 0  # number of other tenants that waited
    tenants_before: int = 0  # of these, tenants before it in the order, with nothing that fitted
    limits: RateLimits | None = None  # what is left of the quotas that apply to it
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
    """Drop a waiting request.

    The reason is one of:

    - `no_instance`: no instance is left that serves its model.
    - `no_other`: each instance that serves its model has failed it.
    - `breaks_engines`: it failed where other calls are served, so it is the call's fault.
    - `waited_too_long`: it has reached the maximum wait.
    - `queue_full`: a call of a workflow that has begun needed its place.
    - `too_late`: it cannot finish by its deadline; decided on arrival.
    - `cancelled`: its workflow was cancelled. A running request is dropped, too.
    - `out_of_time`: its workflow has used up its time. A running request is dropped, too.
    """

    request_id: str
    model: str | None
    reason: Refusal = "no_instance"
    retry_after_s: int | None = None  # when to retry; None: depends on the reason
    needs_us: int | None = None  # with `too_late`: the earliest possible duration


Command = Dispatch | Refuse


class Record(msgspec.Struct, frozen=True, gc=False):
    """A line of the log: a fact, its time, and the commands decided on it."""

    at: int
    event: Event
    commands: tuple[Command, ...] = ()

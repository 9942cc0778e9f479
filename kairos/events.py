"""Facts, which tell the balancer what happened, and commands, with which it answers.

All are tagged values: a log line says `"type": "Arrived"` and decodes to exactly what was logged.
"""

import msgspec

from kairos.model import Instance, Request


class Arrived(msgspec.Struct, frozen=True, tag=True):
    """A client asked for an LLM call."""

    request: Request


class FirstToken(msgspec.Struct, frozen=True, tag=True):
    """The engine's first bytes of an answer arrived."""

    request_id: str


class Finished(msgspec.Struct, frozen=True, tag=True):
    """The engine ended an answer in good order. Token counts are the engine's, where it told."""

    request_id: str
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None  # of the prompt, found in the engine's prefix cache


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The call ended without a whole answer."""

    request_id: str
    reason: str


class Cancelled(msgspec.Struct, frozen=True, tag=True):
    """The client left, or no longer wants the answer."""

    request_id: str


class InstanceJoined(msgspec.Struct, frozen=True, tag=True):
    """An instance takes requests from now on. Said again, its limits are replaced."""

    instance: Instance


class InstanceLeft(msgspec.Struct, frozen=True, tag=True):
    """An instance takes no more requests. What runs there ends with facts of its own."""

    instance_id: str


class WorkflowEnded(msgspec.Struct, frozen=True, tag=True):
    """The user has the final reply of a workflow."""

    tenant: str
    workflow_id: str


Event = (
    Arrived
    | FirstToken
    | Finished
    | Failed
    | Cancelled
    | InstanceJoined
    | InstanceLeft
    | WorkflowEnded
)


class Dispatch(msgspec.Struct, frozen=True, tag=True):
    """Send the request to the instance."""

    request_id: str
    instance_id: str


class Refuse(msgspec.Struct, frozen=True, tag=True):
    """A waiting request cannot be served any more: nothing that serves its model is left."""

    request_id: str
    model: str | None


Command = Dispatch | Refuse


class Record(msgspec.Struct, frozen=True):
    """One line of the log: a fact, when it was told, and what was decided on it."""

    at: int
    event: Event
    commands: tuple[Command, ...] = ()

"""Everything that can go wrong and that a caller should know about.

KairosError
 ├─ InvalidRequest 400        the client sent something we can never serve
 │   ├─ Unauthorized 401
 │   ├─ ModelNotFound 404
 │   ├─ WorkflowNotFound 404
 │   ├─ WorkflowCancelled 410
 │   ├─ BudgetExceeded 403
 │   ├─ BodyTooSlow 408
 │   ├─ BodyTooLarge 413
 │   └─ NeverFits 413
 ├─ QueueFull 429
 │   └─ GaveWay 429
 ├─ TooMuchHeld 429
 ├─ ShareUsed 429             of what all share one caller uses its part (`fair_share.py`)
 ├─ DeadlinePassed 504
 │   └─ DeadlineTooNear 504
 ├─ AnswerTimeout 504         an answer did not come within `answer_s`, or `stall_s`
 ├─ UpstreamFailed 502        the engine answered, but not with an answer
 ├─ CallBreaksEngines 502     engines fail at the call, and serve others
 ├─ Unavailable 503
 │   ├─ NoInstance 503
 │   ├─ WaitedTooLong 503
 │   ├─ RequestInFlight 503
 │   │   └─ RequestIdTaken 503
 │   └─ UpstreamUnreachable 503
 ├─ MessageTooLarge           a message is over the bus's limit
 ├─ TopicMissing              the bus has no such topic
 └─ SetupError                a command cannot start; the message says what to do
     └─ InvalidFile           a file does not hold what it should; says where and what
"""

from typing import Literal

from kairos.core.rate_limits import RateLimits


class KairosError(Exception):
    """Base of all expected failures.

    `status` is the HTTP status the gateway answers with, `code` the machine-readable reason in the
    body, `param` the field of the request that is wrong, `retry_after_s` the Retry-After header
    where trying again makes sense: decided here, so that no layer maps errors twice. `retries`
    False: clients are asked not to try again by themselves, as OpenAI's and Anthropic's SDKs do
    at 408, 409, 429 and 5xx, and Claude Code at 401 for minutes.
    """

    status = 500
    code = "internal_error"
    param: str | None = None
    retry_after_s: int | None = None
    retries = True
    allowed: str | None = None  # methods of the route, where another one is refused (405)
    is_final = False  # it was asked for again for as long as that makes sense
    limits: RateLimits | None = None  # of who asked, where they are known


class InvalidRequest(KairosError):
    """The client sent something we can never serve; retrying is pointless."""

    status = 400
    code = "invalid_request"
    retries = False

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class Unauthorized(InvalidRequest):
    """No API key was given, or one that is unknown or has expired."""

    status = 401
    code = "invalid_api_key"


class ModelNotFound(InvalidRequest):
    """No instance has ever served this model."""

    status = 404
    code = "model_not_found"

    def __init__(self, model: str, served: list[str]) -> None:
        # The name may be as long as a body.
        what = f"the model '{model[:100]}'"
        named = f"; served: {', '.join(served)}" if served else ""
        super().__init__(f"{what} does not exist here{named}")


class WorkflowNotFound(InvalidRequest):
    """The tenant has no such workflow, or it ended so long ago that it was forgotten."""

    status = 404
    code = "workflow_not_found"

    def __init__(self, workflow_id: str) -> None:
        super().__init__(
            f"the workflow '{workflow_id[:128]}' is not known here: it has made no call, or others "
            "that ended after it have taken its place"
        )


class WorkflowCancelled(InvalidRequest):
    """The call's workflow was cancelled. Later calls of it are refused, too."""

    status = 410
    code = "workflow_cancelled"

    def __init__(self) -> None:
        super().__init__("the call's workflow has been cancelled")


class BudgetExceeded(InvalidRequest):
    """The call's workflow has used up its budget of calls, tokens or time.

    The status is 403, not 429: OpenAI's clients try 429 again, and waiting brings no budget back.
    """

    status = 403

    def __init__(self, what: Literal["calls", "tokens", "time"], used: str) -> None:
        super().__init__(f"the workflow's budget of {what} does not allow the call: it {used}")
        self.code = f"budget_{what}"


class BodyTooSlow(InvalidRequest):
    """The request's body stopped coming, or dripped in."""

    status = 408
    code = "body_timeout"
    retries = True

    def __init__(self, silence_s: float, bytes_per_s: int | None = None) -> None:
        drip = f", or less than {bytes_per_s} bytes a second for longer" if bytes_per_s else ""
        super().__init__(f"nothing came of the request body for {silence_s:g} s{drip}")


class BodyTooLarge(InvalidRequest):
    """The request's body is larger than `max_body_bytes`."""

    status = 413
    code = "body_too_large"

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(f"the request body is larger than the limit of {limit_bytes} bytes")


class NeverFits(InvalidRequest):
    """The prompt alone needs more KV memory than any instance has, even when idle."""

    status = 413
    code = "prompt_too_large"

    def __init__(self, request_id: str, prompt_tokens: int, kv_tokens: int) -> None:
        super().__init__(
            f"the prompt of request {request_id} needs at least {prompt_tokens} KV tokens; "
            f"the largest instance holds {kv_tokens}"
        )


class QueueFull(KairosError):
    """`max_waiting` requests wait already. `Retry-After` says when to try again."""

    status = 429
    code = "queue_full"

    def __init__(self, waiting: int, retry_after_s: int = 1) -> None:
        super().__init__(f"{waiting} requests are waiting already, which is the limit; try later")
        self.retry_after_s = retry_after_s


class GaveWay(QueueFull):
    """The queue is full, and a call of a workflow that has begun took its place: its own workflow
    has not begun."""

    def __init__(self, retry_after_s: int) -> None:
        KairosError.__init__(
            self,
            "the queue is full, and calls of workflows that have begun go before those that begin "
            "one; try later",
        )
        self.retry_after_s = retry_after_s


class TooMuchHeld(KairosError):
    """The bodies of all calls in flight together have reached `max_held_bytes`."""

    status = 429
    code = "too_much_held"
    retry_after_s = 1

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(f"calls in flight hold {limit_bytes} bytes, which is the limit; try later")


class DeadlinePassed(KairosError):
    """The deadline that the caller gave has passed."""

    status = 504
    code = "deadline_exceeded"

    def __init__(self) -> None:
        super().__init__("the call's deadline has passed: nobody waits for its answer any more")


class DeadlineTooNear(DeadlinePassed):
    """The call cannot be done by its deadline, so it was refused at once."""

    def __init__(self, needs_s: float) -> None:
        KairosError.__init__(
            self,
            f"the call's deadline cannot be met: it would be done in {needs_s:.3g} s at the "
            "earliest, as things stand",
        )


class AnswerTimeout(KairosError):
    """The engine was silent for as long as it may be.

    That does not condemn the engine, so the call is not made again on another one, where it would
    take as long.
    """

    status = 504
    code = "answer_timeout"
    retries = False

    def __init__(self, instance_id: str, setting: Literal["answer_s", "stall_s"], limit_s: float):
        what = "no answer" if setting == "answer_s" else "nothing of the stream"
        super().__init__(
            f"{what} came from instance {instance_id} within {limit_s:g} s ({setting}), so the "
            "call was cut off; a client that says that it waits for longer (x-kairos-deadline-ms, "
            "x-stainless-read-timeout) extends that, up to longest_answer_s"
        )


class UpstreamFailed(KairosError):
    """The engine sent no valid answer.

    `about_itself`: it cannot answer any call for now; `dropped`: it had taken the call, and broke
    the connection; `by_instance` False: the failure says nothing about how well the engine is.
    """

    status = 502
    code = "upstream_failed"
    about_itself = dropped = False
    by_instance = True


class CallBreaksEngines(KairosError):
    """Engines that serve other calls failed at this one, or at one with the same body."""

    status = 502
    code = "call_breaks_engines"
    retries = False

    def __init__(self) -> None:
        super().__init__(
            "engines that serve other calls fail at this one: neither it nor one with the same "
            "body is tried again for ten minutes; change the request"
        )


class Unavailable(KairosError):
    """Kairos cannot serve the call for now."""

    status = 503
    code = "unavailable"
    retry_after_s = 1


class NoInstance(Unavailable):
    """No instance that serves the model is up. One may come back."""

    code = "no_instance"

    def __init__(self, model: str | None) -> None:
        what = f"the model '{model[:100]}'" if model else "this request"
        super().__init__(f"no instance that serves {what} is reachable at the moment")


class WaitedTooLong(Unavailable):
    """The request has waited in the queue for `max_wait_s`."""

    code = "waited_too_long"

    def __init__(self) -> None:
        super().__init__("the request has waited as long as it may (max_wait_s): too much load")


class RequestInFlight(Unavailable):
    """A call with the same id is in flight. It must end first."""

    code = "request_in_flight"

    def __init__(self, request_id: str) -> None:
        super().__init__(f"a request with the id {request_id} is in flight already")


class RequestIdTaken(RequestInFlight):
    """A call of another tenant with the same id is in flight: this one needs another id."""

    code = "request_id_taken"


class UpstreamUnreachable(Unavailable):
    """The chosen instance could not be reached, or went away before it answered."""

    code = "upstream_unreachable"
    by_instance = True

    def __init__(
        self, instance_id: str, cause: str, *, refused: bool = False, dropped: bool = False
    ) -> None:
        """`refused`: nothing listens there; `dropped`: it had the call, and hung up."""
        what = "broke the connection" if dropped else "could not be reached"
        super().__init__(f"instance {instance_id} {what} ({cause})")
        self.instance_id = instance_id
        self.cause = cause
        self.refused, self.dropped = refused, dropped
        self.about_itself = not dropped


class MessageTooLarge(KairosError):
    def __init__(self, topic: str, size_bytes: int, limit_bytes: int) -> None:
        super().__init__(
            f"a message of {size_bytes} bytes for {topic} is over the bus's limit of {limit_bytes}"
        )


class TopicMissing(KairosError):
    def __init__(self, topic: str, reason: str) -> None:
        super().__init__(
            f"the topic '{topic[:249]}' cannot be used ({reason}); a Kairos process creates the "
            "topics it needs when it starts, any other is yours to create with kafka-topics.sh"
        )


class SetupError(KairosError):
    """A command cannot start. The message says what is missing and how to get it."""


class InvalidFile(SetupError):
    """A file does not hold what it should. `line` counts from 1."""

    def __init__(self, path: object, problem: str, *, line: int | None = None) -> None:
        where = f"{path}:{line}" if line else f"{path}"
        super().__init__(f"{where}: {problem}")

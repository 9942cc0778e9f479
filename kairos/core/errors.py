"""All errors that a caller should know about.

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
 ├─ ShareUsed 429             the caller's share is used up (`fair_share.py`)
 ├─ QuotaExceeded 429
 ├─ CallerBreaksEngines 429
 ├─ DeadlinePassed 504
 │   └─ DeadlineTooNear 504
 ├─ AnswerTimeout 504         an answer did not come within `answer_s`, or `stall_s`
 ├─ UpstreamFailed 502        the engine answered, but not with an answer
 ├─ CallBreaksEngines 502     engines fail on this call and serve others
 ├─ Unavailable 503
 │   ├─ NoInstance 503
 │   ├─ WaitedTooLong 503
 │   ├─ RequestInFlight 503
 │   │   └─ RequestIdTaken 503
 │   └─ UpstreamUnreachable 503
 ├─ MessageTooLarge           a message exceeds the bus's limit
 ├─ TopicMissing              the bus has no such topic
 └─ SetupError                a command cannot start; the message says what to do
     └─ InvalidFile           a file has invalid content; the message says where and what
"""

from typing import Literal

from kairos.core.entitlements import Quota, RateLimits


class KairosError(Exception):
    """Base of all expected failures.

    `status` is the HTTP status of the gateway's answer, `code` the machine-readable reason in its
    body, `param` the invalid field of the request, `retry_after_s` the Retry-After header if a
    retry makes sense: decided here, so that no layer maps errors twice. With `retries` False,
    clients are asked not to retry by themselves, as OpenAI's and Anthropic's SDKs do at 408, 409,
    429 and 5xx, and Claude Code at 401 for minutes.
    """

    status = 500
    code = "internal_error"
    param: str | None = None
    retry_after_s: int | None = None
    retries = True
    allowed: str | None = None  # allowed methods of the route, if another one is refused (405)
    is_final = False  # retries are exhausted
    limits: RateLimits | None = None  # the caller's remaining quotas, if known
    says = ""  # the message, where it is always the same

    def __init__(self, message: str | None = None) -> None:
        super().__init__(self.says if message is None else message)


class InvalidRequest(KairosError):
    """The client sent something we can never serve; retrying is pointless."""

    status = 400
    code = "invalid_request"
    retries = False

    def __init__(self, message: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class Unauthorized(InvalidRequest):
    """The API key is missing, unknown or expired."""

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
    """The tenant has no such workflow, or it ended long ago and was evicted from memory."""

    status = 404
    code = "workflow_not_found"

    def __init__(self, workflow_id: str) -> None:
        super().__init__(
            f"the workflow '{workflow_id[:128]}' is not known here: it has made no call, or it has "
            "been evicted from memory"
        )


class WorkflowCancelled(InvalidRequest):
    """The call's workflow was cancelled. Its later calls are refused, too."""

    status = 410
    code = "workflow_cancelled"
    says = "the call's workflow has been cancelled"


class BudgetExceeded(InvalidRequest):
    """The call's workflow has used up its budget of calls, tokens or time.

    The status is 403, not 429: OpenAI's clients retry 429, and waiting does not restore a budget.
    """

    status = 403

    def __init__(self, what: Literal["calls", "tokens", "time"], used: str) -> None:
        super().__init__(f"the workflow's budget of {what} does not allow the call: it {used}")
        self.code = f"budget_{what}"


class BodyTooSlow(InvalidRequest):
    """The request's body stopped arriving, or arrived too slowly."""

    status = 408
    code = "body_timeout"
    retries = True

    def __init__(self, silence_s: float, bytes_per_s: int | None = None) -> None:
        drip = f", or less than {bytes_per_s} bytes a second for longer" if bytes_per_s else ""
        super().__init__(f"nothing arrived of the request body for {silence_s:g} s{drip}")


class BodyTooLarge(InvalidRequest):
    """The request's body is larger than `max_body_bytes`."""

    status = 413
    code = "body_too_large"

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(f"the request body is larger than the limit of {limit_bytes} bytes")


class NeverFits(InvalidRequest):
    """The prompt alone needs more KV memory than any instance has, even an idle one."""

    status = 413
    code = "prompt_too_large"

    def __init__(self, request_id: str, prompt_tokens: int, kv_tokens: int) -> None:
        super().__init__(
            f"the prompt of request {request_id} needs at least {prompt_tokens} KV tokens; "
            f"the largest instance holds {kv_tokens}"
        )


class QueueFull(KairosError):
    """The queue already has `max_waiting` requests. `Retry-After` says when to retry."""

    status = 429
    code = "queue_full"

    def __init__(self, waiting: int, retry_after_s: int = 1) -> None:
        super().__init__(f"{waiting} requests are waiting already, which is the limit; try later")
        self.retry_after_s = retry_after_s


class GaveWay(QueueFull):
    """The call was evicted from the full queue for a call of a workflow that has begun.

    Its own workflow has not begun.
    """

    def __init__(self, retry_after_s: int) -> None:
        KairosError.__init__(
            self,
            "the queue is full, and calls of workflows that have begun take precedence over calls "
            "that begin one; try later",
        )
        self.retry_after_s = retry_after_s


class TooMuchHeld(KairosError):
    """The bodies of all calls in flight together have reached `max_held_bytes`."""

    status = 429
    code = "too_much_held"
    retry_after_s = 1

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(f"calls in flight hold {limit_bytes} bytes, which is the limit; try later")


class QuotaExceeded(KairosError):
    """The quota of the tenant, its app or its key is used up.

    `Retry-After` gives the seconds until more is available.
    """

    status = 429
    code = "quota_exceeded"

    def __init__(self, quota: Quota, what: str, limit: int, retry_after_s: int) -> None:
        super().__init__(
            f"{quota.whose}: the quota of {limit} {what} is used up; try again in {retry_after_s} s"
        )
        self.retry_after_s = retry_after_s


class DeadlinePassed(KairosError):
    """The deadline that the caller set has passed."""

    status = 504
    code = "deadline_exceeded"
    says = "the call's deadline has passed, so it was ended"


class DeadlineTooNear(DeadlinePassed):
    """The call cannot finish by its deadline, so it was refused at once."""

    def __init__(self, needs_s: float) -> None:
        KairosError.__init__(
            self,
            f"the call's deadline cannot be met: it would finish in {needs_s:.3g} s at the "
            "earliest under the present load",
        )


class AnswerTimeout(KairosError):
    """The engine was silent for longer than allowed.

    That does not prove the engine broken, so the call is not retried on another one, where it would
    take as long.
    """

    status = 504
    code = "answer_timeout"
    retries = False

    def __init__(self, instance_id: str, setting: Literal["answer_s", "stall_s"], limit_s: float):
        what = "no answer" if setting == "answer_s" else "nothing of the stream"
        super().__init__(
            f"{what} came from instance {instance_id} within {limit_s:g} s ({setting}), so the "
            "call was cut off; a client that declares a longer timeout (x-kairos-deadline-ms, "
            "x-stainless-read-timeout) extends the limit, up to longest_answer_s"
        )


class UpstreamFailed(KairosError):
    """The engine sent no valid answer."""

    status = 502
    code = "upstream_failed"
    # about_itself: it cannot answer any call for now; dropped: it had accepted the call, and broke
    # the connection.
    about_itself = dropped = False
    by_instance = True  # False: the failure says nothing about the engine's health


class CallBreaksEngines(KairosError):
    """Engines that serve other calls failed on this one, or on one with the same body."""

    status = 502
    code = "call_breaks_engines"
    retries = False
    says = (
        "engines that serve other calls fail on this one: neither it nor a call with the same "
        "body is tried again for ten minutes; change the request"
    )


class CallerBreaksEngines(KairosError):
    """Engines died of calls of the same agent.

    After a delay, its next call is admitted and runs alone.
    """

    status = 429
    code = "caller_breaks_engines"

    def __init__(self, retry_after_s: int) -> None:
        super().__init__(
            "engines died while serving calls of this agent: its next calls run alone, one at a "
            f"time; try again in {retry_after_s} s, and change the request"
        )
        self.retry_after_s = retry_after_s


class Unavailable(KairosError):
    """Kairos cannot serve the call for now."""

    status = 503
    code = "unavailable"
    retry_after_s = 1


class NoInstance(Unavailable):
    """All instances that serve the model are down. One may come back."""

    code = "no_instance"

    def __init__(self, model: str | None) -> None:
        what = f"the model '{model[:100]}'" if model else "this request"
        super().__init__(f"no instance that serves {what} is reachable at the moment")


class WaitedTooLong(Unavailable):
    """The request has waited in the queue for `max_wait_s`."""

    code = "waited_too_long"
    says = "the request has reached the maximum wait (max_wait_s): too much load"


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
        """Create the error.

        Args:
            instance_id: the instance.
            cause: the error of the connection.
            refused: nothing listens at its address.
            dropped: it had accepted the call, and dropped the connection.
        """
        what = "broke the connection" if dropped else "could not be reached"
        super().__init__(f"instance {instance_id} {what} ({cause})")
        self.instance_id = instance_id
        self.cause = cause
        self.refused, self.dropped = refused, dropped
        self.about_itself = not dropped


class MessageTooLarge(KairosError):
    def __init__(self, topic: str, size_bytes: int, limit_bytes: int) -> None:
        super().__init__(
            f"a message of {size_bytes} bytes for {topic} exceeds the bus's limit of {limit_bytes}"
        )


class TopicMissing(KairosError):
    def __init__(self, topic: str, reason: str) -> None:
        super().__init__(
            f"the topic '{topic[:249]}' cannot be used ({reason}); a Kairos process creates the "
            "topics it needs when it starts; create any other topic with kafka-topics.sh"
        )


class SetupError(KairosError):
    """A command cannot start. The message says what is missing and how to get it."""


class InvalidFile(SetupError):
    """A file has invalid content. `line` counts from 1."""

    def __init__(self, path: object, problem: str, *, line: int | None = None) -> None:
        where = f"{path}:{line}" if line else f"{path}"
        super().__init__(f"{where}: {problem}")

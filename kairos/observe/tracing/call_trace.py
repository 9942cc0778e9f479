"""Spans of a recorded call: the call itself, each wait in the queue, each attempt.

    POST /v1/chat/completions   server: from the call's arrival to its end
     ├─ queue                   internal: until its dispatch; again after a failed attempt
     └─ chat MODEL              client: on an instance; an engine's own spans are its children

Attempts are GenAI's inference spans, by OpenTelemetry's semantic conventions, and have the tokens,
so that a sum over spans counts each token once. Prompts and answers are not recorded.
"""

from collections.abc import Callable, Iterable, MutableMapping

from kairos.core import (
    SECOND,
    Arrived,
    Bounced,
    Cancelled,
    Dispatch,
    Event,
    FactSink,
    Failed,
    Finished,
    FirstToken,
    KairosError,
    Request,
)
from kairos.observe.tracing.trace_context import (
    TRACE_PARENT_HEADER,
    Kind,
    SpanEvent,
    TraceContext,
    TraceSpan,
    traceparent,
)

_OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/responses": "chat",
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
}
_Fields = dict[str, str | int | float | bool]


class CallTrace:
    """Trace of a call.

    Report each fact to `told` before other receivers, and each attempt to `sent`.

    At the end its spans are emitted, once.
    """

    def __init__(
        self,
        context: TraceContext,
        request: Request,
        method: str,
        path: str,
        *,
        streams: bool,
        now: Callable[[], int],
        new_id: Callable[[], str],
        emit: Callable[[Iterable[TraceSpan]], None],
    ) -> None:
        self._context, self._request = context, request
        self._method, self._path, self._streams = method, path, streams
        self._now, self._new_id, self._emit = now, new_id, emit
        self._id = new_id()
        self._waits_since: int | None = request.arrived_at
        self._dispatch: Dispatch | None = None
        self._attempt_id = ""
        self._sent_at = 0
        self._attempts = 0
        self._first_token_at: int | None = None
        self._spans: list[TraceSpan] = []
        self._is_over = False

    def record_dispatch(self, dispatch: Dispatch, headers: MutableMapping[bytes, bytes]) -> None:
        """Record that the call is sent to an instance; a prefill/decode pair is one attempt.

        In the request's `headers` the attempt becomes the parent of the engine's spans.
        """
        if self._dispatch is not None:
            return
        at = self._now()
        self._end_wait(at, dispatch)
        self._dispatch, self._sent_at, self._first_token_at = dispatch, at, None
        self._attempts += 1
        self._attempt_id = self._new_id()
        headers[TRACE_PARENT_HEADER] = traceparent(
            self._context.trace_id, self._attempt_id, is_recorded=True
        )

    def record_fact(self, event: Event, at: int) -> None:
        kind = type(event)
        if kind is FirstToken:
            self._first_token_at = at
        elif type(event) is Bounced:
            self._end_attempt(at, error=event.reason)
            self._waits_since = at
        elif type(event) is Finished:
            self._end_attempt(at, _usage(event))
            self._end_call(at)
        elif type(event) is Failed:
            self._end_attempt(at, error=event.reason)
            self._end_call(at, error=event.reason)
        elif kind is Cancelled:
            self._end_attempt(at, error="cancelled")
            self._end_call(at, error="cancelled")

    def record_refusal(self, error: Exception, at: int) -> None:
        """Record that the call was refused on arrival."""
        self._end_call(at, error=error.code if isinstance(error, KairosError) else "internal_error")

    def _end_wait(self, at: int, dispatch: Dispatch | None = None) -> None:
        if self._waits_since is None:
            return
        said: _Fields = {}
        if dispatch is not None:
            said["kairos.dispatch.reason"] = dispatch.reason
            said["kairos.queue.others_waiting"] = dispatch.waiting
            if dispatch.remaining_us is not None:
                said["kairos.workflow.expected_remaining_s"] = dispatch.remaining_us / SECOND
        self._add("queue", "internal", self._new_id(), self._waits_since, at, said)
        self._waits_since = None

    def _end_attempt(self, at: int, usage: _Fields | None = None, error: str | None = None) -> None:
        dispatch = self._dispatch
        if dispatch is None:
            return
        self._dispatch = None
        request, operation = self._request, _OPERATIONS.get(self._path)
        host, _, port = dispatch.instance_id.rpartition(":")
        said: _Fields = {
            "gen_ai.provider.name": "kairos",
            "gen_ai.request.stream": self._streams,
            "server.address": host or dispatch.instance_id,
            "kairos.attempt": self._attempts,
            "kairos.expected_cached_tokens": dispatch.cached_tokens,
            **self._names(),
            **(usage or {}),
        }
        if port.isdigit():
            said["server.port"] = int(port)
        if request.completion_limit is not None:
            said["gen_ai.request.max_tokens"] = request.completion_limit
        events: tuple[SpanEvent, ...] = ()
        if self._first_token_at is not None:
            waited_s = (self._first_token_at - self._sent_at) / SECOND
            said["gen_ai.response.time_to_first_chunk"] = waited_s
            events = (SpanEvent("first_token", self._first_token_at),)
        if operation is not None:
            said["gen_ai.operation.name"] = operation
        words = operation or self._method, request.model
        name = " ".join(each for each in words if each is not None)
        self._add(name, "client", self._attempt_id, self._sent_at, at, said, events, error)

    def _names(self) -> _Fields:
        request = self._request
        said: _Fields = {"gen_ai.conversation.id": request.workflow_id}
        if request.model is not None:
            said["gen_ai.request.model"] = request.model
        if request.agent is not None:
            said["gen_ai.agent.name"] = request.agent
        if request.app is not None:
            said["gen_ai.workflow.name"] = request.app
        return said

    def _end_call(self, at: int, error: str | None = None) -> None:
        if self._is_over:
            return
        self._is_over = True
        self._end_wait(at)
        request = self._request
        said: _Fields = {
            "http.request.method": self._method,
            "url.path": self._path,
            "kairos.request_id": request.id,
            "kairos.tenant": request.tenant,
            "kairos.service_class": request.service_class,
            "kairos.attempts": self._attempts,
            **self._names(),
        }
        name = self._method
        if self._path in _OPERATIONS:  # other paths hold ids
            name, said["http.route"] = f"{name} {self._path}", self._path
        self._add(name, "server", self._id, request.arrived_at, at, said, error=error)
        self._emit(self._spans)

    def _add(
        self,
        name: str,
        kind: Kind,
        span_id: str,
        began_at: int,
        ended_at: int,
        said: _Fields,
        events: tuple[SpanEvent, ...] = (),
        error: str | None = None,
    ) -> None:
        if error is not None:
            said["error.type"] = error
        self._spans.append(
            TraceSpan(
                name=name,
                kind=kind,
                trace_id=self._context.trace_id,
                span_id=span_id,
                parent_id=self._context.parent_id if kind == "server" else self._id,
                state=self._context.state,
                began_at=began_at,
                ended_at=ended_at,
                attributes=said,
                events=events,
                error=error,
            )
        )


def _usage(finished: Finished) -> _Fields:
    told = {
        "gen_ai.usage.input_tokens": finished.prompt_tokens,
        "gen_ai.usage.output_tokens": finished.completion_tokens,
        "gen_ai.usage.cache_read.input_tokens": finished.cached_tokens,
    }
    return {name: count for name, count in told.items() if count is not None}


class TracedFacts:
    """Fact sink of a recorded call that reports facts to its trace first.

    The decision on a fact may reach the call before `feed` returns.
    """

    def __init__(self, facts: FactSink, trace: CallTrace) -> None:
        self._facts, self._trace = facts, trace

    def now(self) -> int:
        return self._facts.now()

    def feed(self, event: Event) -> None:
        """Report a fact. Raises KairosError: the arriving request is refused."""
        self._trace.record_fact(event, self._facts.now())
        try:
            self._facts.feed(event)
        except Exception as error:
            if type(event) is Arrived:
                self._trace.record_refusal(error, self._facts.now())
            raise

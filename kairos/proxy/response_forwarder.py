"""Forwarding of an engine's answer to the client, and the outcome of the call.

`forwarder` chooses by the answer's status and content type: JSON as a whole, an event stream as it
arrives, an engine's error held back while another instance may answer better.
"""

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from kairos.core import (
    Event,
    Failed,
    Finished,
    FirstToken,
    KairosError,
    UpstreamFailed,
    UpstreamUnreachable,
)
from kairos.proxy.engine_answer import EngineAnswer
from kairos.proxy.sse import SseReader, Usage, begin_well, usage_of
from kairos.request import MAX_ANSWER_BYTES, ClientResponse

if TYPE_CHECKING:
    from kairos.proxy.call import Call

InstanceError = UpstreamFailed | UpstreamUnreachable  # it is the instance's fault
OnTrouble = Callable[[UpstreamUnreachable], None]


def trouble(error: InstanceError, instance_id: str) -> UpstreamUnreachable:
    """Return the failure as a reason to probe the instance."""
    if isinstance(error, UpstreamUnreachable):
        return error
    return UpstreamUnreachable(instance_id, error.code)


class Owner(Protocol):
    wants_answer: bool

    def counted(self, prompt_tokens: int) -> None:
        """Take the true number of the prompt's tokens."""

    def answered(self, answer: bytes | bytearray, *, streamed: bool) -> None:
        """Take the engine's answer, before the client has all of it.

        Only if `wants_answer`, and only answers up to `MAX_ANSWER_BYTES`.
        """

    def ended(self, error: Exception | None) -> None:
        """Note the end of the call.

        With an error, the client has not been told of it yet; without, the answer is complete or
        the client has left.
        """


ERROR_IN_STREAM = "engine reported an error in its stream"
_USAGE_LIMIT_BYTES = 8 << 20  # answers larger than this are forwarded without looking for usage


class StatusRule(NamedTuple):
    """Meaning of an answer's statuses, also for the reference documentation."""

    statuses: tuple[int, ...]
    meaning: str
    then: str


_GETS_LESS = "elsewhere; the engine gets less until it serves again"
_KEY_REFUSED = StatusRule(
    (401, 403),
    "it refuses the key that Kairos shows it",
    f"{_GETS_LESS}; where all refuse: 502 `engine_refuses_key`",
)
_TOO_MUCH = StatusRule((402, 408, 429, 503, 529), "it has too much to do, for now", _GETS_LESS)
_FAILED = StatusRule((500, 502, 504), "it failed at the call", "elsewhere; its circuit may open")
_NOT_THERE = StatusRule(
    (404, 405, 501), "it has no such model, route or object", "elsewhere; it keeps its other calls"
)
STATUS_RULES = (_KEY_REFUSED, _TOO_MUCH, _FAILED, _NOT_THERE)
ABOUT_CALL = StatusRule((), "any other status is about the call", "the client's to know, as it is")

_ABOUT_ITSELF = {*_KEY_REFUSED.statuses, *_TOO_MUCH.statuses}
INSTANCE_FAILED = _ABOUT_ITSELF | {*_FAILED.statuses}
# What another instance may well answer better; any other status is the client's to know.
BETTER_ELSEWHERE = INSTANCE_FAILED | {*_NOT_THERE.statuses}
# As FastAPI (vLLM, SGLang), llama.cpp, Go, aiohttp and nginx word it.
_UNKNOWN_PATH = re.compile(
    rb'"detail"\s?:\s?"(?:Not Found|Method Not Allowed)"|File Not Found|\A404 page not found'
    rb"|\A40[45]: |<title>40[45] "
)
_LOOK_BYTES = 500
ERROR_BYTES = 1 << 16  # of an engine's error, kept in case nothing better comes


class EngineError(UpstreamFailed):
    """The engine's own error, before the client has received anything.

    In a stream it may come with status 200.
    """

    def __init__(
        self, instance_id: str, status: int, headers: list[tuple[bytes, bytes]], body: bytes
    ) -> None:
        super().__init__(f"instance {instance_id} answered with an error of its own ({status})")
        self.answer, self.instance_id = (status, headers, body), instance_id
        self.about_itself = status in _ABOUT_ITSELF
        self.by_instance = status not in _NOT_THERE.statuses
        self.is_for_client = status not in _KEY_REFUSED.statuses
        if not self.is_for_client:
            self.code = "engine_refuses_key"
            problem = (
                f"instance {instance_id} refuses the key that Kairos shows it ({status}): the "
                "`api_key` or `api_key_env` of its [[engine]] must be corrected"
            )
            self.args = (problem,)

    def lacks_route(self) -> bool:
        """Return whether the engine answered as its web framework does for an unknown path."""
        status, _, body = self.answer
        return status in (404, 405) and _UNKNOWN_PATH.search(body[:_LOOK_BYTES]) is not None


class RouteNotServed(KairosError):
    """No engine of the model has the route: another version of it may, or another kind."""

    status = 404
    code = "route_not_served"
    retries = False

    def __init__(self, path: str, instance_id: str) -> None:
        super().__init__(
            f"no engine that could take the call has {path} (instance {instance_id} answers as for "
            "an unknown path): use an engine, or a version of it, that serves it; Kairos does not "
            "translate to another API"
        )


class ResponseForwarder:
    """Forwarder of one engine's answer to a call, as it arrives.

    `came` and `ended` may raise:
        EngineError: The engine reports an error; only where the call `tries_again`.
        UpstreamFailed: The answer is malformed, or cut off.
    """

    settled: Event | None = None
    """Outcome of the call once its stream has ended: a client may leave then, before the engine
    closes it."""

    def __init__(self, call: "Call", answer: EngineAnswer) -> None:
        """Create it. The status and headers of `answer` have arrived."""
        self._call, self._answer, self._response = call, answer, call.response

    def came(self, data: bytes) -> None:
        """Forward a part of the body."""
        raise NotImplementedError

    def ended(self) -> Event:
        """Finish the answer; return Finished or Failed."""
        raise NotImplementedError

    def _headers(self) -> list[tuple[bytes, bytes]]:
        return self._call.engine.client.passed_headers.to_client(self._answer.headers)

    def _start(self) -> None:
        """Start the client's answer, unless it has begun."""
        if not self._response.started:
            self._response.start(self._answer.status, self._headers())

    def _start_stream(self) -> None:
        self._start()
        self._call.sink.feed(FirstToken(self._response.request_id))

    def _write(self, data: bytes) -> None:
        if not self._response.write(data, more=True):
            self._answer.pause()

    def _error_of_engine(self, said: bytes) -> EngineError:
        instance_id, said = self._call.where, said[:ERROR_BYTES]
        return EngineError(instance_id, self._answer.status, self._headers(), said)

    def _outcome(self, usage: Usage | None) -> Event:
        status, request_id = self._answer.status, self._response.request_id
        if status >= 400:
            by_instance = status in INSTANCE_FAILED
            return Failed(request_id, f"engine answered {status}", by_instance=by_instance)
        if usage is None:
            return Finished(request_id)
        if usage.prompt is not None:
            self._call.owner.counted(usage.prompt)
        return Finished(request_id, usage.prompt, usage.completion, usage.cached)


class PassedAnswer(ResponseForwarder):
    """Forwarder of answers that are neither JSON nor a stream, as they arrive."""

    def came(self, data: bytes) -> None:
        self._answer.progressed()
        self._start()
        self._write(data)

    def ended(self) -> Event:
        self._start()
        self._response.write(b"", more=False)
        return self._outcome(None)


class JsonAnswer(ResponseForwarder):
    """Forwarder of JSON answers as a whole, with their length, so that usage can be read.

    Very large ones are forwarded as they arrive.
    """

    _parts: bytes | bytearray = b""

    def came(self, data: bytes) -> None:
        self._answer.progressed()
        if self._response.started:
            self._write(data)
            return
        if not self._parts:
            self._parts = data
            return
        if not isinstance(self._parts, bytearray):
            self._parts = bytearray(self._parts)
        self._parts += data
        if len(self._parts) > _USAGE_LIMIT_BYTES:
            self._start()
            self._write(bytes(self._parts))

    def ended(self) -> Event:
        status, owner = self._answer.status, self._call.owner
        if self._response.started:
            self._response.write(b"", more=False)
            return self._outcome(None)
        answer = bytes(self._parts)
        if status == 200 and not _is_json(answer):
            raise UpstreamFailed(f"the answer of instance {self._call.where} is not JSON")
        length = (b"content-length", b"%d" % len(answer))
        self._response.start(status, [*self._headers(), length])
        if status == 200 and owner.wants_answer:
            owner.answered(answer, streamed=False)
        self._response.write(answer, more=False)
        return self._outcome(usage_of(answer))


class ErrorAnswer(ResponseForwarder):
    """Collector of an engine's error, which may never reach the client."""

    _said = b""

    def came(self, data: bytes) -> None:
        self._answer.progressed()
        self._said += data
        if len(self._said) >= ERROR_BYTES:
            self.ended()

    def ended(self) -> Event:
        raise self._error_of_engine(self._said)


class UnreadStreamAnswer(PassedAnswer):
    """Forwarder of a stream whose end and errors are not known."""

    def came(self, data: bytes) -> None:
        if not self._response.started:
            self._start_stream()
        super().came(data)


class StreamAnswer(ResponseForwarder):
    """Forwarder of an event stream: it starts the client's answer with the first event.

    Complete events are forwarded in the callback that brings them.
    """

    _first = b""  # what came before it was begun
    _last = b""  # what goes out with the end, which is here too

    def __init__(self, call: "Call", answer: EngineAnswer) -> None:
        """Create it, and register the stream while it runs."""
        super().__init__(call, answer)
        keep_bytes = MAX_ANSWER_BYTES if call.owner.wants_answer else 0
        self._reader = SseReader(drop_usage_chunk=call.body.usage_added, keep_bytes=keep_bytes)
        call.engine.calls.streams[call.response.request_id] = self._reader

    def came(self, data: bytes) -> None:
        reader = self._reader
        if reader.error is not None and not self._response.started:
            self._first += data
            if len(self._first) >= ERROR_BYTES:
                raise self._error_of_engine(self._first)
            return
        events = reader.events
        forward = reader.feed(data)
        if reader.events > events or reader.done:
            self._answer.progressed()
        if self._response.started:
            if reader.done or reader.error is not None:
                self._settle()
            if forward:
                self._send(forward)
            return
        is_held_back = reader.error is not None and self._call.tries_again
        if is_held_back or not (reader.events or forward):
            self._first += data
            return
        self._begin(forward)

    def _begin(self, forward: bytes) -> None:
        """Start the client's answer. Before the first event, a failure can still be a plain error.

        Raises:
            UpstreamFailed: The event is not part of an answer.
        """
        if not begin_well(forward):
            raise UpstreamFailed(f"the answer of instance {self._call.where} is not a stream")
        self._first = b""
        self._start_stream()
        self._settle()
        if forward:
            self._send(forward)

    def _send(self, data: bytes) -> None:
        if self._answer.is_whole:
            self._last = data
        elif not self._response.write(data, more=True):
            self._answer.pause()

    def ended(self) -> Event:
        reader = self._reader
        if reader.error is not None and not self._response.started:
            raise self._error_of_engine(self._first)
        rest = reader.rest()
        self._settle()
        if not reader.done:
            if self._last:
                self._write(self._last)
            raise UpstreamFailed(
                f"instance {self._call.where} ended its stream before it was complete"
            )
        self._start()
        self._response.write(self._last + rest, more=False)
        return self.settled or self._outcome(None)

    def _settle(self) -> None:
        reader, owner = self._reader, self._call.owner
        if reader.error is not None:
            request_id = self._response.request_id
            self.settled = Failed(request_id, ERROR_IN_STREAM, by_instance=True)
        elif reader.done and self.settled is None:
            self.settled = self._outcome(reader.usage)
            if owner.wants_answer:
                owner.answered(reader.kept, streamed=True)


def answer_error(error: EngineError, response: ClientResponse) -> Event:
    """Send an engine's error to the client: no other instance answered better."""
    status, headers, body = error.answer
    response.start(status, [*headers, (b"content-length", b"%d" % len(body))])
    response.write(body, more=False)
    reason = ERROR_IN_STREAM if status == 200 else f"engine answered {status}"
    return Failed(response.request_id, reason, by_instance=True)


def forwarder(call: "Call", answer: EngineAnswer) -> ResponseForwarder:
    """Return the forwarder of an answer whose status and headers have arrived.

    Raises:
        UpstreamFailed: The answer is a redirect.
    """
    status, kind = answer.status, answer.content_type
    if 300 <= status < 400:
        # Neither we nor the client, who would go around the queue, should go there.
        raise UpstreamFailed(f"instance {call.where} answered {status}, a redirect")
    if status in BETTER_ELSEWHERE and call.tries_again:
        return ErrorAnswer(call, answer)
    if kind == b"application/json":
        return JsonAnswer(call, answer)
    if kind != b"text/event-stream":
        return PassedAnswer(call, answer)
    call.response.streams = True
    return (StreamAnswer if call.reads_stream else UnreadStreamAnswer)(call, answer)


def _is_json(answer: bytes) -> bool:
    """Return whether the answer looks like JSON, by its first and last character.

    Some engines write NaN, which their clients can read.
    """
    text = answer.strip()
    return text[:1] + text[-1:] in (b"{}", b"[]")

"""Forwarding of an engine's answer to the client, and the outcome of the call."""

import re
from collections.abc import Callable
from typing import NamedTuple

from kairos.core import Event, Failed, Finished, KairosError, UpstreamFailed
from kairos.proxy.engine_answer import EngineAnswer
from kairos.proxy.passed_headers import PassedHeaders
from kairos.proxy.sse import Usage, usage_of
from kairos.proxy.told import Owner
from kairos.request import Body, ClientResponse

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

    def __init__(
        self,
        instance_id: str,
        answer: EngineAnswer,
        response: ClientResponse,
        body: Body,
        feed: Callable[[Event], None],
        owner: Owner,
        passed: PassedHeaders,
    ) -> None:
        """Create it. The status and headers of `answer` have arrived."""
        self._instance_id = instance_id
        self._answer = answer
        self._response = response
        self._request_id = response.request_id
        self._body = body
        self._feed = feed
        self._owner, self._passed = owner, passed
        self.settled: Event | None = None
        """Outcome of the call once its stream has ended: a client may leave then, before the
        engine closes it."""

    def came(self, data: bytes) -> None:
        """Forward a part of the body."""
        raise NotImplementedError

    def ended(self) -> Event:
        """Finish the answer; return Finished or Failed."""
        raise NotImplementedError

    def _headers(self) -> list[tuple[bytes, bytes]]:
        return self._passed.to_client(self._answer.headers)

    def _write(self, data: bytes) -> None:
        if not self._response.write(data, more=True):
            self._answer.pause()

    def _outcome(self, usage: Usage | None) -> Event:
        status = self._answer.status
        if status >= 400:
            reason, by_instance = f"engine answered {status}", status in INSTANCE_FAILED
            return Failed(self._request_id, reason, by_instance=by_instance)
        if usage is None:
            return Finished(self._request_id)
        if usage.prompt is not None:
            self._owner.counted(usage.prompt)
        return Finished(self._request_id, usage.prompt, usage.completion, usage.cached)


class PassedAnswer(ResponseForwarder):
    """Forwarder of answers that are neither JSON nor a stream, as they arrive."""

    def came(self, data: bytes) -> None:
        self._answer.progressed()
        if not self._response.started:
            self._response.start(self._answer.status, self._headers())
        self._write(data)

    def ended(self) -> Event:
        if not self._response.started:
            self._response.start(self._answer.status, self._headers())
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
            self._response.start(self._answer.status, self._headers())
            self._write(bytes(self._parts))

    def ended(self) -> Event:
        status = self._answer.status
        if self._response.started:
            self._response.write(b"", more=False)
            return self._outcome(None)
        answer = bytes(self._parts)
        if status == 200 and not _is_json(answer):
            raise UpstreamFailed(f"the answer of instance {self._instance_id} is not JSON")
        headers = self._headers()
        headers.append((b"content-length", b"%d" % len(answer)))
        self._response.start(status, headers)
        if status == 200 and self._owner.wants_answer:
            self._owner.answered(answer, streamed=False)
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
        said = self._said[:ERROR_BYTES]
        raise EngineError(self._instance_id, self._answer.status, self._headers(), said)


def answer_error(error: EngineError, response: ClientResponse) -> Event:
    """Send an engine's error to the client: no other instance answered better."""
    status, headers, body = error.answer
    response.start(status, [*headers, (b"content-length", b"%d" % len(body))])
    response.write(body, more=False)
    reason = ERROR_IN_STREAM if status == 200 else f"engine answered {status}"
    return Failed(response.request_id, reason, by_instance=True)


def _is_json(answer: bytes) -> bool:
    """Return whether the answer looks like JSON, by its first and last character.

    Some engines write NaN, which their clients can read.
    """
    text = answer.strip()
    return text[:1] + text[-1:] in (b"{}", b"[]")

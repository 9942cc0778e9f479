"""Make the client's answer from an engine's, and decide how the call ends with it."""

import re
from collections.abc import Callable
from typing import NamedTuple

from kairos.core.errors import KairosError, UpstreamFailed
from kairos.core.events import Event, Failed, Finished
from kairos.proxy.engine_answer import EngineAnswer
from kairos.proxy.passed_headers import PassedHeaders
from kairos.proxy.sse import Usage, usage_of
from kairos.proxy.told import Owner
from kairos.request.body import Body
from kairos.request.client_response import ClientResponse

ERROR_IN_STREAM = "engine reported an error in its stream"
_USAGE_LIMIT_BYTES = 8 << 20  # answers larger than this are forwarded without looking for usage


class StatusRule(NamedTuple):
    """Describe what statuses of an engine's answer mean, for the reference too."""

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
    """That it cannot answer, in the engine's own words, of which the client has heard nothing. In a
    stream they may come with status 200."""

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
                "`api_key` or `api_key_env` of its [[engine]] must be set anew"
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
    """Forwards what one engine answers to a call, as it comes.

    `came` and `ended` may raise:
        EngineError: the engine says that it cannot answer; only where the call `tries_again`.
        UpstreamFailed: it is no answer, or ends before its end.
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
        """`answer`: its status and headers are here."""
        self._instance_id = instance_id
        self._answer = answer
        self._response = response
        self._request_id = response.request_id
        self._body = body
        self._feed = feed
        self._owner, self._passed = owner, passed
        self.settled: Event | None = None
        """What becomes of the call, as soon as its stream has said so: there clients may leave,
        without waiting for the engine to end it."""

    def came(self, data: bytes) -> None:
        """A part of the body, to be forwarded."""
        raise NotImplementedError

    def ended(self) -> Event:
        """It is whole. Returns Finished or Failed."""
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
    """What is neither JSON nor a stream is passed on as it comes."""

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
    """Forwarded whole, so that it has a length and its usage can be read; one that is very large,
    as it comes."""

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
            raise UpstreamFailed(f"what instance {self._instance_id} answered is no JSON")
        headers = self._headers()
        headers.append((b"content-length", b"%d" % len(answer)))
        self._response.start(status, headers)
        if status == 200 and self._owner.wants_answer:
            self._owner.answered(answer, streamed=False)
        self._response.write(answer, more=False)
        return self._outcome(usage_of(answer))


class ErrorAnswer(ResponseForwarder):
    """An engine's error, which may never reach the client."""

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
    """An engine's error becomes the client's: nothing better came."""
    status, headers, body = error.answer
    response.start(status, [*headers, (b"content-length", b"%d" % len(body))])
    response.write(body, more=False)
    reason = ERROR_IN_STREAM if status == 200 else f"engine answered {status}"
    return Failed(response.request_id, reason, by_instance=True)


def _is_json(answer: bytes) -> bool:
    """By its ends only: some engines write NaN, which their clients know to read."""
    text = answer.strip()
    return text[:1] + text[-1:] in (b"{}", b"[]")

"""LLM calls over HTTP, to a gateway or to any server that speaks OpenAI's protocol.

Errors say whether a retry makes sense. A streamed chat completion becomes a whole answer.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from typing import Any, Self
from urllib.parse import quote

import aiohttp
import msgspec

from kairos.core import (
    DeadlinePassed,
    InvalidRequest,
    KairosError,
    NoInstance,
    PlannedWork,
    QueueFull,
    RequestInFlight,
    SetupError,
    TooMuchHeld,
    Unavailable,
    UpstreamFailed,
    UpstreamUnreachable,
    WaitedTooLong,
)
from kairos.proxy.llm.patience import Patience
from kairos.request import decode_foreign

_MESSAGE = 500  # characters
# A stream has begun with 200, so the status of an error in it follows from Kairos's error code.
_STATUS = {
    each.code: each.status
    for each in (
        *(QueueFull, TooMuchHeld, DeadlinePassed, NoInstance, WaitedTooLong, RequestInFlight),
        *(Unavailable, UpstreamUnreachable),
    )
}
_INSUFFICIENT_QUOTA = "insufficient_quota"  # OpenAI's 429 that no waiting ends
_BUDGET, _SPENT = "budget_", 403
_RETRY_AFTER_MAX_S = 30
_CONNECT_S = 10
ANSWER_BYTES = 8 << 20
_SHOWN = 200  # bytes of an answer that cannot be read
_MESSAGE_LIMIT = 300  # characters of a server's error message that are passed on
Hear = Callable[[str], None]  # is told each piece of the answer's text
Listen = Callable[[], Hear]
_DATA = b"data:"


class ConnectionLost(Unavailable):
    """The server had the request, and closed the connection before it answered."""


class RefusedForNow(Unavailable):
    """The server refuses the request for now (429, 503)."""


class HttpLLM:
    """Client for `POST {base_url}/chat/completions`; an async context manager.

    `model` is used where a body names none. Refusals for now (429, 503), and connections that break
    before the answer, are retried with `patience`.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        *,
        model: str | None = None,
        timeout_s: float = 600,
        patience: Patience | None = None,
    ) -> None:
        if not base_url.startswith(("http://", "https://")):
            raise SetupError(
                f"'{base_url}' is not a base URL: it must begin with http:// or https://"
            )
        self._base_url = base_url.rstrip("/")
        self._url = self._base_url + "/chat/completions"
        self._model = {"model": model} if model is not None else {}
        self._headers = headers_with(api_key)
        self._timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=_CONNECT_S)
        self.patience = patience or Patience()

    def use_model(self, model: str | None) -> None:
        """Set the model for bodies that name none."""
        self._model = {"model": model} if model else {}

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            # How many calls are under way is the agents' matter: a pool's limit would hide a queue.
            connector=aiohttp.TCPConnector(limit=0),
            headers=self._headers,
            timeout=self._timeout,
        )
        return self

    async def __aexit__(self, *_raised: object) -> None:
        await self._session.close()

    async def complete(self, body: dict[str, Any], headers: Mapping[str, str]) -> dict[str, Any]:
        return await self.patience.until_answered(partial(self._post, body, None), headers)

    async def complete_streamed(
        self, body: dict[str, Any], headers: Mapping[str, str], listen: Listen
    ) -> dict[str, Any]:
        """Return the same answer as `complete`, and report its text as it arrives.

        `listen` is called each time an answer begins, and returns the function that receives the
        text.
        """
        asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
        return await self.patience.until_answered(partial(self._post, asked, listen), headers)

    async def models(self) -> list[str]:
        """Return the models that the server offers now.

        Raises:
            Unavailable: It cannot be reached, or it refuses for now.
            KairosError: It does not answer with a list of models.
        """
        return await ask_models(self._session, self._base_url, {})

    async def end_workflow(self, workflow_id: str) -> None:
        """Report the end of a workflow to a Kairos.

        Raises:
            KairosError: The server is not a Kairos, or cannot be reached.
        """
        url = f"{self._base_url}/workflows/{quote(workflow_id, safe='')}/end"
        await ask_json(self._session, "POST", url, None, {})

    async def declare_plan(self, app: str, plan: PlannedWork) -> None:
        """Declare to a Kairos the calls that the workflows of an app consist of.

        Raises:
            KairosError: The server is not a Kairos, or cannot be reached.
        """
        url = f"{self._base_url}/plans/{quote(app, safe='')}"
        headers = {"Content-Type": "application/json"}
        await ask_json(self._session, "PUT", url, msgspec.json.encode(plan), headers)

    async def _post(
        self, body: dict[str, Any], listen: Listen | None, headers: Mapping[str, str]
    ) -> dict[str, Any]:
        data = msgspec.json.encode({**self._model, **body})
        return await ask_json(self._session, "POST", self._url, data, headers, listen)


async def ask_json(
    session: aiohttp.ClientSession,
    method: str,
    url: str,
    data: bytes | None,
    headers: Mapping[str, str],
    listen: Listen | None = None,
) -> dict[str, Any]:
    """Return the JSON object of the answer, of up to `ANSWER_BYTES`.

    With `listen` it may come as a chat completion's stream.

    Raises:
        Unavailable: A retry makes sense.
        KairosError: A retry makes no sense.
    """
    try:
        response = await session.request(
            method, url, data=data, headers=headers, allow_redirects=False
        )
    except aiohttp.ClientConnectionError as error:
        if not isinstance(error, aiohttp.ClientConnectorError | aiohttp.ServerTimeoutError):
            raise ConnectionLost(f"{url} closed the connection without an answer") from error
        raise Unavailable(f"no connection to {url}: {error}") from error
    except (aiohttp.ClientError, TimeoutError) as error:
        raise UpstreamFailed(f"no answer from {url}: {describe_cause(error)}") from error
    async with response:
        try:
            if listen is not None and response.content_type == "text/event-stream":
                return await read_stream(response.content.iter_any(), listen(), ANSWER_BYTES)
            raw = await _read(response)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise UpstreamFailed(f"{url} broke off its answer: {describe_cause(error)}") from error
    return read_answer(response.status, raw, response.headers.get("Retry-After", ""))


async def ask_models(
    session: aiohttp.ClientSession, base_url: str, headers: Mapping[str, str]
) -> list[str]:
    """Return the models that a server offers now.

    Raises:
        Unavailable: It cannot be reached, or it refuses for now.
        KairosError: It does not answer with a list of models.
    """
    listed = await ask_json(session, "GET", base_url + "/models", None, headers)
    try:
        return [model.id for model in msgspec.convert(listed, _Models).data]
    except msgspec.ValidationError as error:
        raise UpstreamFailed(f"{base_url}/models lists no models: {error}") from error


def headers_with(api_key: str | None) -> dict[str, str]:
    """Return the headers of every call.

    Raises:
        SetupError: The key contains characters that no header may have.
    """
    headers = {"Content-Type": "application/json"}
    if api_key is not None:
        if not (api_key.isascii() and api_key.isprintable()):
            raise SetupError(
                "the API key contains characters that no header may have, such as a line break"
            )
        headers["Authorization"] = f"Bearer {api_key}"
    return headers


def describe_cause(error: Exception) -> str:
    """Return an error's type and text.

    Its `repr` may show the request's headers, and so the key.
    """
    return ": ".join(filter(None, (type(error).__name__, str(error))))


async def _read(response: aiohttp.ClientResponse) -> bytes:
    raw = bytearray()
    async for chunk in response.content.iter_any():
        raw += chunk
        if len(raw) > ANSWER_BYTES:
            raise UpstreamFailed(f"the answer exceeds {ANSWER_BYTES} bytes")
    return bytes(raw)


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


def read_answer(status: int, raw: bytes, retry_after: str) -> dict[str, Any]:
    """Parse an answer, however it was received.

    Raises:
        Unavailable: A retry makes sense (429, 503).
        KairosError: A retry makes no sense; the message quotes the server.
    """
    if status in (200, 202):
        try:
            return msgspec.json.decode(raw, type=dict[str, Any])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            begins = raw[:_SHOWN].decode(errors="replace").strip() or "(nothing)"
            raise UpstreamFailed(
                f"the answer is not a JSON object: {error}; it begins: {begins}"
            ) from error
    said = read_error(raw)
    message = f"the model's server answered {status}: {said.message[:_MESSAGE_LIMIT] or 'nothing'}"
    if is_for_now(status, said):
        refusal = RefusedForNow(message)
        if isinstance(said.code, str):
            refusal.code = said.code
        if retry_after.isascii() and retry_after.isdigit():
            refusal.retry_after_s = min(int(retry_after[:9]), _RETRY_AFTER_MAX_S)
        raise refusal
    raise (InvalidRequest if 400 <= status < 500 else UpstreamFailed)(message)


class ErrorTold(msgspec.Struct):
    """Error in the format of OpenAI's API."""

    message: str
    type: object = None
    code: object = None  # some engines tell a number, the status


class _ErrorBody(msgspec.Struct):
    error: ErrorTold


_error_body = msgspec.json.Decoder(_ErrorBody)


def read_error(body: bytes) -> ErrorTold:
    """Parse an error from any body."""
    read: _ErrorBody | None = decode_foreign(_error_body, body)
    return ErrorTold(body[:_MESSAGE].decode(errors="replace")) if read is None else read.error


def is_for_now(status: int, told: ErrorTold) -> bool:
    """Return whether a server that refused may accept the same call later."""
    return status in (429, 503) and told.code != _INSUFFICIENT_QUOTA


def refusal_error(status: int, told: ErrorTold, prefix: str = "") -> KairosError:
    """Return Unavailable if a retry makes sense, InvalidRequest if not, else UpstreamFailed."""
    kind: type[KairosError] = UpstreamFailed
    if is_for_now(status, told):
        kind = Unavailable
    elif 400 <= status < 500:
        kind = InvalidRequest
    failure = kind(prefix + (told.message[:_MESSAGE] or f"status {status}"))
    failure.status = max(400, status)
    failure.code = told.code if isinstance(told.code, str) else kind.code
    return failure


def broken_off(event: bytes) -> KairosError:
    """Return the error for an event that ended a stream."""
    told = read_error(event)
    return refusal_error(_status(told), told, "the answer broke off: ")


def _status(told: ErrorTold) -> int:
    code = told.code
    if isinstance(code, int) and 400 <= code < 600:
        return code
    if isinstance(code, str) and code.startswith(_BUDGET):
        return _SPENT
    if isinstance(code, str) and code in _STATUS:
        return _STATUS[code]
    return 400 if told.type == "invalid_request_error" else UpstreamFailed.status


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta = msgspec.field(default_factory=_Delta)
    finish_reason: str | None = None
    index: int = 0


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: dict[str, Any] | None = None
    error: msgspec.Raw = msgspec.Raw()


_chunk = msgspec.json.Decoder(_Chunk)


async def read_stream(pieces: AsyncIterator[bytes], hear: Hear, most_bytes: int) -> dict[str, Any]:
    """Read events in OpenAI's format to the end, and return the whole answer.

    Raises:
        KairosError: An event reports an error (`refusal_error`).
        UpstreamFailed: An event is malformed, the stream exceeds `most_bytes`, or is cut off.
    """
    texts: list[str] = []
    finish: str | None = None
    usage: dict[str, Any] | None = None
    async for event in _events(pieces, most_bytes):
        if event == b"[DONE]":
            break
        chunk = _decoded(event)
        usage = chunk.usage or usage
        for choice in chunk.choices:
            if choice.index == 0:
                finish = choice.finish_reason or finish
                if choice.delta.content:
                    texts.append(choice.delta.content)
                    hear(choice.delta.content)
    if finish is None:
        raise UpstreamFailed("the answer broke off")
    message = {"role": "assistant", "content": "".join(texts)}
    return {"choices": [{"message": message, "finish_reason": finish}], "usage": usage}


async def _events(pieces: AsyncIterator[bytes], most_bytes: int) -> AsyncIterator[bytes]:
    """Yield the data of each event, which is one line."""
    rest, size = b"", 0
    async for piece in pieces:
        size += len(piece)
        if size > most_bytes:
            raise UpstreamFailed(f"the answer exceeds {most_bytes} bytes")
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            if line.startswith(_DATA):
                yield line[len(_DATA) :].strip()


def _decoded(event: bytes) -> _Chunk:
    try:
        chunk = _chunk.decode(event)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UpstreamFailed(f"the model's server sent a malformed event: {error}") from error
    if bytes(chunk.error) not in (b"", b"null"):
        raise broken_off(event)
    return chunk

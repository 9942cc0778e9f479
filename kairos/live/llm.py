"""LLM calls over HTTP, to a gateway or to any server that speaks OpenAI's protocol."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from itertools import count
from types import TracebackType
from typing import Any, Self

import aiohttp
import msgspec

from kairos.errors import InvalidRequest, SetupError, Unavailable, UpstreamFailed

_ATTEMPT = "X-Kairos-Attempt"
_TRIES = 5
_RETRY_AFTER_MAX_S = 30
_CONNECT_S = 10
_ANSWER_BYTES = 8 << 20
_MESSAGE_LIMIT = 300  # characters of a server's error message that are passed on


class HttpLLM:
    """Answers chat completions by `POST {base_url}/chat/completions`; an async context manager.

    `model` is asked for where a body names none.

    What a server refuses for now (429, 503), or a connection that breaks before the answer, is
    tried again up to 4 times, after the server's Retry-After or 1 s: the same call, with
    `X-Kairos-Attempt` counted up.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        *,
        model: str | None = None,
        timeout_s: float = 600,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        if not base_url.startswith(("http://", "https://")):
            raise SetupError(f"'{base_url}' is no base URL: it must begin with http:// or https://")
        self._url = base_url.rstrip("/") + "/chat/completions"
        self._model = {"model": model} if model is not None else {}
        self._headers = {"Content-Type": "application/json"}
        if api_key is not None:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=_CONNECT_S)
        self._sleep = sleep

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            # How many calls are under way is the agents' matter: a pool's limit would hide a queue.
            connector=aiohttp.TCPConnector(limit=0),
            headers=self._headers,
            timeout=self._timeout,
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._session.close()

    async def complete(self, body: dict[str, Any], headers: Mapping[str, str]) -> dict[str, Any]:
        first = int(headers.get(_ATTEMPT, "1"))
        for attempt in count(first):
            try:
                return await self._post(body, {**headers, _ATTEMPT: str(attempt)})
            except Unavailable as error:
                if attempt == first + _TRIES - 1:
                    raise
                await self._sleep(error.retry_after_s or 0)
        raise AssertionError("unreachable")

    async def _post(self, body: dict[str, Any], headers: Mapping[str, str]) -> dict[str, Any]:
        """Raises Unavailable where trying again makes sense, another KairosError where not."""
        data = msgspec.json.encode({**self._model, **body})
        try:
            response = await self._session.post(
                self._url, data=data, headers=headers, allow_redirects=False
            )
        except aiohttp.ClientConnectionError as error:
            raise Unavailable(f"no connection to {self._url}: {error}") from error
        except (aiohttp.ClientError, TimeoutError) as error:
            raise UpstreamFailed(f"no answer from {self._url}: {error!r}") from error
        async with response:
            try:
                raw = await _read(response)
            except (aiohttp.ClientError, TimeoutError) as error:
                raise UpstreamFailed(f"{self._url} broke off its answer: {error!r}") from error
        return _answer(response, raw)


async def _read(response: aiohttp.ClientResponse) -> bytes:
    raw = bytearray()
    async for chunk in response.content.iter_any():
        raw += chunk
        if len(raw) > _ANSWER_BYTES:
            raise UpstreamFailed(f"the answer is over {_ANSWER_BYTES} bytes")
    return bytes(raw)


class _Error(msgspec.Struct):
    message: str


class _ErrorBody(msgspec.Struct):
    error: _Error


def _answer(response: aiohttp.ClientResponse, raw: bytes) -> dict[str, Any]:
    status = response.status
    if status == 200:
        try:
            return msgspec.json.decode(raw, type=dict[str, Any])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise UpstreamFailed(f"the answer is no JSON object: {error}") from error
    message = f"the model's server answered {status}: {_error_message(raw)}"
    if status in (429, 503):
        refusal = Unavailable(message)
        after = response.headers.get("Retry-After", "")
        if after.isascii() and after.isdigit():
            refusal.retry_after_s = min(int(after[:9]), _RETRY_AFTER_MAX_S)
        raise refusal
    raise (InvalidRequest if 400 <= status < 500 else UpstreamFailed)(message)


def _error_message(raw: bytes) -> str:
    try:
        return msgspec.json.decode(raw, type=_ErrorBody).error.message[:_MESSAGE_LIMIT]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return raw[:_MESSAGE_LIMIT].decode(errors="replace") or "nothing"

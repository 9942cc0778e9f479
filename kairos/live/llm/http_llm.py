"""LLM calls over HTTP, to a gateway or to any server that speaks OpenAI's protocol."""

from collections.abc import Mapping
from functools import partial
from typing import Any, Self
from urllib.parse import quote

import aiohttp
import msgspec

from kairos.errors import InvalidRequest, SetupError, Unavailable, UpstreamFailed
from kairos.live.llm.patience import Patience

_RETRY_AFTER_MAX_S = 30
_CONNECT_S = 10
ANSWER_BYTES = 8 << 20
_MESSAGE_LIMIT = 300  # characters of a server's error message that are passed on


class HttpLLM:
    """Answers chat completions by `POST {base_url}/chat/completions`; an async context manager.

    `model` is asked for where a body names none. What a server refuses for now (429, 503), and a
    connection that breaks before the answer, is tried again with `patience`.
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
            raise SetupError(f"'{base_url}' is no base URL: it must begin with http:// or https://")
        self._base_url = base_url.rstrip("/")
        self._url = self._base_url + "/chat/completions"
        self._model = {"model": model} if model is not None else {}
        self._headers = headers_with(api_key)
        self._timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=_CONNECT_S)
        self._patience = patience or Patience()

    def use_model(self, model: str | None) -> None:
        """Asked for from now on where a body names none."""
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
        return await self._patience.until_answered(partial(self._post, body), headers)

    async def models(self) -> list[str]:
        """The models that the server offers now.

        Raises:
            Unavailable: it cannot be reached, or it refuses for now.
            KairosError: it does not answer with a list of models.
        """
        listed = await self._request("GET", self._base_url + "/models", None, {})
        try:
            return [model.id for model in msgspec.convert(listed, _Models).data]
        except msgspec.ValidationError as error:
            raise UpstreamFailed(f"{self._base_url}/models lists no models: {error}") from error

    async def end_workflow(self, workflow_id: str) -> None:
        """Tell a Kairos that nothing of a workflow follows any more.

        Raises:
            KairosError: it is none, or cannot be reached.
        """
        url = f"{self._base_url}/workflows/{quote(workflow_id, safe='')}/end"
        await self._request("POST", url, None, {})

    async def _post(self, body: dict[str, Any], headers: Mapping[str, str]) -> dict[str, Any]:
        data = msgspec.json.encode({**self._model, **body})
        return await self._request("POST", self._url, data, headers)

    async def _request(
        self, method: str, url: str, data: bytes | None, headers: Mapping[str, str]
    ) -> dict[str, Any]:
        """Raises Unavailable where trying again makes sense, another KairosError where not."""
        try:
            response = await self._session.request(
                method, url, data=data, headers=headers, allow_redirects=False
            )
        except aiohttp.ClientConnectionError as error:
            raise Unavailable(f"no connection to {url}: {error}") from error
        except (aiohttp.ClientError, TimeoutError) as error:
            raise UpstreamFailed(f"no answer from {url}: {cause(error)}") from error
        async with response:
            try:
                raw = await _read(response)
            except (aiohttp.ClientError, TimeoutError) as error:
                raise UpstreamFailed(f"{url} broke off its answer: {cause(error)}") from error
        return read_answer(response.status, raw, response.headers.get("Retry-After", ""))


def headers_with(api_key: str | None) -> dict[str, str]:
    """Of every call.

    Raises:
        SetupError: there is no such key.
    """
    headers = {"Content-Type": "application/json"}
    if api_key is not None:
        if not (api_key.isascii() and api_key.isprintable()):
            raise SetupError("the API key holds what no header may, such as the end of a line")
        headers["Authorization"] = f"Bearer {api_key}"
    return headers


def cause(error: Exception) -> str:
    """What happened. Not its `repr`, which may show the request's headers, and so the key."""
    return ": ".join(filter(None, (type(error).__name__, str(error))))


async def _read(response: aiohttp.ClientResponse) -> bytes:
    raw = bytearray()
    async for chunk in response.content.iter_any():
        raw += chunk
        if len(raw) > ANSWER_BYTES:
            raise UpstreamFailed(f"the answer is over {ANSWER_BYTES} bytes")
    return bytes(raw)


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


class _Error(msgspec.Struct):
    message: str


class _ErrorBody(msgspec.Struct):
    error: _Error


def read_answer(status: int, raw: bytes, retry_after: str) -> dict[str, Any]:
    """What a server answered, whichever way its answer came.

    Raises:
        Unavailable: trying again makes sense (429, 503).
        KairosError: it does not; the message says what the server said.
    """
    if status in (200, 202):
        try:
            return msgspec.json.decode(raw, type=dict[str, Any])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise UpstreamFailed(f"the answer is no JSON object: {error}") from error
    message = f"the model's server answered {status}: {_error_message(raw)}"
    if status in (429, 503):
        refusal = Unavailable(message)
        if retry_after.isascii() and retry_after.isdigit():
            refusal.retry_after_s = min(int(retry_after[:9]), _RETRY_AFTER_MAX_S)
        raise refusal
    raise (InvalidRequest if 400 <= status < 500 else UpstreamFailed)(message)


def _error_message(raw: bytes) -> str:
    try:
        return msgspec.json.decode(raw, type=_ErrorBody).error.message[:_MESSAGE_LIMIT]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return raw[:_MESSAGE_LIMIT].decode(errors="replace") or "nothing"

"""The client of a replay: calls as an agent makes them, timed by the bytes that come back."""

import asyncio
import errno
import io
import re
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import count
from typing import Self
from urllib.parse import quote, urlsplit
from zlib import crc32

import aiohttp
import msgspec

from kairos.core import Header, KairosError, Request, SetupError
from kairos.proxy import (
    ANSWER_BYTES,
    KEEPALIVE_S,
    SseReader,
    Usage,
    describe_cause,
    headers_with,
    read_answer,
    usage_of,
)
from kairos.simulate.workload.retries import RETRIES, is_tried_again

_CONNECT_S = 10
_SILENCE_S = 900  # longer than a call may wait in a queue of Kairos's
_END_S = 30
_LARGE_BODY_BYTES = 1 << 19
# What keeps a call from leaving this machine.
_OUT_OF_ROOM = {errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS, errno.ENOMEM}
NOT_SENT = "not sent"
_URL = re.compile(r"https?://[^\s/?#]+(/[^\s?#]*)?")
_NAME_LENGTH = 128  # that a header may hold
_NO_IDENTIFIER = re.compile(r"\A[^A-Za-z0-9_]|[^A-Za-z0-9_.:@/+=-]")


class CallFailed(KairosError):
    """A call has no whole answer. `kind` is an HTTP status, or what went wrong in words."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class TryLater(CallFailed):
    """The call was refused for now, or found no connection."""

    def __init__(self, kind: str, message: str, retry_after_s: int = 1) -> None:
        super().__init__(kind, message)
        self.wait_s = retry_after_s


class ReplayedCall(msgspec.Struct, frozen=True):
    """A whole answer. The first token's instant is that of a stream's first bytes."""

    first_token_at: int | None
    usage: Usage


def server_url(url: str) -> str:
    """Return the URL without `/v1`. Raises SetupError: The URL is invalid."""
    if "@" in url:
        raise SetupError("leave credentials out of the URL; --api-key-env names the key's variable")
    if not _can_be(url):
        raise SetupError(
            f"'{url}' is not a gateway's URL: it must begin with http:// or https:// and a host, "
            "and have no ? or #"
        )
    return url.rstrip("/").removesuffix("/v1")


def _can_be(url: str) -> bool:
    try:
        parts = urlsplit(url)
        host = (parts.hostname or "").encode("idna")
        return _URL.fullmatch(url) is not None and host != b"" and parts.port != 0
    except ValueError:  # of a port, of brackets, of a name that is too long
        return False


class ReplayClient:
    """Client of one server; an async context manager. No call waits for another's connection.

    Refusals for now (408, 409, 429, 5xx) and failed connections are retried as by openai's client
    (3.x, its defaults): twice, with the same id, after the Retry-After, or a second. `retried`
    counts them by kind.
    """

    def __init__(self, server: str, api_key: str | None, now: Callable[[], int]) -> None:
        self.retried: Counter[str] = Counter()
        self._server = server
        self._url = f"{server}/v1/chat/completions"
        self._headers = headers_with(api_key)
        self._now = now
        self._tells_ends = True

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers=self._headers,
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=_CONNECT_S, sock_read=_SILENCE_S
            ),
        )
        return self

    async def __aexit__(self, *_raised: object) -> None:
        await self._session.close()

    async def chat(self, content: bytes, headers: Mapping[str, str]) -> ReplayedCall:
        """Make a call, with retries.

        Raises:
            CallFailed: No complete answer came, permanently or after all tries.
        """
        for retries in count():
            try:
                return await self._ask(content, {**headers, Header.ATTEMPT: str(retries + 1)})
            except TryLater as refusal:
                if retries == RETRIES:
                    raise
                self.retried[refusal.kind] += 1
                wait_s = refusal.wait_s
            await asyncio.sleep(wait_s)
        raise AssertionError("unreachable")

    async def _ask(self, content: bytes, headers: Mapping[str, str]) -> ReplayedCall:
        data = io.BytesIO(content) if len(content) > _LARGE_BODY_BYTES else content
        try:
            response = await self._session.post(
                self._url, data=data, headers=headers, allow_redirects=False
            )
        except TimeoutError as error:
            raise CallFailed("no answer", f"no answer: {describe_cause(error)}") from error
        except aiohttp.ClientConnectionError as error:
            if isinstance(error, aiohttp.ClientOSError) and error.errno in _OUT_OF_ROOM:
                raise CallFailed(NOT_SENT, f"this machine is out of room: {error}") from error
            raise TryLater("no connection", f"no connection: {error}") from error
        except aiohttp.ClientError as error:
            raise CallFailed("no answer", f"no answer: {describe_cause(error)}") from error
        async with response:
            try:
                if response.status == 200 and response.content_type == "text/event-stream":
                    return await self._read_stream(response.content)
                raw = await _read(response.content)
            except (aiohttp.ClientError, TimeoutError) as error:
                raise CallFailed(
                    "broken off", f"the answer broke off: {describe_cause(error)}"
                ) from error
        _check(response.status, raw, response.headers.get("Retry-After", ""))
        return ReplayedCall(None, usage_of(raw) or Usage())

    async def _read_stream(self, content: aiohttp.StreamReader) -> ReplayedCall:
        reader, first_token_at = SseReader(drop_usage_chunk=False), None
        while data := await content.readany():
            if first_token_at is None:
                first_token_at = self._now()
            reader.feed(data)
        if reader.error is not None:
            raise CallFailed("error in the stream", f"an error in the stream: {reader.error}")
        if not reader.done:
            raise CallFailed("broken off", "the stream ended before it was complete")
        return ReplayedCall(first_token_at, reader.usage or Usage())

    async def report_end(self, workflow_id: str) -> None:
        """Report the end of a workflow, once.

        A server that does not know the route gets no more.
        """
        if not self._tells_ends:
            return
        url = f"{self._server}/v1/workflows/{quote(workflow_id, safe='')}/end"
        limit = aiohttp.ClientTimeout(total=_END_S)
        try:
            async with self._session.post(url, timeout=limit, allow_redirects=False) as response:
                told = response.status < 300 or b"workflow_not_found" in await response.read()
        except (aiohttp.ClientError, TimeoutError):
            return
        self._tells_ends = told or response.status in (429, 503)


def headers_of(request: Request) -> dict[str, str]:
    """Return the headers that identify a call, as agents send them.

    A name that a header may not contain is rewritten with a checksum, so that different names stay
    different.
    """
    headers = {
        Header.REQUEST_ID: request.id,
        Header.WORKFLOW_ID: request.workflow_id,
        Header.APP: _identifier(request.app or ""),
        Header.AGENT: _identifier(request.agent or ""),
        Header.STARTED_AT: str(request.workflow_started_at),
    }
    if request.upstream is not None:
        headers[Header.UPSTREAM] = _identifier(request.upstream)
    if request.parent_ids:
        headers[Header.PARENT_ID] = ",".join(request.parent_ids)
    return headers


def _identifier(name: str) -> str:
    written = _NO_IDENTIFIER.sub("_", name)
    if written == name and len(name) <= _NAME_LENGTH:
        return name
    return f"{written[: _NAME_LENGTH - 9]}-{crc32(name.encode()):08x}"


async def _read(content: aiohttp.StreamReader) -> bytes:
    raw = bytearray()
    while data := await content.readany():
        raw += data
        if len(raw) > ANSWER_BYTES:
            raise CallFailed("too long", f"the answer exceeds {ANSWER_BYTES} bytes")
    return bytes(raw)


def _check(status: int, raw: bytes, retry_after: str) -> None:
    try:
        answer = read_answer(status, raw, retry_after)
    except KairosError as error:
        if is_tried_again(status):
            wait_s = 1 if error.retry_after_s is None else error.retry_after_s
            raise TryLater(str(status), str(error), wait_s) from None
        raise CallFailed("no JSON" if status == 200 else str(status), str(error)) from None
    if answer.get("error"):
        raise CallFailed("error in the answer", f"an error in the answer: {answer['error']!s:.300}")

"""One call of a client, to its only end."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Literal

import aiohttp
import msgspec

from tests.soak.asks import Ask

End = Literal[
    "answered",  # whole and right
    "error",  # a status that says so
    "error in stream",
    "cut off",  # the connection ended amid the answer
    "left",  # on purpose
    "gave up",  # nothing had to come until then, and the client was patient
    "overdue",  # nothing came until long after the deadline
    "wrong answer",  # it ended in good order, and is not what was to be said
    "no answer",  # the connection ended, or was refused, without a status
    "wrong error",  # one that is not in OpenAI's format, or does not name the call
]


class Outcome(msgspec.Struct, frozen=True):
    ask: Ask
    end: End
    seconds: float
    ended_at: int  # µs since the epoch
    detail: str = ""  # status and code, or what is wrong
    retry_after: str | None = None  # what an error says of it


def made_up(
    end: End = "answered",
    detail: str = "",
    *,
    name: str = "a",
    seconds: float = 0.1,
    ended_at: int = 0,
    retry_after: str | None = None,
    **asked: Any,
) -> Outcome:
    """An outcome for tests of verdicts, of a streamed call unless `asked` differs."""
    given: dict[str, Any] = {"at_s": 0.0, "kind": "well", "streamed": True, "patience_s": 1.0}
    ask = Ask(id=name, headers={}, body=b"", **given | asked)
    return Outcome(ask, end, seconds, ended_at, detail, retry_after)


class Ended(Exception):
    """The end of the answer, where it is none that is whole and right."""

    def __init__(self, end: End, detail: str, retry_after: str | None = None) -> None:
        super().__init__(detail)
        self.end, self.detail, self.retry_after = end, detail, retry_after


# Reads an answer with status 200. Raises Ended: it is not the right one.
Reads = Callable[[aiohttp.ClientResponse, Ask], Awaitable[object]]


def session() -> aiohttp.ClientSession:
    """For any number of calls, none of which ends before its client wants it to."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=None)
    )


async def call(
    session: aiohttp.ClientSession, url: str, ask: Ask, reads: Reads | None = None
) -> Outcome:
    """Make the call. Whatever comes of it is its outcome. Not given who `reads` the answer, it must
    be what the call says of it: the text, or the number of tokens."""
    began = time.monotonic()
    retry_after = None
    try:
        end, detail = await _ended(
            session, url, ask, reads or (arrivals if ask.tokens else _right_text)
        )
    except Ended as ended:
        end, detail, retry_after = ended.end, ended.detail, ended.retry_after
    # Bodies would be held to the end of the run.
    kept = msgspec.structs.replace(ask, body=b"", says="")
    seconds = time.monotonic() - began
    return Outcome(kept, end, seconds, time.time_ns() // 1000, detail, retry_after)


async def _ended(
    session: aiohttp.ClientSession, url: str, ask: Ask, reads: Reads
) -> tuple[End, str]:
    """Raises Ended."""
    headers = dict(ask.headers)
    if ask.deadline_s is not None:
        headers["X-Kairos-Deadline"] = str(int((time.time() + ask.deadline_s) * 1e6))
    status = None
    try:
        async with (
            asyncio.timeout(ask.patience_s),
            session.post(f"{url}/v1/chat/completions", data=ask.body, headers=headers) as response,
        ):
            status = response.status
            if status != 200:
                raise _error(response, await response.read(), ask)
            await reads(response, ask)
    except TimeoutError:
        if ask.leaves:
            return "left", ""
        return ("gave up", "") if ask.deadline_s is None else ("overdue", f"{ask.patience_s:.1f} s")
    except (aiohttp.ClientError, OSError) as error:
        return ("no answer" if status is None else "cut off"), type(error).__name__
    return "answered", ""


def _error(response: aiohttp.ClientResponse, content: bytes, ask: Ask) -> Ended:
    try:
        code = json.loads(content)["error"]["code"]
    except (ValueError, LookupError, TypeError):
        return Ended("wrong error", f"{response.status} {content[:60]!r}")
    headers = response.headers
    if headers.get("X-Request-Id") != ask.id:
        return Ended("wrong error", f"{response.status} names {headers.get('X-Request-Id')}")
    return Ended("error", f"{response.status} {code}", headers.get("Retry-After"))


async def _right_text(response: aiohttp.ClientResponse, ask: Ask) -> None:
    """What has come of a stream must be how the right answer begins, however it ends."""
    said = ""
    if response.content_type == "text/event-stream":
        async for chunk in chunks(response, hasty=ask.hasty):
            said += _text(chunk, "delta")
            if not ask.says.startswith(said):
                raise Ended("wrong answer", f"{said[-60:]!r} in the stream")
    else:
        said = _text(await whole(response), "message")
    if said != ask.says:
        raise Ended("wrong answer", f"{said[:60]!r}, not {ask.says[:60]!r}")


async def arrivals(response: aiohttp.ClientResponse, ask: Ask) -> list[float]:
    """When the pieces of the answer came, in seconds since the epoch.

    Raises:
        Ended: it has not its full length, or is another call's.
    """
    instants, answer = [], {}
    if response.content_type == "text/event-stream":
        async for chunk in chunks(response, hasty=ask.hasty):
            _check_whose(chunk, ask)
            if chunk.get("choices"):
                instants.append(time.time())
            # The reason comes with the last choice, usage after it.
            answer |= {part: chunk[part] for part in ("choices", "usage") if chunk.get(part)}
    else:
        answer = await whole(response)
        _check_whose(answer, ask)
        instants = [time.time()]
    try:
        tokens, reason = answer["usage"]["completion_tokens"], answer["choices"][0]["finish_reason"]
    except (LookupError, TypeError):
        raise Ended("wrong answer", f"{str(answer)[:60]!r}") from None
    if (tokens, reason) != (ask.tokens, "length"):
        raise Ended("wrong answer", f"{tokens} tokens, {reason}; not {ask.tokens}")
    return instants


def _check_whose(answer: Mapping[str, Any], ask: Ask) -> None:
    """Raises Ended: it is not this call's."""
    if answer.get("id") != f"chatcmpl-{ask.id}":
        raise Ended("wrong answer", f"it is {answer.get('id')!r}")


def _text(answer: Mapping[str, Any], part: str) -> str:
    try:
        return "".join(each[part].get("content") or "" for each in answer["choices"])
    except (LookupError, TypeError, AttributeError):
        raise Ended("wrong answer", f"{str(answer)[:60]!r}") from None


async def whole(response: aiohttp.ClientResponse) -> dict[str, Any]:
    """Raises Ended: it is no JSON object."""
    return _object(await response.read())


async def chunks(
    response: aiohttp.ClientResponse, *, hasty: bool = False
) -> AsyncIterator[dict[str, Any]]:
    """What a stream brings, up to its [DONE]; then it is read to its end, unless `hasty`.

    Raises:
        Ended: it brings an error, or what is no JSON object, or has no [DONE].
    """
    rest, done = b"", False
    async for piece in response.content.iter_any():
        *events, rest = (rest + piece).split(b"\n\n")
        for event in events:
            done = done or event == b"data: [DONE]"
            if done:
                break
            if event.startswith(b":"):
                continue  # a comment, while it waits
            chunk = _object(event.removeprefix(b"data: "))
            if isinstance(error := chunk.get("error"), dict):
                raise Ended("error in stream", str(error.get("code")))
            yield chunk
        if done and hasty:
            return
    if not done:
        raise Ended("wrong answer", "a stream without an end")


def _object(content: bytes) -> dict[str, Any]:
    try:
        read = json.loads(content)
    except ValueError:
        read = None
    if not isinstance(read, dict):
        raise Ended("wrong answer", f"{content[:60]!r}")
    return read

"""An engine as `kairos calibrate` uses it: its reported facts, and calls of known lengths."""

import asyncio
import random
import re
import time
from collections.abc import Mapping
from contextlib import suppress

import aiohttp
import msgspec

from kairos.core import SetupError
from kairos.engines import model_cards, read_metrics
from kairos.proxy import CONNECT_S, KEEPALIVE_S, MAX_FETCHED_BYTES, SseReader, Upstream

ALONE = "calibrate an engine that nobody else uses meanwhile"
IDLE_PROBES, IDLE_PROBE_S = 400, 0.05
_STEP_AFTER, _STEP_S = 20, 5.0  # so many probes that say it is busy; the longest for a step
SILENCE_S = 60.0  # without a byte, of an engine that is asked for something
_TOKEN_IDS = (100, 2000)  # in every vocabulary, and beyond special tokens
_CHUNK = b'"text":'  # once in each event that carries text; inside of the text it is escaped


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts that an engine reports; None if it does not."""

    model: str
    software: str  # and its version
    max_model_len: int | None
    kv_tokens: int | None
    block_size: int | None
    prefix_caching: bool | None


class Generated:
    """A call, and the arrival times of its tokens, in s of one clock.

    Tokens in one event, as sent when the engine is ahead of its server, count as the first ones.
    A call that is not `streamed` has only its end, until `observe.pace` estimates its tokens.
    """

    def __init__(
        self, prompt_tokens: int, completion_tokens: int, *, streamed: bool = True
    ) -> None:
        self.prompt_tokens = prompt_tokens
        self.completion_tokens = completion_tokens
        self.streamed = streamed
        self.sent_at = time.perf_counter()
        self.events_at: list[float] = []
        self.whole = False

    def tokens_at(self) -> list[tuple[float, int]]:
        """Return when each event came, with the number of its (last) token, from 1.

        Each event of a cancelled call counts as one token.
        """
        missing = self.completion_tokens - len(self.events_at) if self.whole else 0
        return [(at, missing + index) for index, at in enumerate(self.events_at, 1)]


class MeasuredEngine:
    """Makes calls of an engine directly. Leave the `async with` of its session to end them all."""

    def __init__(self, session: aiohttp.ClientSession, upstream: Upstream) -> None:
        self.upstream = upstream
        self._session = session
        self._dice = random.Random()  # noqa: S311 - prompts that no prefix cache has seen
        self.model = ""

    async def facts(self, model: str | None) -> Facts:
        """Ask the engine what it is, and remember the model.

        Raises:
            SetupError: it cannot be reached, speaks another language, or is busy.
        """
        status, answer = await self._get("/v1/models")
        cards = model_cards(answer) if status == 200 else {}
        limits = {name: card.max_model_len for name, card in cards.items()}
        if not limits:
            raise SetupError(
                f"{self.upstream.id}: /v1/models names no model (status {status}); is this the "
                "URL of an OpenAI-compatible engine, without /v1?"
            )
        if model is not None and model not in limits:
            raise SetupError(
                f"{self.upstream.id} does not serve '{model}'; it serves {', '.join(limits)}"
            )
        self.model = model or next(iter(limits))
        _, metrics = await self._get("/metrics")
        if calls := _calls(metrics):
            raise SetupError(f"{self.upstream.id} is busy with {calls} calls: {ALONE}")
        cache = read_metrics(self.upstream.id, metrics).cache
        return Facts(
            model=self.model,
            software=await self._software(),
            max_model_len=limits[self.model],
            kv_tokens=cache.kv_tokens if cache is not None else None,
            block_size=cache.block_size if cache is not None else None,
            prefix_caching=cache.prefix_caching if cache is not None else None,
        )

    async def idle(self) -> None:
        """Wait until nothing runs, if the engine reports that: cancelled calls end a little later.

        An engine reports how many ran in its latest step. If all were cancelled after it, no step
        follows, so now and then a short call makes the engine take one.

        Raises:
            SetupError: somebody else's calls run.
        """
        for number in range(1, IDLE_PROBES + 1):
            _, metrics = await self._get("/metrics")
            if _calls(metrics) == 0:
                return
            await asyncio.sleep(IDLE_PROBE_S)
            if number % _STEP_AFTER == 0:
                with suppress(TimeoutError):
                    async with asyncio.timeout(_STEP_S):
                        await self.generate(Generated(1, 1))
        raise SetupError(f"{self.upstream.id} has calls of others: {ALONE}")

    async def generate(self, call: Generated) -> None:
        """Make this call, and note when its tokens come, until it ends.

        Raises:
            SetupError: the engine refuses it, breaks it off, or makes another length of it.
        """
        prompt_tokens, completion_tokens = call.prompt_tokens, call.completion_tokens
        prompt = [self._dice.randrange(*_TOKEN_IDS) for _ in range(prompt_tokens)]
        body: dict[str, object] = {
            "model": self.model, "prompt": prompt, "ignore_eos": True,
            "max_tokens": completion_tokens, "min_tokens": completion_tokens,
        }  # fmt: skip
        if call.streamed:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        try:
            try:
                usage = await self._post(call, body)
            except aiohttp.ServerDisconnectedError:  # some engines close kept connections early
                call.events_at.clear()
                usage = await self._post(call, body)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise SetupError(
                f"{self.upstream.id} broke off a call of {prompt_tokens} + {completion_tokens} "
                f"tokens: {str(error) or type(error).__name__}"
            ) from error
        self._check(call, usage)

    async def _post(
        self, call: Generated, body: Mapping[str, object]
    ) -> tuple[int | None, int | None] | None:
        """Return the tokens of prompt and answer by the engine's count; None where it has none."""
        call.sent_at = time.perf_counter()
        async with self._session.post(
            self.upstream.url("/v1/completions"),
            data=msgspec.json.encode(body),
            headers={**self.upstream.headers, "Content-Type": "application/json"},
            allow_redirects=False,
        ) as response:
            if response.status != 200:
                text = (await _read_start(response.content))[:300]
                raise SetupError(
                    f"{self.upstream.id} refused a call of {call.prompt_tokens} token ids for "
                    f"{call.completion_tokens} more, with status {response.status}: "
                    f"{text.decode('utf-8', 'replace')}"
                )
            if call.streamed:
                return await self._read_stream(call, response.content)
            usage = _usage(await _read_start(response.content))
            call.events_at = [time.perf_counter()]
            return usage

    async def _read_stream(
        self, call: Generated, content: aiohttp.StreamReader
    ) -> tuple[int | None, int | None] | None:
        """Tokens of the prompt and of the answer, as the engine counts them."""
        reader, tail = SseReader(drop_usage_chunk=False), b""
        async for chunk in content.iter_any():
            now = time.perf_counter()
            data = tail + chunk  # it may be cut anywhere
            call.events_at.extend([now] * data.count(_CHUNK))
            tail = data[1 - len(_CHUNK) :]
            reader.feed(chunk)
        if problem := reader.error or ("no [DONE]" if not reader.done else None):
            raise SetupError(f"{self.upstream.id} ended a stream with {problem}")
        return (reader.usage.prompt, reader.usage.completion) if reader.usage else None

    def _check(self, call: Generated, made: tuple[int | None, int | None] | None) -> None:
        if made is None:
            raise SetupError(
                f"{self.upstream.id} ended an answer with no count of tokens "
                "(stream_options.include_usage)"
            )
        asked = (call.prompt_tokens, call.completion_tokens)
        if made != asked:
            raise SetupError(
                f"{self.upstream.id} made {made[0]} + {made[1]} tokens of a call of {asked[0]} + "
                f"{asked[1]}: it must take token ids as a prompt, ignore_eos and min_tokens"
            )
        if call.streamed and len(call.events_at) == call.completion_tokens + 1:
            del call.events_at[-1]  # llama.cpp's last event has the reason of the end, and no token
        if not 1 <= len(call.events_at) <= call.completion_tokens:
            raise SetupError(
                f"{self.upstream.id} streamed {call.completion_tokens} tokens in "
                f"{len(call.events_at)} events: their times cannot be told"
            )
        call.whole = True

    async def _software(self) -> str:
        status, answer = await self._get("/version")
        found = re.search(rb'"version"\s*:\s*"([\w.+-]{1,64})"', answer) if status == 200 else None
        return f"vLLM {found[1].decode()}" if found else "an engine that tells no version"

    async def _get(self, path: str) -> tuple[int, bytes]:
        try:
            async with (
                asyncio.timeout(SILENCE_S),
                self._session.get(
                    self.upstream.url(path), headers=self.upstream.headers, allow_redirects=False
                ) as response,
            ):
                return response.status, await _read_start(response.content)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise SetupError(
                f"{self.upstream.id} cannot be reached: {str(error) or type(error).__name__}"
            ) from error


class _CountedUsage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int


class _Completion(msgspec.Struct):
    usage: _CountedUsage


def _usage(answer: bytes) -> tuple[int, int] | None:
    """Return the tokens of prompt and answer in a completion that was not streamed."""
    try:
        usage = msgspec.json.decode(answer, type=_Completion).usage
    except msgspec.DecodeError:
        return None
    return usage.prompt_tokens, usage.completion_tokens


def _calls(metrics: bytes) -> int:
    """Return the number of calls in the engine, running and waiting, as far as it reports them."""
    status = read_metrics("", metrics).status
    return (status.running or 0) + (status.waiting or 0) if status is not None else 0


async def _read_start(content: aiohttp.StreamReader) -> bytes:
    """Read an answer in pieces, up to its maximum size."""
    answer = bytearray()
    while len(answer) < MAX_FETCHED_BYTES and (data := await content.readany()):
        answer += data
    return bytes(answer)


def session() -> aiohttp.ClientSession:
    """Create a session for probes, with unlimited concurrent calls."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=SILENCE_S),
    )

"""The stand-in's routes, with its KV connector: vLLM's interface of disaggregated prefill.

As with vLLM's NixlConnector, a request whose `kv_transfer_params` have `do_remote_decode` true
leaves its cache in place, and the answer's `kv_transfer_params` say where it is. With these and
`do_remote_prefill` true, another engine fetches the cache instead of computing the prompt. A digest
of the prompt takes the place of the cache, a request over HTTP that of RDMA; so a missing cache, or
one of another prompt, is detected.
"""

import asyncio
import base64
import random
import re
import uuid
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from struct import pack
from typing import Literal, TypeVar
from urllib.parse import urlsplit

import aiohttp
import msgspec
from aiohttp import web

from kairos.core import Header, SetupError, text_digest
from kairos.simulate.standin import bodies, script
from kairos.simulate.standin.batch import INSTANT, Batch, Timing
from kairos.simulate.standin.bodies import (
    EmbeddingsBody,
    Failure,
    KvTransferParams,
    RerankBody,
    StandInBody,
    StandInPrompt,
    TokenizeBody,
)
from kairos.simulate.standin.delivery import (
    MESSAGES,
    RefusedReply,
    json_answer,
    refusals,
    silence,
    stream,
    whole,
)
from kairos.simulate.standin.replies import (
    ChatReply,
    CompletionReply,
    Json,
    MessagesReply,
    ResponsesReply,
    StandInReply,
    StandInUsage,
)

BLOCK_TOKENS = 16
COMPLETION_TOKENS = 16  # vLLM's default on /v1/completions; elsewhere it is what fits
EMBEDDING_SIZE = 64
MAX_BODY_BYTES = 32 << 20
MAX_RECEIVED = 10_000

BodyType = TypeVar("BodyType", StandInBody, EmbeddingsBody, RerankBody, TokenizeBody)


# The oldest vLLM that Kairos supports, and the newest: docs/reference/vllm-versions.md.
VllmVersion = Literal["0.8.5", "0.32.0"]
OLDEST: VllmVersion = "0.8.5"
NEWEST: VllmVersion = "0.32.0"

READ_PATH = "/standin/kv"
MAX_KEPT = 10_000  # caches


class StandInSettings(msgspec.Struct, frozen=True, kw_only=True):
    model: str = "standin"
    max_model_len: int = 8192
    max_num_seqs: int = 16
    kv_tokens: int = 65_536
    timing: Timing = INSTANT
    fail: Failure | None = None
    kv_transfer: bool = False  # with a KV connector
    vllm: VllmVersion = NEWEST  # whose routes and names of figures it has

    def __post_init__(self) -> None:
        if not 2 <= self.max_model_len <= self.kv_tokens:
            raise SetupError(
                f"max_model_len is {self.max_model_len}: give it 2 to kv_tokens ({self.kv_tokens})"
            )


class SeenRequest(msgspec.Struct, frozen=True):
    path: str
    headers: Mapping[str, str]
    body: bytes


class StandIn:
    """A stand-in engine.

    Tests check what it received and counted, and freeze it through `batch`.
    """

    def __init__(self, settings: StandInSettings, says: script.Script) -> None:
        self.settings = settings
        self.batch = Batch(
            max_num_seqs=settings.max_num_seqs, kv_tokens=settings.kv_tokens, timing=settings.timing
        )
        self.url = ""
        self.received: deque[SeenRequest] = deque(maxlen=MAX_RECEIVED)  # calls, in order of arrival
        self.finished = 0
        self.aborted = 0  # by the client
        self._says = says
        self._caches = KvTransfers(BLOCK_TOKENS) if settings.kv_transfer else None
        self._changed = asyncio.Event()

    async def until(self, condition: Callable[["StandIn"], bool]) -> None:
        """Wait for the condition, looked at whenever a call arrives, finishes or is aborted."""
        while not condition(self):
            self._changed.clear()
            await self._changed.wait()

    def app(self) -> web.Application:
        app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[refusals])
        if self.settings.vllm != OLDEST:
            app.add_routes(
                [
                    web.post("/v1/responses", self._responses),
                    web.post(MESSAGES, self._messages),
                    web.post(f"{MESSAGES}/count_tokens", self._count_tokens),
                ]
            )
        app.add_routes(
            [
                web.post("/v1/chat/completions", self._chat),
                web.post("/v1/completions", self._completions),
                web.post("/v1/embeddings", self._embeddings),
                web.post("/v1/rerank", self._rerank),
                web.post("/tokenize", self._tokenize),
                web.post("/pause", self._pause),
                web.post("/resume", self._resume),
                web.get("/v1/models", self._models),
                web.get("/health", self._health),
                web.get("/metrics", self._metrics),
            ]
        )
        if self._caches is not None:
            app.add_routes([web.post(READ_PATH, self._caches.serve_cache)])
        return app

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, bodies.chat_prompt, ChatReply)

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, bodies.completion_prompt, CompletionReply)

    async def _responses(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, bodies.responses_prompt, ResponsesReply)

    async def _messages(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, bodies.messages_prompt, MessagesReply)

    async def _count_tokens(self, request: web.Request) -> web.Response:
        body = await self._read(request, StandInBody)
        try:
            prompt = bodies.chat_prompt(body)
        except ValueError as error:
            raise RefusedReply(400, str(error)) from None
        return json_answer({"input_tokens": script.prompt_tokens(prompt.system + prompt.rest)})

    async def _generate(
        self,
        request: web.Request,
        read_prompt: Callable[[StandInBody], StandInPrompt],
        reply_type: Callable[[str, str, str | None], StandInReply],
    ) -> web.StreamResponse:
        body = await self._read(request, StandInBody)
        fail = body.fail or self.settings.fail
        if fail == "unavailable":
            raise RefusedReply(503, "The engine is currently busy. Please try again later.")
        prompt_tokens, text, said = self._draw(body, read_prompt)
        request_id = request.headers.get(Header.REQUEST_ID) or uuid.uuid4().hex
        reply = reply_type(request_id, body.model, said.tool)
        if isinstance(reply, MessagesReply):
            reply.prompt_tokens = prompt_tokens
        with self._counting_aborts():
            if fail == "hang":
                await silence()
            tokens = said.tokens[: max(1, len(said.tokens) // 2)] if fail else said.tokens
            fetched, more = await self._transfer(body, prompt_tokens, text)
            with self.batch.call(prompt_tokens, tokens, fetched) as call:
                if body.stream:
                    tell = body.include_usage
                    response = await stream(request, reply, call, said.finish, fail, tell)
                else:
                    response = await whole(request, reply, call, said.finish, fail, more)
        if not fail:
            self.finished += 1
            self._changed.set()
        return response

    async def _transfer(self, body: StandInBody, tokens: int, text: str) -> tuple[int, Json]:
        """Return how many of the prompt's tokens were computed elsewhere, and the cache's place."""
        wanted = body.kv_transfer_params
        if self._caches is None or wanted is None:
            return 0, {}
        if wanted.do_remote_prefill:
            await self._caches.fetch_cache(wanted, text)
            return tokens - 1, {}
        if wanted.do_remote_decode:
            return 0, {"kv_transfer_params": self._caches.keep_cache(text, tokens, self.url)}
        return 0, {}

    async def _read(self, request: web.Request, body_type: type[BodyType]) -> BodyType:
        content = await request.read()
        self.received.append(SeenRequest(request.path, request.headers, content))
        self._changed.set()
        try:
            body = msgspec.json.decode(content, type=body_type)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise RefusedReply(400, f"the body cannot be read: {error}") from None
        if body.model != self.settings.model:
            raise RefusedReply(404, f"The model `{body.model}` does not exist.")
        return body

    def _draw(
        self, body: StandInBody, read_prompt: Callable[[StandInBody], StandInPrompt]
    ) -> tuple[int, str, script.Said]:
        """Return the number of the prompt's tokens, its text, and the reply."""
        try:
            prompt = read_prompt(body)
        except ValueError as error:
            raise RefusedReply(400, str(error)) from None
        text = prompt.system + prompt.rest
        prompt_tokens = script.prompt_tokens(text)
        room = self.settings.max_model_len - prompt_tokens
        asked = body.asked_tokens
        if (asked or 1) > room:
            raise RefusedReply(
                400,
                f"This model's maximum context length is {self.settings.max_model_len} tokens. "
                f"However, you requested {asked or 1} output tokens and your prompt contains "
                f"{prompt_tokens} input tokens. Please reduce one of them.",
            )
        if body.prompt is not None:
            room = min(room, COMPLETION_TOKENS)
        limit = script.ScriptLimits(
            max_tokens=asked or room, min_tokens=body.min_tokens, ignore_eos=body.ignore_eos
        )
        return prompt_tokens, text, self._says.reply(prompt, limit, body.seed)

    @contextmanager
    def _counting_aborts(self) -> Iterator[None]:
        try:
            yield
        except (asyncio.CancelledError, ConnectionError):
            self.aborted += 1
            self._changed.set()
            raise

    async def _embeddings(self, request: web.Request) -> web.Response:
        body = await self._read(request, EmbeddingsBody)
        texts = body.texts
        data = [
            {"object": "embedding", "index": i, "embedding": _embedding(text, body.encoding_format)}
            for i, text in enumerate(texts)
        ]
        tokens = sum(map(script.prompt_tokens, texts))
        usage = StandInUsage(tokens, 0).named("prompt_tokens", "completion_tokens")
        return json_answer({"object": "list", "data": data, "model": body.model, "usage": usage})

    async def _rerank(self, request: web.Request) -> web.Response:
        """Rank documents by the share of the query's words that they contain."""
        body = await self._read(request, RerankBody)
        words = set(body.query.lower().split()) or {""}
        results = [
            {"index": index, "relevance_score": len(words & set(text.lower().split())) / len(words)}
            for index, text in enumerate(body.documents)
        ]
        results.sort(key=lambda result: -result["relevance_score"])
        return json_answer({"results": results[: body.top_n or None]})

    async def _tokenize(self, request: web.Request) -> web.Response:
        body = await self._read(request, TokenizeBody)
        count = script.prompt_tokens(body.prompt)
        limit = self.settings.max_model_len
        return json_answer({"count": count, "max_model_len": limit, "tokens": list(range(count))})

    async def _pause(self, _: web.Request) -> web.Response:
        self.batch.pause()
        return json_answer({"status": "paused"})

    async def _resume(self, _: web.Request) -> web.Response:
        self.batch.resume()
        return json_answer({"status": "resumed"})

    async def _models(self, _: web.Request) -> web.Response:
        settings = self.settings
        model = {
            "id": settings.model, "object": "model", "created": 0, "owned_by": "kairos",
            "root": settings.model, "parent": None, "max_model_len": settings.max_model_len,
        }  # fmt: skip
        return json_answer({"object": "list", "data": [model]})

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response()

    async def _metrics(self, _: web.Request) -> web.Response:
        """Return metrics as vLLM does, with one more block than can be used, for its own use."""
        batch, settings = self.batch, self.settings
        engine = f'engine="0",model_name="{settings.model}"'
        blocks = settings.kv_tokens // BLOCK_TOKENS + 1
        cache = (
            f'block_size="{BLOCK_TOKENS}",enable_prefix_caching="False",engine="0",'
            f'kv_cache_size_tokens="{blocks * BLOCK_TOKENS}",num_gpu_blocks="{blocks}"'
        )
        figures = {
            f"num_requests_running{{{engine}}}": len(batch.running),
            f"num_requests_waiting{{{engine}}}": len(batch.waiting),
            f"kv_cache_usage_perc{{{engine}}}": batch.used_tokens / settings.kv_tokens,
            f"prefix_cache_queries_total{{{engine}}}": 0,
            f"prefix_cache_hits_total{{{engine}}}": 0,
            f"num_preemptions_total{{{engine}}}": 0,
            f"cache_config_info{{{cache}}}": 1,
        }
        if settings.vllm == NEWEST:
            by_reason = f"num_requests_waiting_by_reason{{{engine},reason="
            figures |= {
                f'{by_reason}"capacity"}}': len(batch.waiting),
                f'{by_reason}"deferred"}}': 0,
            }
        else:
            figures = {_as_before(name): value for name, value in figures.items()}
        lines = [
            *(f"vllm:{name} {float(value)}" for name, value in figures.items()),
            f"standin:requests_finished_total {self.finished}",
            f"standin:requests_aborted_total {self.aborted}",
        ]
        return web.Response(text="\n".join(lines) + "\n")


def _as_before(sample: str) -> str:
    """Return a figure's name and labels as the oldest vLLM has them."""
    name, brace, labels = sample.partition("{")
    if name == "cache_config_info":
        labels = _NEW_LABELS.sub("", labels)
    return _BEFORE.get(name, name) + brace + labels


_BEFORE = {
    "kv_cache_usage_perc": "gpu_cache_usage_perc",
    "prefix_cache_queries_total": "gpu_prefix_cache_queries_total",
    "prefix_cache_hits_total": "gpu_prefix_cache_hits_total",
}
_NEW_LABELS = re.compile(r'engine="0",|kv_cache_size_tokens="\d+",')


def _embedding(text: str, encoding: str) -> list[float] | str:
    dice = random.Random(text_digest(text))  # noqa: S311 - the same text, the same vector
    vector = [dice.gauss() for _ in range(EMBEDDING_SIZE)]
    length = sum(x * x for x in vector) ** 0.5
    unit = [x / length for x in vector]
    if encoding == "float":
        return unit
    return base64.b64encode(pack(f"<{len(unit)}f", *unit)).decode()


class KvTransfers:
    """The caches that one engine keeps for others."""

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._next_block = 0
        self.kept: OrderedDict[int, int] = OrderedDict()  # digest of the prompt, by first block

    def keep_cache(self, prompt: str, tokens: int, url: str) -> Json:
        """The answer's `kv_transfer_params`. `url`: of this engine."""
        first, count = self._next_block, -(-tokens // self._block_tokens)
        self._next_block += count
        self.kept[first] = text_digest(prompt)
        if len(self.kept) > MAX_KEPT:
            self.kept.popitem(last=False)
        place = urlsplit(url)
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_engine_id": place.netloc,
            "remote_block_ids": list(range(first, first + count)),
            "remote_host": place.hostname,
            "remote_port": place.port,
        }

    async def fetch_cache(self, params: KvTransferParams, prompt: str) -> None:
        """The cache of a prompt, from where it lies. Raises RefusedReply: it is not there."""
        try:
            place = f"http://{params.remote_host}:{params.remote_port}{READ_PATH}"
            async with (
                aiohttp.ClientSession() as session,
                session.post(place, json={"blocks": params.remote_block_ids}) as answer,
            ):
                found = await answer.json() if answer.status == 200 else None
        except (aiohttp.ClientError, OSError):
            found = None
        if found != {"prompt": text_digest(prompt)}:
            raise RefusedReply(500, "KV load failed: the remote blocks are not there.")

    async def serve_cache(self, request: web.Request) -> web.Response:
        """Another engine reads a cache, which is free then."""
        blocks = (await request.json()).get("blocks") or [-1]
        prompt = self.kept.pop(blocks[0], None)
        if prompt is None:
            raise RefusedReply(404, "There are no such blocks.")
        return json_answer({"prompt": prompt})

"""Watches the instances: which are up, what they serve and what their limits are.

An instance joins when it answers, and leaves when it does not: a refused connection at once, slow
answers (a busy engine is no dead one) only after several in a row.
"""

import asyncio
import contextlib
import logging
import os
import re
from collections.abc import Callable, Sequence
from typing import Any

import aiohttp
import msgspec

from kairos.errors import UpstreamUnreachable
from kairos.events import InstanceJoined, InstanceLeft
from kairos.live.engine import Upstream
from kairos.model import Instance

logger = logging.getLogger(__name__)

INTERVAL_S = 1.0
TIMEOUT_S = 5.0
SLOW_PROBES_ALLOWED = 3
_ANSWER_LIMIT_BYTES = 4 << 20
_CACHE_CONFIG = re.compile(rb"^vllm:cache_config_info\{([^}]*)\}", re.MULTILINE)
_LABEL = re.compile(rb'(\w+)="([^"]*)"')


class Target(msgspec.Struct, frozen=True):
    """An upstream to watch, and the limits to assume where it tells none."""

    upstream: Upstream
    max_num_seqs: int
    kv_tokens: int | None


class NotReady(Exception):
    """The engine answered, but cannot serve."""


class Monitor:
    """Tells of instances that join and leave; `run` until cancelled."""

    def __init__(
        self, feed: Callable[[InstanceJoined | InstanceLeft], None], targets: Sequence[Target]
    ) -> None:
        self._feed = feed
        self._targets = targets
        self._joined: dict[str, Instance] = {}
        self._look = {target.upstream.id: asyncio.Event() for target in targets}
        self.problems: dict[str, str] = {t.upstream.id: "not probed yet" for t in targets}
        """Why each instance that is not there is not, by id."""
        self.all_joined = asyncio.Event()
        """Set once no problem has been left, at some moment."""

    def models(self) -> list[str]:
        """All models that are served at the moment."""
        return sorted({model for instance in self._joined.values() for model in instance.models})

    async def run(self) -> None:
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        async with aiohttp.ClientSession(timeout=timeout) as session, asyncio.TaskGroup() as tasks:
            for target in self._targets:
                tasks.create_task(self._watch(session, target))

    def hear_of(self, trouble: UpstreamUnreachable) -> None:
        """A call met trouble at an instance: look now, not at the next turn. Where nothing listens,
        the instance has left: idle as it is, the next calls would be sent there too."""
        if trouble.refused:
            self._left(trouble.instance_id, str(trouble))
        self._look[trouble.instance_id].set()

    async def _watch(self, session: aiohttp.ClientSession, target: Target) -> None:
        instance_id = target.upstream.id
        look = self._look[instance_id]
        slow_probes = 0
        while True:
            look.clear()  # trouble met from now on is not known to this look
            try:
                instance = await _probe(session, target)
            except (TimeoutError, aiohttp.ServerTimeoutError):
                slow_probes += 1
                if slow_probes > SLOW_PROBES_ALLOWED:
                    self._left(instance_id, f"no answer within {TIMEOUT_S:g} s")
            except aiohttp.ClientConnectorError as error:
                self._left(instance_id, f"nothing answers there ({_cause(error.os_error)})")
            except (aiohttp.ClientError, OSError, NotReady) as error:
                self._left(instance_id, str(error) or type(error).__name__)
            else:
                slow_probes = 0
                self._is_there(instance)
            # Not `wait_for`: in Python 3.11 it can swallow a cancellation that comes with `look`.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(INTERVAL_S):
                    await look.wait()

    def _is_there(self, instance: Instance) -> None:
        self.problems.pop(instance.id, None)
        if self._joined.get(instance.id) != instance:
            logger.info(
                "instance %s serves %s: at most %d calls at once, %s KV tokens",
                instance.id,
                ", ".join(instance.models),
                instance.max_num_seqs,
                instance.kv_tokens or "an unknown number of",
            )
            self._joined[instance.id] = instance
            self._feed(InstanceJoined(instance))
        if not self.problems:
            self.all_joined.set()

    def _left(self, instance_id: str, problem: str) -> None:
        if self.problems.get(instance_id) != problem:
            logger.warning("instance %s is not in use: %s", instance_id, problem)
        self.problems[instance_id] = problem
        if self._joined.pop(instance_id, None) is not None:
            self._feed(InstanceLeft(instance_id))


def _cause(error: OSError) -> str:
    """In the system's words; asyncio's repeat the address. A failed look-up has its own."""
    return os.strerror(error.errno) if error.errno and error.errno > 0 else str(error.strerror)


async def _probe(session: aiohttp.ClientSession, target: Target) -> Instance:
    """Ask an engine whether it is ready, what it serves and how much it holds.

    Raises:
        NotReady, TimeoutError, aiohttp.ClientError, OSError: it cannot be used now.
    """
    upstream = target.upstream
    status, _ = await _get(session, upstream, "/health")
    if status not in (200, 404):  # engines without the route are judged by /v1/models alone
        raise NotReady(f"/health answered {status}")
    status, answer = await _get(session, upstream, "/v1/models")
    if status != 200:
        raise NotReady(f"/v1/models answered {status}")
    models = tuple(model_limits(answer))
    if not models:
        raise NotReady("/v1/models names no model")
    max_num_seqs, kv_tokens = target.max_num_seqs, target.kv_tokens
    _, props = await _get(session, upstream, "/props")
    _, metrics = await _get(session, upstream, "/metrics")
    told_seqs, told_kv = _llama_limits(props)
    return Instance(
        id=upstream.id,
        models=models,
        max_num_seqs=told_seqs or max_num_seqs,
        kv_tokens=told_kv or _vllm_kv_tokens(metrics) or kv_tokens,
    )


async def _get(session: aiohttp.ClientSession, upstream: Upstream, path: str) -> tuple[int, bytes]:
    async with session.get(
        upstream.url(path), headers=upstream.headers, allow_redirects=False
    ) as response:
        return response.status, await read_start(response.content)


async def read_start(content: aiohttp.StreamReader) -> bytes:
    """All of an engine's answer, or as much as it may say. It comes in pieces."""
    answer = bytearray()
    while len(answer) < _ANSWER_LIMIT_BYTES and (data := await content.readany()):
        answer += data
    return bytes(answer)


def _decode(answer: bytes) -> Any:
    try:
        return msgspec.json.decode(answer)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def model_limits(answer: bytes) -> dict[str, int | None]:
    """The models that an answer of /v1/models names, with the context that each takes, if told."""
    match _decode(answer):
        case {"data": list(entries)}:
            named = [each for each in entries if isinstance(each, dict) and "id" in each]
            lengths = [each.get("max_model_len") for each in named]
            return {
                str(each["id"]): length if isinstance(length, int) else None
                for each, length in zip(named, lengths, strict=True)
            }
    return {}


def _llama_limits(props: bytes) -> tuple[int | None, int | None]:
    """llama.cpp's slots, and the tokens that they hold together: its context is per slot."""
    match _decode(props):
        case {"total_slots": int(slots), "default_generation_settings": {"n_ctx": int(context)}}:
            return slots, slots * context
    return None, None


def vllm_cache(metrics: bytes) -> dict[str, str]:
    """What vLLM's metrics say of its KV cache; empty if they say nothing."""
    found = _CACHE_CONFIG.search(metrics)
    labels = _LABEL.findall(found[1]) if found else ()
    return {name.decode(): value.decode("utf-8", "replace") for name, value in labels}


def _vllm_kv_tokens(metrics: bytes) -> int | None:
    cache = vllm_cache(metrics)
    try:
        return int(cache["num_gpu_blocks"]) * int(cache["block_size"])
    except (KeyError, ValueError):
        return None

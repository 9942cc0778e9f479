"""Periodic probes of one engine: health, models, limits and load.

Health and metrics are requested with every probe. Models and limits are requested when the engine
appears, when something indicates that its process has changed, and otherwise with every tenth
probe: a restart between two probes, or a newly loaded adapter, is noticed that much later.
"""

import asyncio

import msgspec

from kairos.core import Instance, InstanceStatus, Phase
from kairos.engines.engine_limits import EngineLimits, ModelCard, model_cards
from kairos.engines.engine_status import KvCache, Metrics, read_metrics
from kairos.engines.kinds import LLAMA, SGLANG, EngineKind
from kairos.proxy import MAX_FETCHED_BYTES, Fetcher, Upstream

SCRAPE_S = 2.0  # timeout of /metrics, so that they are still current
LOOKS_BETWEEN = 10
BLOCK_SIZE = 16  # tokens: vLLM's on a GPU
_ANSWER_LIMIT_BYTES = MAX_FETCHED_BYTES


class Target(msgspec.Struct, frozen=True):
    """An upstream to watch, and defaults for limits that it does not report."""

    upstream: Upstream
    max_num_seqs: int
    kv_tokens: int | None
    priority: bool = False
    token_us: float | None = None
    phase: Phase = "both"
    usd_per_hour: float | None = None


class NotReady(Exception):
    """The engine answered, but cannot serve."""


class Seen(msgspec.Struct, frozen=True):
    """Result of a probe."""

    instance: Instance
    status: InstanceStatus | None  # None: its metrics did not come, or too late, or say nothing


class EngineProbe:
    """Probe of one engine, with what it has reported so far."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self.cards: dict[str, ModelCard] = {}  # of the models that it serves
        # None: not asked yet, or they may be others by now.
        self._limits: EngineLimits | None = None
        self._cache: KvCache | None = None
        self._started_at_s: float | None = None
        self._kind: EngineKind | None = None
        self._looks = 0

    def forget_limits(self) -> None:
        """Forget the limits: the process at the address may have changed."""
        self._limits = None

    async def probe(self, fetcher: Fetcher) -> Seen:
        """Probe the engine.

        Raises:
            NotReady, OSError: It cannot be used now; as TimeoutError, it did not answer in time.
        """
        status, _ = await self._get(fetcher, "/health")
        if status not in (200, 404):  # engines without the route are judged by /v1/models alone
            raise NotReady(f"/health answered {status}")
        metrics = await self._scrape(fetcher)
        if metrics is not None:
            self._compare(metrics)
        if self._limits is None or self._looks % LOOKS_BETWEEN == 0:
            self.cards = await self._ask_models(fetcher)
            self._limits = await self._ask_limits(fetcher, self._limits or EngineLimits())
        self._looks += 1
        return Seen(self._instance(self._limits), metrics.status if metrics is not None else None)

    async def _scrape(self, fetcher: Fetcher) -> Metrics | None:
        """Return the metrics; None if that failed or took too long, which proves nothing.

        For an unknown engine an answer is required, even if it has no metrics.
        """
        is_new = self._limits is None
        try:
            async with asyncio.timeout(None if is_new else SCRAPE_S):
                status, text = await self._get(fetcher, "/metrics")
        except OSError:
            if is_new:
                raise
            return None
        is_whole = status == 200 and len(text) < _ANSWER_LIMIT_BYTES
        return read_metrics(self._target.upstream.id, text) if is_whole else None

    def _compare(self, metrics: Metrics) -> None:
        """Forget the limits if the metrics come from another process than before."""
        before = self._cache, self._started_at_s, self._kind
        if (metrics.cache, metrics.started_at_s, metrics.kind) != before:
            self.forget_limits()
        self._cache, self._started_at_s = metrics.cache, metrics.started_at_s
        self._kind = metrics.kind

    async def _ask_models(self, fetcher: Fetcher) -> dict[str, ModelCard]:
        status, answer = await self._get(fetcher, "/v1/models")
        if status != 200:
            raise NotReady(f"/v1/models answered {status}")
        models = model_cards(answer)
        if not models:
            raise NotReady("/v1/models names no model")
        return models

    async def _ask_limits(self, fetcher: Fetcher, before: EngineLimits) -> EngineLimits:
        # llama.cpp shows metrics only if it is asked to, and SGLang too: then their answers tell.
        for kind in (self._kind,) if self._kind is not None else (LLAMA, SGLANG):
            limits = await self._ask_kind(fetcher, kind, before)
            if limits != EngineLimits():
                return limits
        return EngineLimits()

    async def _ask_kind(
        self, fetcher: Fetcher, kind: EngineKind, before: EngineLimits
    ) -> EngineLimits:
        try:
            async with asyncio.timeout(SCRAPE_S if kind.is_slow_to_tell else None):
                status, told = await self._get(fetcher, kind.limits_path, kind.limits_query)
        except OSError:
            if not kind.is_slow_to_tell:
                raise
            return before  # vLLM gathers what it says for seconds: it is asked again
        engines = self._cache.engines if self._cache is not None else 1
        return kind.limits(told, engines) if status == 200 else EngineLimits()

    def _instance(self, limits: EngineLimits) -> Instance:
        target, cache = self._target, self._cache or KvCache()
        return Instance(
            id=target.upstream.id,
            models=tuple(self.cards),
            max_num_seqs=limits.max_num_seqs or target.max_num_seqs,
            max_num_batched_tokens=limits.max_num_batched_tokens,
            kv_tokens=limits.kv_tokens or cache.kv_tokens or target.kv_tokens,
            block_size=limits.block_size or cache.block_size or BLOCK_SIZE,
            prefix_caching=False not in (limits.prefix_caching, cache.prefix_caching),
            priority=target.priority if limits.priority is None else limits.priority,
            token_us=target.token_us,
            phase=target.phase,
            usd_per_hour=target.usd_per_hour,
        )

    async def _get(self, fetcher: Fetcher, path: str, query: str = "") -> tuple[int, bytes]:
        return await fetcher.get(self._target.upstream, path, query)

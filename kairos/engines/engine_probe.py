"""Periodic probes of one engine: health, models and limits, load and kind by its metrics.

Health and metrics are requested with every probe. Models and limits are requested when the engine
appears, when something indicates that its process has changed, and otherwise with every tenth
probe: a restart between two probes, or a newly loaded adapter, is noticed that much later.

An engine may export one series for each of several cores (data parallel), with different labels:
their counts are added. Implausible values are ignored.

The lines of the wanted names are found by one search: vLLM sends 51 KB every second, for which this
takes 0.1 ms, a parser of the whole text 24 ms.
"""

import asyncio
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

import msgspec

from kairos.core import Instance, InstanceStatus
from kairos.engines.kinds import (
    KINDS,
    LLAMA,
    SGLANG,
    VLLM,
    EngineKind,
    EngineLimits,
    ModelCard,
    Series,
    model_cards,
)
from kairos.proxy import MAX_FETCHED_BYTES, Fetcher, Upstream
from kairos.settings import MAX_NUM_SEQS, EngineSettings

_SAMPLES = 4_096  # of a text; one with more says nothing
_LABEL = re.compile(rb'(\w+)="((?:[^"\\]|\\.)*)"')


class MetricSample(msgspec.Struct, frozen=True):
    """A line: a value with its labels. None: the value is not a number."""

    labels: dict[str, str]
    value: float | None


class Names:
    def __init__(self, names: Iterable[str]) -> None:
        # The longest first, since one may be the beginning of another.
        ordered = sorted(names, key=len, reverse=True)
        listed = b"|".join(re.escape(name.encode()) for name in ordered)
        self._line = re.compile(rb"\n(" + listed + rb")(?=[{ \t])(.*)")

    def read_samples(self, text: bytes) -> dict[str, list[MetricSample]]:
        """Return the samples of each name that is present."""
        found: dict[str, list[MetricSample]] = {}
        lines = list(islice(self._line.finditer(b"\n" + text), _SAMPLES + 1))
        for line in lines if len(lines) <= _SAMPLES else ():
            found.setdefault(line[1].decode(), []).append(_sample(line[2]))
        return found


Samples = Mapping[str, Sequence[MetricSample]]

_CACHE_CONFIG = "vllm:cache_config_info"
_STARTED = "process_start_time_seconds"
_names = Names((*(name for kind in KINDS for name in kind.series.names()), _CACHE_CONFIG, _STARTED))
_COUNTED = 1 << 48


class Metrics(msgspec.Struct, frozen=True):
    status: InstanceStatus | None  # None: it says nothing of it
    cache: EngineLimits | None  # of its KV cache. None: it is not vLLM's
    started_at_s: float | None  # when the process was started, by its own clock
    kind: EngineKind | None  # None: the metrics do not show it


def read_metrics(instance_id: str, text: bytes) -> Metrics:
    samples = _names.read_samples(text)
    started = samples.get(_STARTED, ())
    kind = _kind(samples)
    return Metrics(
        status=_status(instance_id, samples, kind.series) if kind is not None else None,
        cache=_cache(samples.get(_CACHE_CONFIG, ())),
        started_at_s=started[0].value if started else None,
        kind=kind,
    )


def _kind(samples: Samples) -> EngineKind | None:
    if _CACHE_CONFIG in samples:
        return VLLM
    return next(
        (kind for kind in KINDS if not samples.keys().isdisjoint(kind.series.names())), None
    )


def _status(instance_id: str, samples: Samples, series: Series) -> InstanceStatus | None:
    status = InstanceStatus(
        instance_id=instance_id,
        kv_used=_mean_share(_first(samples, series.kv_used)),
        running=_total(_first(samples, series.running)),
        waiting=_total(_first(samples, series.waiting)),
        waiting_for_room=_total(
            each
            for each in _first(samples, series.waiting_by_reason)
            if each.labels.get("reason") == "capacity"
        ),
        preemptions=_total(_first(samples, series.preemptions)),
        queried_tokens=_total(_first(samples, series.queried_tokens)),
        cached_tokens=_total(_first(samples, series.cached_tokens)),
    )
    return status if status != InstanceStatus(instance_id) else None


def _first(samples: Samples, names: Sequence[str]) -> Sequence[MetricSample]:
    return next((samples[name] for name in names if name in samples), ())


def _total(samples: Iterable[MetricSample]) -> int | None:
    counts = [_count(sample.value) for sample in samples]
    known = [count for count in counts if count is not None]
    total = sum(known)
    return total if known and len(known) == len(counts) and total < _COUNTED else None


def _count(value: float | None) -> int | None:
    is_count = value is not None and 0 <= value < _COUNTED and value.is_integer()
    return int(value) if value is not None and is_count else None


def _mean_share(samples: Sequence[MetricSample]) -> float | None:
    """Return the used share of all engines' memory; all have the same amount."""
    values = [sample.value if sample.value is not None else math.nan for sample in samples]
    if not values or not all(0 <= value <= 1 for value in values):
        return None
    return sum(values) / len(values)


def _cache(samples: Sequence[MetricSample]) -> EngineLimits | None:
    """Return vLLM's KV cache.

    The number of blocks covers all engines; one block of each is reserved by vLLM. The size in
    tokens is for one engine; it is the smaller bound where layers of several kinds share the
    blocks, so that a token takes more than one place.
    """
    if not samples:
        return None
    labels, engines = samples[0].labels, len(samples)
    told = labels.get("enable_prefix_caching")
    block_size = _whole(labels.get("effective_attention_block_size")) or _whole(
        labels.get("block_size")
    )
    blocks, size = _whole(labels.get("num_gpu_blocks")), _whole(labels.get("kv_cache_size_tokens"))
    kv_tokens = None
    if blocks and block_size and blocks > engines:
        kv_tokens = (blocks - engines) * block_size
        kv_tokens = min(kv_tokens, size * engines) if size else kv_tokens
    return EngineLimits(
        engines=engines,
        kv_tokens=kv_tokens,
        block_size=block_size,
        prefix_caching=None if told is None else told == "True",
    )


def _whole(told: str | None) -> int | None:
    return int(told) if told is not None and re.fullmatch("[1-9][0-9]{0,11}", told) else None


def _sample(rest: bytes) -> MetricSample:
    """Parse what follows a name: `{labels} value [timestamp]`. A label may contain braces."""
    labels, _, values = rest.rpartition(b"}")
    value = values.split()[:1]
    return MetricSample(
        {name.decode(): text.decode("utf-8", "replace") for name, text in _LABEL.findall(labels)},
        _number(value[0]) if value else None,
    )


def _number(text: bytes) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


SCRAPE_S = 2.0  # timeout of /metrics, so that they are still current
LOOKS_BETWEEN = 10
BLOCK_SIZE = 16  # tokens: vLLM's on a GPU


class Target(NamedTuple):
    """An upstream to watch, and its settings: defaults for what it does not report."""

    upstream: Upstream
    engine: EngineSettings


class NotReady(Exception):
    """The engine answered, but cannot serve."""


class Seen(msgspec.Struct, frozen=True):
    instance: Instance
    status: InstanceStatus | None  # None: its metrics did not come, or too late, or say nothing


class EngineProbe:
    """Probe of one engine, with what it has reported so far."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self.cards: dict[str, ModelCard] = {}  # of the models that it serves
        # None: not asked yet, or they may be others by now.
        self._limits: EngineLimits | None = None
        self._cache: EngineLimits | None = None
        self._started_at_s: float | None = None
        self._kind: EngineKind | None = None
        self._looks = 0

    def forget_limits(self) -> None:
        """Forget the limits: the process at the address may have changed."""
        self._limits = None

    async def probe(self, fetcher: Fetcher) -> Seen:
        """Probe the engine.

        Raises NotReady, OSError: It cannot be used now; as TimeoutError, it did not answer in time.
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
        is_whole = status == 200 and len(text) < MAX_FETCHED_BYTES
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
        engine, cache = self._target.engine, self._cache or EngineLimits()
        return Instance(
            id=self._target.upstream.id,
            models=tuple(self.cards),
            max_num_seqs=limits.max_num_seqs or engine.max_num_seqs or MAX_NUM_SEQS,
            max_num_batched_tokens=limits.max_num_batched_tokens,
            kv_tokens=limits.kv_tokens or cache.kv_tokens or engine.kv_tokens,
            block_size=limits.block_size or cache.block_size or BLOCK_SIZE,
            prefix_caching=False not in (limits.prefix_caching, cache.prefix_caching),
            priority=engine.priority if limits.priority is None else limits.priority,
            token_us=engine.token_us,
            phase=engine.phase,
            usd_per_hour=engine.usd_per_hour,
        )

    async def _get(self, fetcher: Fetcher, path: str, query: str = "") -> tuple[int, bytes]:
        return await fetcher.get(self._target.upstream, path, query)

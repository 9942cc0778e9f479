"""Differences between kinds of engines: metrics, where limits are reported, the priority header.

Everything else in Kairos speaks OpenAI's API. vLLM and llama.cpp are tested for real; SGLang's
names and answers are from its documentation ("Production Metrics" and "Native APIs" of 0.5).
"""

from collections.abc import Callable

import msgspec

from kairos.engines.engine_limits import EngineLimits, llama_limits, sglang_limits, vllm_limits


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """Names of metrics, by meaning.

    A name that was replaced in a later version follows its replacement, and is read only where the
    newer one is missing.
    """

    kv_used: tuple[str, ...] = ()
    running: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    waiting_by_reason: tuple[str, ...] = ()
    preemptions: tuple[str, ...] = ()
    queried_tokens: tuple[str, ...] = ()
    cached_tokens: tuple[str, ...] = ()

    def names(self) -> tuple[str, ...]:
        return tuple(name for names in msgspec.structs.astuple(self) for name in names)


class EngineKind(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of engine."""

    name: str
    series: Series
    limits_path: str  # where it reports its limits
    limits_query: str = ""
    limits: Callable[[bytes, int], EngineLimits]  # from the answer, and the number of engines
    is_slow_to_tell: bool = False  # the first time: it is asked again after a timeout
    # By it the engine orders what waits inside it, lower first; it wins over the body's `priority`.
    priority_header: str | None = None  # None: calls carry no priority for it


VLLM = EngineKind(
    name="vllm",
    series=Series(
        kv_used=("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
        running=("vllm:num_requests_running",),
        waiting=("vllm:num_requests_waiting",),
        waiting_by_reason=("vllm:num_requests_waiting_by_reason",),
        preemptions=("vllm:num_preemptions_total", "vllm:num_preemptions"),
        queried_tokens=(
            *("vllm:prefix_cache_queries_total", "vllm:prefix_cache_queries"),
            *("vllm:gpu_prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries"),
        ),
        cached_tokens=(
            *("vllm:prefix_cache_hits_total", "vllm:prefix_cache_hits"),
            *("vllm:gpu_prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits"),
        ),
    ),
    limits_path="/server_info",
    limits_query="config_format=json",
    limits=vllm_limits,
    is_slow_to_tell=True,
    priority_header="X-Vllm-Priority",
)
SGLANG = EngineKind(
    name="sglang",
    series=Series(
        kv_used=("sglang:token_usage",),
        running=("sglang:num_running_reqs",),
        waiting=("sglang:num_queue_reqs",),
        preemptions=("sglang:num_retracted_requests_total",),
        queried_tokens=("sglang:prompt_tokens_total",),
        cached_tokens=("sglang:cached_tokens_total",),
    ),
    limits_path="/get_server_info",
    limits=sglang_limits,
)
LLAMA = EngineKind(
    name="llama.cpp",
    series=Series(
        kv_used=("llamacpp:kv_cache_usage_ratio",),
        running=("llamacpp:requests_processing",),
        waiting=("llamacpp:requests_deferred",),
    ),
    limits_path="/props",
    limits=lambda props, _: llama_limits(props),
)
KINDS = (VLLM, SGLANG, LLAMA)

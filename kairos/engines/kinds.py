"""Differences between kinds of engines: metrics, reported limits, the priority header.

Limits are concurrent calls, KV tokens and the order of waiting calls; values of an unknown form are
ignored.

Everything else in Kairos speaks OpenAI's API. vLLM and llama.cpp are tested for real; SGLang's
names and answers are from its documentation ("Production Metrics" and "Native APIs" of 0.5).
"""

from collections.abc import Callable, Iterable

import msgspec

from kairos.request import decode_foreign

_LARGEST = 1 << 40
_json = msgspec.json.Decoder()


class EngineLimits(msgspec.Struct, frozen=True):
    """Limits of one engine; None where it does not report one."""

    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None  # of a step
    kv_tokens: int | None = None  # that running calls can hold, in all of them
    priority: bool | None = None  # what waits is ordered by the priority that calls carry
    block_size: int | None = None  # tokens
    prefix_caching: bool | None = None
    engines: int = 1  # that show themselves as one, with a cache each


class ModelCard(msgspec.Struct, frozen=True):
    """An engine's report on a model; None for values that it lacks."""

    max_model_len: int | None = None  # tokens of a prompt and its answer together
    parent: str | None = None  # the model that it adapts


def model_cards(answer: bytes) -> dict[str, ModelCard]:
    """Return the models that an answer of /v1/models names."""
    match decode_foreign(_json, answer):
        case {"data": list(entries)}:
            named = [each for each in entries if isinstance(each, dict) and "id" in each]
            return {str(each["id"]): _card(each) for each in named}
    return {}


def _card(told: dict[str, object]) -> ModelCard:
    length, parent, meta = told.get("max_model_len"), told.get("parent"), told.get("meta")
    if length is None and isinstance(meta, dict):  # as llama.cpp has it
        length = meta.get("n_ctx") or meta.get("n_ctx_train")
    return ModelCard(_whole(length), parent if isinstance(parent, str) else None)


def merged(cards: Iterable[dict[str, ModelCard]]) -> dict[str, ModelCard]:
    """Return one card for each model, with the smallest length where engines differ."""
    found: dict[str, ModelCard] = {}
    for each in cards:
        for name, card in each.items():
            known = found.get(name, ModelCard())
            lengths = [n for n in (known.max_model_len, card.max_model_len) if n is not None]
            found[name] = ModelCard(min(lengths, default=None), known.parent or card.parent)
    return dict(sorted(found.items()))


def llama_limits(props: bytes) -> EngineLimits:
    """Parse llama.cpp's slots and the KV tokens of all slots: its context is per slot."""
    match decode_foreign(_json, props):
        case {"total_slots": slots, "default_generation_settings": {"n_ctx": context}}:
            told, held = _whole(slots), _whole(context)
            if told is not None and held is not None:
                return EngineLimits(max_num_seqs=told, kv_tokens=told * held, priority=False)
    return EngineLimits()


def vllm_limits(server_info: bytes, engines: int) -> EngineLimits:
    """Parse vLLM's configuration, which it reports in development mode.

    `engines` is the number of engines behind the address; each has these limits.
    """
    match decode_foreign(_json, server_info):
        case {"vllm_config": {"scheduler_config": dict(told)}}:
            seqs, policy = _whole(told.get("max_num_seqs")), told.get("policy")
            return EngineLimits(
                max_num_seqs=seqs * engines if seqs is not None else None,
                max_num_batched_tokens=_whole(told.get("max_num_batched_tokens")),
                priority=policy == "priority" if policy in ("fcfs", "priority") else None,
            )
    return EngineLimits()


def sglang_limits(server_info: bytes, engines: int) -> EngineLimits:
    """Parse SGLang's configuration.

    It has one scheduler for each data-parallel rank, which may be `engines` or be listed in
    `internal_states`; memory is reported for one rank. It takes no priority in a header, so its
    internal queue has its own order.
    """
    told = decode_foreign(_json, server_info)
    if not isinstance(told, dict) or "max_total_num_tokens" not in told:
        return EngineLimits()
    states = told.get("internal_states")
    ranks = max(engines, len(states) if isinstance(states, list) else 1)
    seqs = _whole(told.get("max_running_requests"))
    match states:
        case [{"effective_max_running_requests_per_dp": each}, *_]:
            of_one = _whole(each)
            seqs = of_one * ranks if of_one is not None else seqs
    held, no_cache = _whole(told["max_total_num_tokens"]), told.get("disable_radix_cache")
    return EngineLimits(
        max_num_seqs=seqs,
        max_num_batched_tokens=_whole(told.get("chunked_prefill_size")),
        kv_tokens=held * ranks if held is not None else None,
        priority=False,
        block_size=_whole(told.get("page_size")),
        prefix_caching=not no_cache if isinstance(no_cache, bool) else None,
    )


def _whole(told: object) -> int | None:
    is_whole = isinstance(told, int) and not isinstance(told, bool) and 0 < told < _LARGEST
    return told if isinstance(told, int) and is_whole else None


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

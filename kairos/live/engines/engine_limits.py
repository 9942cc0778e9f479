"""What engines answer of their limits: how many calls they run at once, what those may hold, and in
which order others wait. An answer that says something else tells nothing."""

from typing import Any

import msgspec

_LARGEST = 1 << 40


class EngineLimits(msgspec.Struct, frozen=True):
    """Of one engine; None is what it does not tell."""

    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None  # of a step
    kv_tokens: int | None = None
    priority: bool | None = None  # what waits is ordered by the priority that calls carry


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


def llama_limits(props: bytes) -> EngineLimits:
    """llama.cpp's slots, and the tokens that they hold together: its context is per slot."""
    match _decode(props):
        case {"total_slots": slots, "default_generation_settings": {"n_ctx": context}}:
            told, held = _whole(slots), _whole(context)
            if told is not None and held is not None:
                return EngineLimits(max_num_seqs=told, kv_tokens=told * held, priority=False)
    return EngineLimits()


def vllm_limits(server_info: bytes, engines: int) -> EngineLimits:
    """What vLLM was started with, as it says in development mode. `engines` show themselves as one;
    each has these limits."""
    match _decode(server_info):
        case {"vllm_config": {"scheduler_config": dict(told)}}:
            seqs, policy = _whole(told.get("max_num_seqs")), told.get("policy")
            return EngineLimits(
                max_num_seqs=seqs * engines if seqs is not None else None,
                max_num_batched_tokens=_whole(told.get("max_num_batched_tokens")),
                priority=policy == "priority" if policy in ("fcfs", "priority") else None,
            )
    return EngineLimits()


def _whole(told: object) -> int | None:
    is_whole = isinstance(told, int) and not isinstance(told, bool) and 0 < told < _LARGEST
    return told if isinstance(told, int) and is_whole else None


def _decode(answer: bytes) -> Any:
    try:
        return msgspec.json.decode(answer)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None

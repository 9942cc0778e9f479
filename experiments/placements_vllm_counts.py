"""What vLLM counted of a run, and what follows: preemptions, and tokens that were computed again.

vLLM 0.32 tells how often it preempted, and nowhere what that cost: `prompt_tokens` and
`iteration_tokens_total` count a prompt once, however often it is computed, and `prefill_stats` are
those of the first time. But with `--enable-mfu-metrics` it adds up, step by step, the bytes that a
model of its own says were written: so many for each token that was computed, recomputed ones too,
and so many for each whose logits were needed. Both sizes are measured, with two calls whose tokens
are known. Then

    recomputed = computed - (prompts, as far as not cached + answers - one token an answer)

since the last token of an answer is never computed. Of a run without preemptions it is exactly 0.
A prompt, or what is computed again, that does not fit into one step is said to need logits with
each part: that makes each further part under one token too many (0.36 of one in `mid`).
"""

import re
from collections.abc import Sequence

import msgspec

from kairos.core import SetupError

_SAMPLE = re.compile(r"^vllm:(\w+)(?:\{([^}]*)\})? (\S+)$", re.MULTILINE)
_COMPUTED = 'source="local_compute"'


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """Since engines started, or between two readings. `running` and `waiting` are at the moment."""

    preemptions: int = 0
    prompt_tokens: int = 0  # that were not in a cache
    cached_tokens: int = 0  # of prompts
    generated_tokens: int = 0
    ended: int = 0  # calls, in whatever way but the client's leaving
    written_bytes: int = 0
    running: int = 0
    waiting: int = 0

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(**{name: getattr(self, name) + getattr(other, name) for name in _FIELDS})

    def __sub__(self, earlier: "Counts") -> "Counts":
        return Counts(**{name: getattr(self, name) - getattr(earlier, name) for name in _FIELDS})

    @property
    def needed_tokens(self) -> int:
        """That would have been computed without preemptions."""
        return self.prompt_tokens + self.generated_tokens - self.ended

    @property
    def is_idle(self) -> bool:
        return not self.running and not self.waiting


_FIELDS = Counts.__struct_fields__


def read_counts(metrics: str) -> Counts:
    """What an engine's /metrics say.

    Raises:
        SetupError: it is no vLLM, or was started without `--enable-mfu-metrics`.
    """
    sums: dict[str, float] = {}
    for name, labels, value in _SAMPLE.findall(metrics):
        if name != "prompt_tokens_by_source_total" or _COMPUTED in labels:
            sums[name] = sums.get(name, 0.0) + float(value)
    try:
        return Counts(
            preemptions=int(sums["num_preemptions_total"]),
            prompt_tokens=int(sums["prompt_tokens_by_source_total"]),
            cached_tokens=int(sums["prompt_tokens_cached_total"]),
            generated_tokens=int(sums["generation_tokens_total"]),
            ended=int(sums["request_success_total"]),
            written_bytes=int(sums["estimated_write_bytes_per_gpu_total"]),
            running=int(sums["num_requests_running"]),
            waiting=int(sums["num_requests_waiting"]),
        )
    except KeyError as missing:
        raise SetupError(f"an engine does not tell vllm:{missing.args[0]} in /metrics") from None


class Sizes(msgspec.Struct, frozen=True):
    """Bytes that vLLM counts as written."""

    of_token: int  # that is computed
    of_logits: int  # of a token

    def recomputed_tokens(self, counts: Counts) -> int:
        """Of all engines of a run, between two moments at which they were idle."""
        computed = counts.written_bytes - self.of_logits * counts.generated_tokens
        return round(computed / self.of_token) - counts.needed_tokens


def measured_sizes(calls: Sequence[Counts]) -> Sizes:
    """From two calls, each alone, of which one has a longer prompt, the other a longer answer.

    Raises:
        SetupError: no whole numbers of bytes explain what was counted.
    """
    (tokens, logits, written), (tokens2, logits2, written2) = (
        (call.needed_tokens, call.generated_tokens, call.written_bytes) for call in calls
    )
    determinant = tokens * logits2 - tokens2 * logits
    of_token, rest = divmod(written * logits2 - written2 * logits, determinant)
    of_logits, rest2 = divmod(tokens * written2 - tokens2 * written, determinant)
    if rest or rest2 or of_token <= 0 or of_logits < 0:
        raise SetupError(f"vLLM counts the bytes that it writes otherwise than known: {calls}")
    return Sizes(of_token, of_logits)

"""`python -m experiments.published`: times per token that others published, beside derived ones.

Public measurements of vLLM whose hardware, model, number of callers and context are told, so that
the planner's rates can be computed for the same. The table of docs/research/hardware.md.
"""

from collections.abc import Iterator

import msgspec

from kairos.capacity.engine_rates import derived
from kairos.capacity.hardware_options import load_catalogue

AIM = 0.30


class Published(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement."""

    what: str
    device: str  # of the catalogue
    bandwidth_gb_s: float  # of the card that was measured
    model: str
    callers: int  # at a time
    context_tokens: float  # of one sequence, in the mean over its answer
    ms: float  # a token
    why_off: str = ""  # where it is off by more than `AIM`


MUSGRAVE = "John Musgrave, vLLM throughput-latency sweep"
YOBITEL = "Yobitel, InferenceBench"
CLIENT = "the client, or prompts that were counted in: see the next"
LIMIT = "fewer tokens a second than with 16 callers, which no engine has that batches"
PUBLISHED = (
    Published(
        what=f"A100 40 GB, Llama-3.1-8B in BF16, vLLM 0.23 ({MUSGRAVE})",
        device="a100",
        bandwidth_gb_s=1555,
        model="llama-3-8b",
        callers=1,
        context_tokens=1088,
        ms=1000 / 75,
    ),
    *(
        Published(
            what=f"H100 80 GB, Llama-3.1-8B in FP16, vLLM 0.21 ({YOBITEL})",
            device="h100",
            bandwidth_gb_s=3350,
            model="llama-3-8b",
            callers=callers,
            context_tokens=300,
            ms=ms,
            why_off=why_off,
        )
        for callers, ms, why_off in (
            (1, 6.48, ""),
            (4, 6.59, ""),
            (16, 10.9, CLIENT),
            (64, 46.9, LIMIT),
        )
    ),
)


def derived_ms(published: Published) -> float:
    """What the planner would say of the same."""
    known = load_catalogue()
    card = msgspec.structs.replace(
        known.accelerator_named(published.device), bandwidth_gb_s=published.bandwidth_gb_s
    )
    rates = derived(card, known.model_named(published.model))
    return 1000 * rates.step_s(published.callers, published.context_tokens)


def lines() -> Iterator[str]:
    """A table in Markdown."""
    yield "| Published by | callers | published | derived | off | |"
    yield "|---|--:|--:|--:|--:|---|"
    for each in PUBLISHED:
        ms = derived_ms(each)
        yield (
            f"| {each.what} | {each.callers} | {each.ms:.3g} ms | {ms:.3g} ms "
            f"| {ms / each.ms - 1:+.0%} | {each.why_off} |"
        )


if __name__ == "__main__":
    print("\n".join(lines()))

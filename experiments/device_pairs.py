"""prefill::decode pairs of devices, each side in its best layout: what a million tokens cost.

As in section 5 of Asgar, Nguyen and Katti (2025): as many devices as are wanted, always busy, so
only the ratio of both sides' work counts; each side chooses its tensor and pipeline parallelism
within the targets. The paper's performance model was fitted to measurements that it does not give;
here it is the roofline of `engine_rates.py`.
"""

import math
from collections.abc import Sequence

import msgspec

from kairos.capacity.engine_rates import derived, layouts
from kairos.capacity.hardware import GBIT, Accelerator, ModelShape
from kairos.capacity.ownership import Terms, hourly_cost
from kairos.capacity.serving import NO_TARGETS, InstanceUse, LatencyTargets, Phases, use
from kairos.core import CallShape, SetupError


class PairSide(msgspec.Struct, frozen=True, kw_only=True):
    """Cheapest layout of one side of a pair."""

    device: str
    tensor: int
    pipeline: int
    use: InstanceUse
    usd_per_call: float

    @property
    def devices(self) -> int:
        return self.tensor * self.pipeline


class PhasePair(msgspec.Struct, frozen=True, kw_only=True):
    """Both sides, and the link between them."""

    prefill: PairSide
    decode: PairSide
    usd_per_million_tokens: float  # of prompts and answers together
    decode_per_prefill: float  # instances, so that both are always busy
    # That one decode device takes in when all caches of its calls come from elsewhere, steadily.
    link_gbit_s: float

    @property
    def name(self) -> str:
        return f"{self.prefill.device}::{self.decode.device}"


class PairQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """Calls to serve, and terms of payment."""

    model: ModelShape
    call: CallShape
    targets: LatencyTargets = NO_TARGETS
    precision: str = "bf16"
    terms: Terms = Terms()
    most_devices: int = 8  # of an instance


def pair(question: PairQuestion, prefill: Accelerator, decode: Accelerator) -> PhasePair | None:
    """The cheapest pair of these devices; None: a side is not in time in any layout.

    Raises:
        SetupError: a device has no price on these terms.
    """
    first = side(question, prefill, Phases.PREFILL)
    second = side(question, decode, Phases.DECODE)
    if first is None or second is None:
        return None
    call = question.call
    calls_per_s = 1 / second.use.busy_s
    size = question.model.kv_bytes_per_token() * call.prompt
    usd = first.usd_per_call + second.usd_per_call
    return PhasePair(
        prefill=first,
        decode=second,
        usd_per_million_tokens=usd / (call.prompt + call.answer) * 1e6,
        decode_per_prefill=second.use.busy_s / first.use.busy_s,
        link_gbit_s=size * calls_per_s / second.devices / GBIT,
    )


def side(question: PairQuestion, device: Accelerator, phases: Phases) -> PairSide | None:
    """The layout in which a call costs least; None: none is in time."""
    usd_per_s = hourly_cost(device, question.terms).total / 3600
    best: PairSide | None = None
    for tensor, pipeline in layouts(device, question.most_devices):
        found = _in_layout(question, device, phases, tensor, pipeline)
        if found is None:
            continue
        usd = found.busy_s * usd_per_s * tensor * pipeline
        if best is None or usd < best.usd_per_call:
            best = PairSide(
                device=device.name, tensor=tensor, pipeline=pipeline, use=found, usd_per_call=usd
            )
    return best


def _in_layout(
    question: PairQuestion, device: Accelerator, phases: Phases, tensor: int, pipeline: int
) -> InstanceUse | None:
    try:
        rates = derived(
            device,
            question.model,
            precision=question.precision,
            tensor=tensor,
            pipeline=pipeline,
        )
    except SetupError:  # the model does not fit on so few
        return None
    return use(rates, question.call, phases, question.targets)


def compared(
    question: PairQuestion,
    devices: Sequence[tuple[Accelerator, Accelerator]],
    baseline: tuple[Accelerator, Accelerator],
) -> dict[str, float | None]:
    """Return tokens per dollar relative to the baseline, by name of the pair.

    A pair that misses the target has None. If the baseline misses it, all have None.
    """
    base = pair(question, *baseline)
    usd = math.nan if base is None else base.usd_per_million_tokens
    ratios: dict[str, float | None] = {}
    for prefill, decode in devices:
        found = pair(question, prefill, decode)
        in_time = found is not None and base is not None
        name = f"{prefill.name}::{decode.name}"
        ratios[name] = usd / found.usd_per_million_tokens if in_time and found else None
    return ratios

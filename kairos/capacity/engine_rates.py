"""Time of an engine's steps, from a device's data sheet and a model's shapes.

A roofline (Williams, Waterman and Patterson, 2009) in the terms of `sim.engine.profile.StepCost`: a
step reads the weights or computes, whichever is longer, and reads the KV cache. The arithmetic is
that of the profiles in `engines/profiles/`, so a device and a model of the catalogue give the same
figures. Beyond them:

Tensor parallelism over t devices divides weights, arithmetic and cache by t, and adds two
all-reduces a layer: as a ring, each moves 2 (t-1)/t of a token's activations over the link inside
the chassis, and has a latency. Pipeline parallelism over p stages divides memory and lets p batches
be in flight at once; a batch takes as long as before, and p-1 hops more. Data parallelism is
another instance, so it needs no model here.

Expert parallelism over e devices, of a mixture of experts: each device has every e-th expert, and
all of the attention's weights, for its part of the sequences (data parallelism). So caches are not
divided by heads. Twice a layer tokens are sent to their experts' devices and back, which is an
all-to-all: less traffic than all-reduces if few experts are active. The device with most tokens has
1.25 times the mean; assumed, as with vLLM's load balancing. A single prompt is computed on one
device, and takes longer than the mean that is used here.

If tensor parallelism has more devices than the model has key-value heads, caches are duplicated, as
in vLLM.

A mixture of experts reads the experts that its batch uses: with k of E experts for each token, and
tokens that choose independently, the share 1 - (1 - k/E)^b for b tokens.
"""

import math
from collections.abc import Callable, Iterator

import msgspec

from kairos.capacity.hardware import GB, GIB, PRECISIONS, Accelerator, ModelShape
from kairos.core import EngineProfile, SetupError, StepCost

IMBALANCE = 1.25  # of experts' work, the busiest device over the mean: assumed
CALL_S = 2e-3  # HTTP, the tokenizer, the way to the engine: as in engines/profiles, assumed for all
FIXED_S = 1.05e-3  # sampling and the scheduler, a step: likewise
ALL_REDUCE_S = 10e-6  # latency of one, inside of a chassis: assumed
HOP_S = 20e-6  # from one stage to the next: assumed
LINK_REACHED = 0.8  # of a link's peak: assumed
MEMORY_SHARE = 0.9  # of a device's memory that the engine takes: vLLM's gpu_memory_utilization
CHUNK_TOKENS = 8192  # of prompts in a step, at most: vLLM's default on large GPUs
MANY_PROMPTS = 50  # to a token: beyond, their number hardly varies
NEGLIGIBLE = 1e-9  # probability
_US = 1e-6
CLOSE, MOST_COUNTED = 1e-6, 400
LARGE_GIB, FEW_SEQS, MANY_SEQS = 70, 256, 1024  # vLLM's defaults of max_num_seqs, by memory


class EngineRates(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds that steps of an instance take; `StepCost` says what each is a factor of."""

    rests_on: str  # where the figures come from
    measured: bool
    devices: int = 1
    stages: int = 1  # batches that are under way at once
    expert_parallel: bool = False
    kv_tokens: float  # of the whole instance
    max_num_seqs: int = FEW_SEQS  # of the whole instance
    chunk_tokens: int = CHUNK_TOKENS
    call_s: float = 0.0  # HTTP and the tokenizer
    fixed_s: float = 0.0
    weights_s: float = 0.0
    prefill_token_s: float = 0.0
    prefill_seq_s: float = 0.0
    decode_seq_s: float = 0.0
    kv_token_s: float = 0.0
    attention_s: float = 0.0
    exchange_s: float = 0.0  # between devices, a token of either phase
    expert_share: float = 0.0  # of the weights' time, that of the experts
    active_share: float = 1.0  # of the experts, those that one token meets

    def prefill_s(self, new_tokens: float, cached_tokens: float = 0.0, prompts: int = 1) -> float:
        """Return the time from the first step on such prompts to their first tokens, when idle."""
        pairs = prompts * StepCost.attended_pairs(new_tokens, cached_tokens)
        steps = math.ceil(new_tokens * prompts / self.chunk_tokens) or 1
        return self._steps_s(steps, prompts, new_tokens * prompts, pairs, 0.0, 0.0)

    def step_s(self, batch: float, context_tokens: float) -> float:
        """Return the time of a step in which `batch` sequences of a stage get their next token.

        Args:
            batch: number of sequences.
            context_tokens: of one sequence, on average.
        """
        return self._steps_s(1.0, 0.0, 0.0, 0.0, batch, context_tokens)

    def mixed_step_s(
        self,
        batch: float,
        context_tokens: float,
        prompts: float,
        new_tokens: float,
        pairs: float,
        together: float = 1.0,
    ) -> float:
        """Return the time of a step while prompts are computed, too.

        Arithmetic hides behind reading the weights that decoding needs anyway. How much of it
        depends on the arrival of prompts: most steps have none, some have several. Their number is
        assumed to be Poisson; the mean of the times is returned, not the time of the mean. If
        prompts exceed a step's chunk, there are several steps for each token.

        Args:
            batch: number of sequences that decode.
            context_tokens: of one sequence, on average.
            prompts: begun with each token, on average.
            new_tokens: of one prompt.
            pairs: of one prompt: `StepCost.attended_pairs`.
            together: variance over mean of the number of prompts in a step; 1: they arrive one by
                one.
        """

        def with_prompts(count: float) -> float:
            tokens = count * new_tokens
            steps = max(1.0, (tokens + batch) / self.chunk_tokens)
            return self._steps_s(steps, count, tokens, count * pairs, batch, context_tokens)

        if prompts > MANY_PROMPTS or not new_tokens:
            return with_prompts(prompts)
        return sum(share * with_prompts(count) for count, share in _counts(prompts, together))

    def beside_s(
        self, batch: float, context_tokens: float, new_tokens: float, pairs: float
    ) -> float:
        """Return the time of the steps that compute one prompt while others decode."""
        steps = max(1, math.ceil((new_tokens + batch) / self.chunk_tokens))
        return self._steps_s(steps, 1.0, new_tokens, pairs, batch * steps, context_tokens)

    def _steps_s(
        self,
        steps: float,
        prompts: float,
        tokens: float,
        pairs: float,
        batch: float,
        context_tokens: float,
    ) -> float:
        computing = self.prefill_token_s * tokens + self.decode_seq_s * batch
        reading = self.weights_read_s((tokens + batch) / steps) * steps
        matrices = self.fixed_s * steps + max(reading, computing)
        caches = self.kv_token_s * batch * context_tokens + self.attention_s * pairs
        return matrices + caches + self.prefill_seq_s * prompts + self.exchange_s * (tokens + batch)

    def weights_read_s(self, tokens: float) -> float:
        """Return the time to read the weights that `tokens` of a step meet."""
        met = 1 - (1 - self.active_share) ** max(tokens, 1.0) if self.active_share < 1 else 1.0
        return self.weights_s * (1 - self.expert_share * (1 - met))

    def largest_batch(self, context_tokens: float, tpot_s: float = math.inf) -> int:
        """Return the number of sequences that all stages decode at once, within memory and time.

        Returns 0 if a single sequence would not fit, or be too slow.
        """
        room = self.kv_tokens / self.stages / context_tokens
        most = int(min(room, self.max_num_seqs / self.stages))
        found = largest_fitting(most, lambda batch: self.step_s(batch, context_tokens) <= tpot_s)
        return found * self.stages


def largest_fitting(most: int, fits: Callable[[int], bool]) -> int:
    """Return the largest number up to `most` that fits, if all below it do; 0: no number fits."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low


def _counts(mean: float, together: float) -> Iterator[tuple[int, float]]:
    """Yield numbers and their probabilities, until what is left does not matter.

    Poisson's, or a negative binomial where variance over mean (`together`) is above 1.
    """
    more = together - 1
    shape = mean / more if more > CLOSE else 0.0
    share = together**-shape if shape else math.exp(-mean)
    left, count = 1.0, 0
    while left > NEGLIGIBLE and count < MOST_COUNTED:
        yield count, share
        left -= share
        share *= more / together * (shape + count) / (count + 1) if shape else mean / (count + 1)
        count += 1


def measured_rates(profile: EngineProfile) -> EngineRates:
    """Return a profile, as written by `kairos calibrate`, in the planner's terms."""
    step = profile.step
    return EngineRates(
        rests_on=f"profile {profile.name}",
        measured=profile.measured,
        kv_tokens=profile.kv_tokens,
        max_num_seqs=profile.max_num_seqs,
        chunk_tokens=profile.max_num_batched_tokens,
        call_s=profile.call_us * _US,
        fixed_s=step.fixed_us * _US,
        weights_s=step.weights_us * _US,
        prefill_token_s=step.prefill_token_us * _US,
        prefill_seq_s=step.prefill_seq_us * _US,
        decode_seq_s=step.decode_seq_us * _US,
        kv_token_s=step.kv_token_us * _US,
        attention_s=step.attention_us * _US,
    )


def derived(
    device: Accelerator,
    model: ModelShape,
    *,
    precision: str = "bf16",
    tensor: int = 1,
    pipeline: int = 1,
    expert: int = 1,
) -> EngineRates:
    """Return the rates of an instance of `tensor` times `pipeline` devices, or of `expert` devices.

    Raises:
        SetupError: the model does not fit there, or the device lacks the arithmetic or the links.
    """
    together = max(tensor, expert)  # devices that share a layer
    tflops = _check(device, precision, together, pipeline)
    if expert > 1 and (tensor > 1 or pipeline > 1 or model.experts % expert):
        raise SetupError(f"{model.name} has no {expert} equal parts of its experts")
    weight_bytes = PRECISIONS[precision]
    read = device.reached.bandwidth * device.bandwidth_gb_s * GB * together  # bytes a second
    flop = device.reached.arithmetic * tflops * 1e12 * together
    attended = device.reached.attention * tflops * 1e12 * together
    active = model.layer_weights(active=True)
    if expert > 1:
        met = model.expert_weights * model.active_experts / model.experts
        active += met * (IMBALANCE - 1)
    # Every device of expert parallelism has, and reads, what is no expert.
    layers = model.layer_weights(active=False) + model.embedding
    copies = (layers - model.expert_weights) * (expert - 1)
    kv_bytes = model.kv_bytes_per_token() * max(1.0, tensor / model.kv_heads)
    exchange_s, exchanges_s = _exchange(device, model, tensor, expert)
    devices = together * pipeline
    encoder = 2 * (model.encoder or 0.0) * model.encoder_inputs
    return EngineRates(
        rests_on=f"{device.source}; {model.source}; reached: {device.reached.source}",
        measured=False,
        devices=devices,
        stages=pipeline,
        expert_parallel=expert > 1,
        kv_tokens=_kv_tokens(device, model, weight_bytes, devices, expert)
        * (model.kv_bytes_per_token() / kv_bytes),
        max_num_seqs=(MANY_SEQS if device.memory_gb * GB >= LARGE_GIB * GIB else FEW_SEQS) * expert,
        chunk_tokens=CHUNK_TOKENS * expert,
        call_s=CALL_S,
        fixed_s=FIXED_S + exchanges_s + (pipeline - 1) * HOP_S,
        weights_s=weight_bytes * (layers + copies) / read,
        prefill_token_s=(2 * active + encoder) / flop,
        decode_seq_s=2 * (active + model.embedding) / flop,
        kv_token_s=kv_bytes / read,
        attention_s=4 * model.layers * model.heads * model.head_size / attended,
        exchange_s=exchange_s,
        expert_share=model.expert_weights / (layers + copies),
        active_share=model.active_experts / model.experts,
    )


def _check(device: Accelerator, precision: str, tensor: int, pipeline: int) -> float:
    """Return the device's speed. Raises SetupError."""
    tflops = device.tflops_at(precision)
    if precision not in PRECISIONS or tflops is None:
        raise SetupError(f"{device.name} does not compute in {precision}")
    if tensor > device.scale_up_devices:
        raise SetupError(
            f"{device.name} has {device.scale_up_devices} devices in a chassis: {tensor} cannot "
            "share a layer"
        )
    if tensor < 1 or pipeline < 1:
        raise SetupError("tensor and pipeline parallelism are 1 or more")
    return tflops


def _kv_tokens(
    device: Accelerator, model: ModelShape, weight_bytes: float, devices: int, expert: int
) -> float:
    """Return the KV tokens of an instance. Raises SetupError: the weights leave no room."""
    per_device = MEMORY_SHARE * device.memory_gb * GB - device.reserved_gib * GIB
    copies = (model.weights - model.expert_weights) * (expert - 1)
    free = devices * per_device - weight_bytes * (model.weights + copies)
    if free <= 0:
        raise SetupError(f"{model.name} does not fit on {devices} x {device.name}")
    return float(free / model.kv_bytes_per_token())


def _exchange(
    device: Accelerator, model: ModelShape, tensor: int, expert: int
) -> tuple[float, float]:
    """Return the communication time between devices of a layer: seconds a token, and a step."""
    devices = max(tensor, expert)
    if devices == 1:
        return 0.0, 0.0
    assert device.scale_up_gb_s is not None or device.scale_up_devices == 1
    link = LINK_REACHED * (device.scale_up_gb_s or math.inf) * GB
    other = (devices - 1) / devices
    if expert > 1:  # each device sends its part of the tokens to their experts, and gets them back
        moved = 2 * min(model.active_experts, devices) * other * model.hidden * 2 / devices
        return model.layers * moved / link, 2 * model.layers * ALL_REDUCE_S
    moved = 2 * other * model.hidden * 2  # bytes of an all-reduce, in bf16
    return 2 * model.layers * moved / link, 2 * model.layers * ALL_REDUCE_S


def expert_layouts(device: Accelerator, model: ModelShape, most_devices: int = 8) -> Iterator[int]:
    """Yield numbers of devices for expert parallelism: powers of two."""
    expert = 2
    while model.experts > 1 and expert <= min(device.scale_up_devices, most_devices):
        if model.experts % expert == 0:
            yield expert
        expert *= 2


def layouts(device: Accelerator, most_devices: int = 8) -> Iterator[tuple[int, int]]:
    """Yield layouts worth considering, tensor and pipeline parallelism: powers of two of each."""
    tensor = 1
    while tensor <= min(device.scale_up_devices, most_devices):
        pipeline = 1
        while tensor * pipeline <= most_devices:
            yield tensor, pipeline
            pipeline *= 2
        tensor *= 2

"""Accelerators, processors, models, links and prices of catalogues, with checks.

Units are in the names. Speeds are peaks for dense matrices, of one device, as stated by its vendor;
the share of a peak that is reached is a separate figure (`reached`).

Links carry KV caches between the instances of a prefill::decode pair: equation 3 of Asgar, Nguyen
and Katti (2025), section 5.2. They find links of 200 to 400 Gbit/s enough for 32k tokens; by their
own equation 2 one decode GPU of Llama-3-8B needs 1718 Gbit/s for a cache of 32k tokens within 20 ms
(docs/research/hardware.md).
"""

import math
from collections.abc import Iterable, Mapping
from typing import Literal, TypeVar

import msgspec
from msgspec.structs import astuple

from kairos.core import SetupError

GB, GBIT = 1e9, 1e9 / 8  # bytes
GIB = 2**30
CAPACITY_UNITS: Mapping[str, str] = {  # of resources other than accelerators
    "cores": "",
    "memory": "GiB",
    "disk": "GB",
    "network": "Gbit/s",
    "kw": "kW",
}
PRECISIONS: Mapping[str, float] = {"bf16": 2.0, "fp8": 1.0}  # bytes of a weight


class Price(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Price of a device."""

    usd: float  # bought: once; rented: per hour
    source: str
    date: str  # YYYY-MM, or with the day


class Reached(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Shares of the peaks that vLLM's kernels reach.

    The defaults, of `engines/profiles/h200-llama3-8b.toml`, are assumed for every device without
    measurements.
    """

    bandwidth: float = 0.80
    arithmetic: float = 0.60  # in the layers' matrices
    attention: float = 0.50  # of the arithmetic, in prefill's attention
    source: str = "assumed"


class Accelerator(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A device: a GPU, another accelerator, or a processor."""

    name: str
    vendor: str
    kind: Literal["accelerator", "cpu"] = "accelerator"
    memory_gb: float  # 10^9 bytes
    bandwidth_gb_s: float  # of its memory
    tflops: Mapping[str, float] = {}  # dense, by precision: bf16, fp8
    watts: float  # at most (TDP)
    cores: int | None = None  # of processors
    # Between devices of one chassis, each direction, and how many there are in it.
    scale_up_gb_s: float | None = None
    scale_up_devices: int = 1
    scale_out_gbit_s: float | None = None  # to other chassis, per device; None: the plan's link
    # What the engine cannot use: activations, graphs, the runtime.
    reserved_gib: float = 2.0
    reached: Reached = Reached()
    source: str  # of the figures above: whose document
    date: str
    notes: str = ""
    bought: Price | None = None
    rented: Price | None = None

    def tflops_at(self, precision: str) -> float | None:
        """Return the dense speed; without fp8 that of bf16, since weights are then widened."""
        return self.tflops.get(precision, self.tflops.get("bf16"))


class Resource(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Price of a resource other than accelerators: cores, memory, disk, network."""

    name: str  # as `resources.UNITS` has it
    usd_per_hour: float  # of one unit
    source: str
    date: str


class ModelShape(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Decoder-only transformer, by its shapes."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head: int | None = None  # numbers of a head; None: hidden / heads
    mlp: int  # of one expert
    vocabulary: int
    tied: bool = False  # input and output embeddings are one
    experts: int = 1
    active_experts: int = 1
    # Weights of an encoder of sound or pictures, that a prompt passes first, and how many of its
    # inputs make one token of the prompt.
    encoder: float | None = None
    encoder_inputs: float = 1.0
    source: str
    date: str

    @property
    def head_size(self) -> int:
        return self.head if self.head is not None else self.hidden // self.heads

    def layer_weights(self, *, active: bool) -> float:
        """Return the numbers in all layers: the ones that every token meets, or all."""
        experts = self.active_experts if active else self.experts
        router = self.hidden * self.experts if self.experts > 1 else 0
        mlp = 3 * self.hidden * self.mlp * experts
        attention = 2 * self.hidden * self.head_size * (self.heads + self.kv_heads)
        return float(self.layers * (attention + mlp + router))

    @property
    def embedding(self) -> float:
        return float(self.vocabulary * self.hidden)

    @property
    def weights(self) -> float:
        """Return the numbers of the model; norms and biases, under 0.1 %, are not counted."""
        decoder = self.layer_weights(active=False) + self.embedding * (1 if self.tied else 2)
        return decoder + (self.encoder or 0.0)

    @property
    def expert_weights(self) -> float:
        """Return the numbers in all experts; 0 without experts."""
        mixture = self.experts > 1
        return float(3 * self.layers * self.hidden * self.mlp * self.experts * mixture)

    def kv_bytes_per_token(self, bytes_per_number: float = 2.0) -> float:
        """Return the bytes of keys and values of all layers, for a token.

        The paper's equation 3 has d_model * N_kv / N_heads as the width, which is the same if a
        head is hidden / heads; models such as Qwen3 have wider heads.
        """
        return 2 * self.layers * self.kv_heads * self.head_size * bytes_per_number


class HardwareCatalogue(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A catalogue file: `[[accelerator]]`, `[[model]]` and `[[resource]]` tables."""

    accelerator: tuple[Accelerator, ...] = ()
    model: tuple[ModelShape, ...] = ()
    resource: tuple[Resource, ...] = ()

    def with_others(self, other: "HardwareCatalogue") -> "HardwareCatalogue":
        """Return both catalogues as one; entries of the other one take precedence."""
        pairs = zip(astuple(self), astuple(other), strict=True)
        named = ({each.name: each for each in (*ours, *theirs)} for ours, theirs in pairs)
        return HardwareCatalogue(*(tuple(entries.values()) for entries in named))

    def accelerator_named(self, name: str) -> Accelerator:
        """Return a device. Raises SetupError: it does not exist; the message lists the names."""
        return _named(self.accelerator, name, "accelerator")

    def model_named(self, name: str) -> ModelShape:
        """Return a model. Raises SetupError: it does not exist; the message lists the names."""
        return _named(self.model, name, "model")

    def problem(self) -> str | None:
        """Return what is invalid, and where; None if all is valid."""
        entries: tuple[Accelerator | ModelShape, ...] = (*self.accelerator, *self.model)
        found = [*map(_problem_of, entries), *map(_problem_of_resource, self.resource)]
        return next((each for each in found if each), None)


T = TypeVar("T", Accelerator, ModelShape)


def _named(entries: tuple[T, ...], name: str, what: str) -> T:
    for one in entries:
        if one.name == name:
            return one
    known = ", ".join(sorted(one.name for one in entries))
    raise SetupError(f"the catalogue has no {what} '{name}'; it has {known}")


def _problem_of(entry: Accelerator | ModelShape) -> str | None:
    for name, value in _figures(entry):
        if not 0 < value < math.inf:
            return f"{entry.name}: {name} is {value:g}; give more than 0, and finite"
    if not entry.source or not entry.date:
        return f"{entry.name}: source and date say where its figures are from: give both"
    if isinstance(entry, ModelShape):
        if entry.active_experts > entry.experts:
            return f"{entry.name}: active_experts is above experts ({entry.experts})"
        if entry.heads % entry.kv_heads:
            return f"{entry.name}: heads is no multiple of kv_heads ({entry.kv_heads})"
        return None
    return _problem_of_device(entry)


def _problem_of_resource(resource: Resource) -> str | None:
    if resource.name not in CAPACITY_UNITS:
        return f"{resource.name}: known resources are {', '.join(CAPACITY_UNITS)}"
    if not 0 <= resource.usd_per_hour < math.inf or not (resource.source and resource.date):
        return f"{resource.name}: a price has usd_per_hour (0 or more), source and date"
    return None


def _problem_of_device(device: Accelerator) -> str | None:
    if unknown := set(device.tflops) - set(PRECISIONS):
        return f"{device.name}: tflops.{min(unknown)}: known are {', '.join(PRECISIONS)}"
    if device.kind == "accelerator" and "bf16" not in device.tflops:
        return f"{device.name}: tflops.bf16 is missing"
    if device.kind == "cpu" and device.cores is None:
        return f"{device.name}: a cpu has cores"
    for name in ("bandwidth", "arithmetic", "attention"):
        if not 0 < (share := getattr(device.reached, name)) <= 1:
            return f"{device.name}: reached.{name} is {share:g}; give a share up to 1"
    for price in (device.bought, device.rented):
        if price is not None and not (0 <= price.usd < math.inf and price.source and price.date):
            return f"{device.name}: a price has usd (0 or more), source and date"
    return None


def _figures(entry: Accelerator | ModelShape) -> Iterable[tuple[str, float]]:
    for name, value in msgspec.structs.asdict(entry).items():
        if isinstance(value, bool):
            continue
        if isinstance(value, int | float) and name != "reserved_gib":
            yield name, value
        elif name == "tflops":
            yield from ((f"tflops.{key}", each) for key, each in value.items())


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """Link between the two instances of a pair."""

    gbit_s: float = 400.0  # RoCE or InfiniBand NDR, per device
    latency_s: float = 20e-6  # of a message
    # Share of a transfer that overlaps with prefill: layer by layer all but the last layer may.
    overlapped: float = 0.0

    @property
    def bytes_per_s(self) -> float:
        return self.gbit_s * GBIT


def transfer_s(size_bytes: float, link: Link, devices: int = 1) -> float:
    """Return the time of a cache's transfer after prefill, over the links of `devices` devices."""
    return link.latency_s + (1 - link.overlapped) * size_bytes / (link.bytes_per_s * devices)

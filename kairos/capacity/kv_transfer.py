"""KV caches between the instances of a prefill::decode pair: how large, and over what links.

Equation 3 of Asgar, Nguyen and Katti (2025), section 5.2. They find links of 200 to 400
Gbit/s enough for 32k tokens; by their own equation 2 one decode GPU of Llama-3-8B needs 1718 Gbit/s
for a cache of 32k tokens within 20 ms (docs/research/hardware.md).
"""

import msgspec

from kairos.capacity.hardware import GBIT, ModelShape


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """Link between the two instances of a pair."""

    gbit_s: float = 400.0  # RoCE or InfiniBand NDR, per device
    latency_s: float = 20e-6  # of a message
    # Share of a transfer that overlaps with prefill: layer by layer all but the last layer may.
    overlapped: float = 0.0

    @property
    def bytes_per_s(self) -> float:
        return self.gbit_s * GBIT


def cache_bytes(
    model: ModelShape, prompt_tokens: float, *, batch: float = 1.0, bytes_per_number: float = 2.0
) -> float:
    """Return the size of the KV cache of a batch of prompts: equation 3."""
    return model.kv_bytes_per_token(bytes_per_number) * prompt_tokens * batch


def transfer_s(size_bytes: float, link: Link, devices: int = 1) -> float:
    """Return the time of a cache's transfer after prefill, over the links of `devices` devices."""
    return link.latency_s + (1 - link.overlapped) * size_bytes / (link.bytes_per_s * devices)

"""Choose how an engine gets a prefix that it does not hold: compute it again, load it from the
host's memory, or move it from another engine, by what is quickest.

Recomputing is arithmetic (and attention, which grows with the square of the prefix); the other two
are bytes over a link after its latency, less the share of a transfer that overlaps with computing.
So short prefixes are computed, and long ones come. Halo shows the same (its figure 4): a transfer
over PCIe is a tenth of a prefill. Queues before a link or an engine are the caller's to add.
"""

from typing import Literal, NamedTuple

import msgspec

from kairos.capacity.hardware import Link, transfer_s
from kairos.core import EngineProfile, StepCost

KvAction = Literal["recompute", "load", "move"]
_US = 1_000_000


class KvTiers(msgspec.Struct, frozen=True, kw_only=True):
    """Links: `host` from the host's memory, `peer` from other engines; None where one is
    missing.
    """

    bytes_per_token: float
    host: Link | None = None
    peer: Link | None = None


class KvChoice(NamedTuple):
    action: KvAction
    us: float


def recompute_us(profile: EngineProfile, tokens: int, held: int = 0) -> float:
    """Return the added arithmetic of `tokens` of a prompt after `held` cached ones, in steps of
    `max_num_batched_tokens` that read the weights.
    """
    if tokens <= 0:
        return 0.0
    step = profile.step
    steps = -(-tokens // profile.max_num_batched_tokens)
    matrices = max(step.weights_us * steps, step.prefill_token_us * tokens)
    pairs = StepCost.attended_pairs(tokens, held)
    return step.fixed_us * steps + matrices + step.attention_us * pairs


def choose(
    profile: EngineProfile, tiers: KvTiers, tokens: int, *, in_host: int = 0, at_peer: int = 0
) -> KvChoice:
    """Choose the way for a prefix of `tokens`, given how many of its first tokens each tier has.

    The rest is computed afterwards. Ties prefer recomputing, then loading, then moving.
    """
    ways = [KvChoice("recompute", recompute_us(profile, tokens))]
    for action, link, has in (("load", tiers.host, in_host), ("move", tiers.peer, at_peer)):
        if link is not None and has > 0:
            comes = min(has, tokens)
            us = transfer_s(comes * tiers.bytes_per_token, link) * _US
            us += recompute_us(profile, tokens - comes, comes)
            ways.append(KvChoice("load" if action == "load" else "move", us))
    return min(ways, key=lambda way: way.us)

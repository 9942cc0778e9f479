"""Digests of what is decided: `python -m tests.simulation.logs`, a line for each log."""

import hashlib

import msgspec

from kairos.core import PLACEMENTS, POLICIES
from tests.simulation.core import overload
from tests.support.simulate import build

SEEDS = (1,)
# Each policy, and each placement, with the other as it is by default.
DECIDERS = sorted({(p, "kairos") for p in POLICIES} | {("kairos", p) for p in PLACEMENTS})


def digests():
    """By what it is of; logs of every policy and placement, and of a pool with too much work."""
    logs = {
        f"{policy}, {placement}, {seed}": build.simulate(seed, policy=policy, placement=placement)
        for policy, placement in DECIDERS
        for seed in SEEDS
    }
    found = {name: _digest(log) for name, (log, _) in logs.items()}
    for seed in SEEDS:
        *_, log = overload.ran(seed, load=2, policy="kairos")
        found[f"overload, {seed}"] = _digest(log)
    return found


def _digest(log):
    return hashlib.sha256(msgspec.json.encode(log)).hexdigest()


if __name__ == "__main__":
    for name, digest in digests().items():
        print(f"{name}: {digest}")

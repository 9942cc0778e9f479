"""The rates at which policies and placements are compared: found once, kept in results/rates.json.

The load of a run is told by the time that calls wait in Kairos's queue, as a share of the
workflows' end-to-end time, under `fcfs` and `round-robin`: 10 % is low, 50 % middle, 70 % high. The
rate of each is found by bisection on the mean share over three seeds. Found anew with

    python -m experiments rates [WORKLOAD ...]
"""

import math
from collections.abc import Callable, Mapping
from statistics import fmean

import msgspec

from experiments.report import RESULTS
from experiments.runs import Cell, in_parallel
from experiments.workload import Workload

RATES = RESULTS / "rates.json"
LOADS = {"low": 0.1, "middle": 0.5, "high": 0.7}  # share of the time in the queue
SEEDS = (1, 2, 3)
NEAR = 0.02  # of the share: less is noise
LEAST, MOST = 0.02, 100.0  # workflows per second
CLOSE = 1.05  # rates that differ by less are taken for the same


class Found(msgspec.Struct, frozen=True, kw_only=True):
    rate_per_s: float
    queued_share: float  # there
    workflows: int  # of the runs: it depends on them too


Rates = dict[str, dict[str, Found]]  # workload -> load


def rates() -> Rates:
    """Those that were found."""
    return msgspec.json.decode(RATES.read_bytes(), type=Rates) if RATES.exists() else {}


def find(workload: Workload, processes: int, tell: Callable[[str], None]) -> None:
    """Find the rates of a workload, and keep them."""

    def measure(rate_per_s: float) -> float:
        share = queued_share(workload, rate_per_s, processes)
        tell(f"{workload.name}: {rate_per_s:g} workflows/s: {share:.1%} queued")
        return share

    shares: dict[float, float] = {}  # by rate
    for target in LOADS.values():
        search(shares, target, measure)
    known = rates()
    known[workload.name] = {
        load: nearest(shares, target, workload.workflows) for load, target in LOADS.items()
    }
    RATES.write_bytes(msgspec.json.format(msgspec.json.encode(known), indent=2) + b"\n")


def search(shares: dict[float, float], target: float, measure: Callable[[float], float]) -> None:
    """Measure rates until one is near enough, or no further one is worth it. What is known already
    narrows it down: the share grows with the rate, but for noise."""
    while not any(abs(known - target) <= NEAR for known in shares.values()):
        low = max((rate for rate, known in shares.items() if known < target), default=LEAST)
        high = min((r for r, known in shares.items() if known > target and r > low), default=MOST)
        if high / low < CLOSE:
            return
        if high == MOST and low in shares and shares[low] < max(shares.values()):
            return  # more arrivals do not fill the queue more: so many workflows cannot
        rate = float(f"{math.sqrt(low * high):.3g}")
        shares[rate] = measure(rate)


def nearest(shares: Mapping[float, float], target: float, workflows: int) -> Found:
    rate = min(shares, key=lambda each: abs(shares[each] - target))
    return Found(rate_per_s=rate, queued_share=round(shares[rate], 4), workflows=workflows)


def queued_share(workload: Workload, rate_per_s: float, processes: int) -> float:
    cells = [
        Cell(
            workload=workload.name,
            rate_per_s=rate_per_s,
            workflows=workload.workflows,
            policy="fcfs",
            placement="round-robin",
            seed=seed,
        )
        for seed in SEEDS
    ]
    return fmean(each.queued_share or 0.0 for _, each in in_parallel(cells, processes))

"""The conditions in which both sides are compared, and a line of the results."""

import msgspec

from experiments.fidelity_cpu import Cores
from experiments.fidelity_engines import ROOMY, SMALL, Limits
from experiments.fidelity_errors import MEAN_E2E, Sides, error_percent
from experiments.fidelity_workloads import LONG, PLAIN, SHARED, SHORT, Workload
from kairos.core import EngineProfile
from kairos.simulate.workload.workflows import Submission


class Condition(msgspec.Struct, frozen=True, kw_only=True):
    """What runs, on which engines. Workflows are so many at once, or arrive at a share of the
    capacity for so long."""

    name: str
    workload: Workload
    limits: Limits = ROOMY
    policy: str = "kairos"
    placement: str = "least-kv"
    at_once: int = 0
    load: float = 0.0
    duration_s: float = 20.0

    def submissions(self, capacity_per_s: float, seed: int) -> list[Submission]:
        if self.at_once:
            return self.workload.at_once(self.at_once, seed)
        return self.workload.at_rate(self.load * capacity_per_s, self.duration_s, seed)


# Oldest first: so workflows end at a steady rate, where `kairos` would end the short ones first.
SATURATED = Condition(name="all at once", workload=PLAIN, policy="fcfs-app", at_once=100)
LOADS = [Condition(name=f"{load:.0%} load", workload=PLAIN, load=load) for load in (0.5, 0.8, 0.95)]
PREFIXES = Condition(name="shared prefixes, 80% load", workload=SHARED, load=0.8)
PREEMPTING = Condition(name="preempting", workload=LONG, limits=SMALL, at_once=16)

QUICK = Condition(name="80% load, quick", workload=SHORT, load=0.8)
QUICK_SATURATED = Condition(
    name="all at once, quick", workload=SHORT, policy="fcfs-app", at_once=60
)


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the results: one run, on both sides."""

    commit: str
    condition: str
    seed: int
    policy: str
    placement: str
    workload: str
    workflows: int
    calls: int
    load: float | None  # None: all at once
    capacity_per_s: float | None  # that measured, of which the load is a share
    limits: Limits
    profile: EngineProfile
    cores: Cores
    late_starts: int
    prompt_tokens_off: int
    sides: dict[str, Sides]

    def error_percent(self, figure: str = MEAN_E2E) -> float | None:
        return error_percent([self.sides[figure]])

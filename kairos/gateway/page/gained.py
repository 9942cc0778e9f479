"""Gains by Kairos, as simulated with its model of engines: the JSON of `/ui/data/gained`.

It is also the output of `kairos gained --json`, which computes it (`simulate/gained.py`).
"""

from typing import Literal

import msgspec

from kairos.core import Interval

# good: within a tenth of the measured times; fair: within a quarter.
Trust = Literal["good", "fair", "poor"]
# No difference: the interval holds 1, or the difference is smaller than the model's own error.
Verdict = Literal["quicker", "slower", "no difference", "not known"]


class Predicted(msgspec.Struct, frozen=True, kw_only=True):
    """Simulated result of a policy. End-to-end times, s."""

    policy: str
    placement: str
    mean_s: float
    p95_s: float
    # Ratio of times to those under the policy that served; null: too few workflows.
    times: Interval | None
    verdict: Verdict


class WorkflowTimes(msgspec.Struct, frozen=True, kw_only=True):
    """A workflow's end-to-end times, s: measured, and simulated."""

    tenant: str
    id: str
    app: str | None
    actual_s: float
    ran_s: float  # under the policy that served
    others_s: list[float]


class Gained(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a comparison. Instants are µs since the epoch."""

    begins_at: int
    ends_at: int
    workflows: int
    calls: int
    share: float  # of the tokens that engines took and gave in this time: what is simulated
    instances: int
    actual_mean_s: float
    actual_p95_s: float
    ran: Predicted
    trust: Trust
    mean_off: float  # the model's mean for what served, over the true one, less 1
    p95_off: float
    engines_off: float  # the median of how far the model of engines is from single calls' times
    others: list[Predicted]
    by_workflow: list[WorkflowTimes]  # most delayed first, by the first of the others

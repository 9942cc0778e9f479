"""Explanation of a placement, compared with simpler rules."""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from kairos.workflows.compile.device_work import DevicePlan, LoadTime, OperatorWork
from kairos.workflows.compile.placement import place_operators
from kairos.workflows.compile.placement_baselines import co_located, data_parallel, round_robin

_S = 1_000_000


class ExplainedPlacement(msgspec.Struct, frozen=True):
    """Placement with alternatives. `beside_us`: times of other rules."""

    plan: DevicePlan
    beside_us: dict[str, float]


def explain_placement(
    works: Sequence[OperatorWork], loads: Mapping[str, LoadTime], devices: int
) -> ExplainedPlacement:
    """Place the work, and compare with other rules. Raises SetupError: as `place`."""
    rules = {"round robin": round_robin, "co-located": co_located, "data-parallel": data_parallel}
    found = place_operators(works, loads, devices)
    beside = {name: rule(works, loads, devices).makespan_us for name, rule in rules.items()}
    return ExplainedPlacement(found, beside)


def placement_lines(explained: ExplainedPlacement) -> Iterator[str]:
    """Yield the lines of a placement, for a terminal."""
    plan = explained.plan
    yield f"on {plan.devices} devices: {plan.makespan_us / _S:,.1f} s, {plan.loads} loads"
    for device in range(plan.devices):
        yield f"  device {device + 1}:"
        for phase in (each for each in plan.phases if each.device == device):
            load = f"load {phase.model} {phase.load_us / _S:,.1f} s, then " if phase.load_us else ""
            part = f" (part {phase.part + 1} of {phase.of})" if phase.of > 1 else ""
            yield (
                f"    {phase.begins_at / _S:,.1f} to {phase.ends_at / _S:,.1f} s: "
                f"{load}{phase.operator}{part} on {phase.model}"
            )
    beside = ", ".join(f"{name} {us / _S:,.1f} s" for name, us in explained.beside_us.items())
    yield f"  beside it: {beside}"

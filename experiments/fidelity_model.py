"""The model's side of a run: the same workflows, balancer, learner, policy and placement, in
virtual time, before engines of a profile."""

from collections.abc import Sequence

from experiments.baseline_placements import PLACEMENTS
from experiments.baseline_policies import POLICIES
from kairos.core import CallRow, EngineProfile
from kairos.simulate import World
from kairos.simulate.workload.workflows import Submission


def simulate(
    profile: EngineProfile,
    engines: int,
    submissions: Sequence[Submission],
    *,
    policy: str,
    placement: str,
) -> list[CallRow]:
    """Every call. Each tells how long its answer will be, as those of a replay do."""
    world = World(
        submissions,
        {f"engine-{number}": profile for number in range(1, engines + 1)},
        POLICIES[policy],
        PLACEMENTS[placement],
        tell_lengths=True,
    )
    world.run()
    return world.metrics.rows

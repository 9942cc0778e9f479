"""The model's side of a run: the same workflows, balancer, learner, policy and placement, in
virtual time, before engines of a profile."""

from collections.abc import Sequence

from experiments.baseline_placements import PLACEMENTS
from experiments.baseline_policies import POLICIES
from kairos.core.call_row import CallRow
from kairos.core.engine_profile import EngineProfile
from kairos.simulate.workload.workflows import Submission
from kairos.simulate.world import World


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

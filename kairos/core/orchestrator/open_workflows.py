"""Learn from open workflows, before they end. Not in the paper.

Ended workflows alone are biased: under a load that lasts no longer than its longest workflows, the
short ones end first, and the long ones teach nothing while it matters. So each ended call of an
open workflow is learnt from as well. Its remaining work is estimated as what its workflow was
served since, plus what the previous model expects to be left; so an app's models become consistent
step by step. What is expected to be left is at least what the workflow was served so far: what has
lasted long will last long (Lindy's law).

Parallel calls count into each other here, unlike in ended workflows (`remaining.py`): finding the
critical path of all open workflows each time would take too long.
"""

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from functools import lru_cache

import msgspec
import numpy as np

from kairos.core.agent_key import AgentKey, agent_key_of
from kairos.core.call_row import CallRow
from kairos.core.learnt import Floats, RemainingModel
from kairos.core.position import FEATURES, Position, features

OPEN_CALLS = 4_096  # sampled each time models are learnt; a quarter of a model's ended calls

_features = lru_cache(2 * OPEN_CALLS)(features)  # the same calls are sampled repeatedly

Row = tuple[AgentKey, tuple[float, ...], float]  # agent, features, and remaining work in µs


class WorkflowCall(msgspec.Struct, gc=False):
    """An attempt at a call, and the workflow's position when it arrived."""

    row: CallRow
    position: Position


class OpenWorkflow(msgspec.Struct, frozen=True):
    """A workflow that has not ended, as it stands.

    Its calls go on changing: read only what was fixed when they arrived.
    """

    served_us: int  # execution latency of the ended calls
    ended: Sequence[WorkflowCall]
    in_flight: Sequence[WorkflowCall]

    def rows(
        self,
        models: Mapping[tuple[str, str], RemainingModel],
        apps: Set[tuple[str, str]] | None = None,
    ) -> list[Row]:
        """Return a training row for each ended call of these apps; None means all apps."""
        ended = [(agent_key_of(call.row.request), call.position) for call in self.ended]
        if apps is not None:
            ended = [seen for seen in ended if seen[0][:2] in apps]
        if not ended:
            return []
        served_us = self.served_us
        left_us: float = served_us
        for call in self.in_flight:
            tenant, app, agent = agent_key_of(call.row.request)
            model = models.get((tenant, app))
            if model is not None:
                left_us = max(left_us, model.remaining_us(agent, _features(call.position)))
        return [
            (key, _features(position), served_us - position.served_us + left_us)
            for key, position in ended
        ]


def rows_of(
    workflows: Iterable[OpenWorkflow],
    models: Mapping[tuple[str, str], RemainingModel],
    apps: Set[tuple[str, str]] | None = None,
) -> list[Row]:
    return [row for workflow in workflows for row in workflow.rows(models, apps)]


class OpenCalls:
    """Training rows as an array, as the models need them."""

    def __init__(self, rows: Sequence[Row] = ()) -> None:
        self.keys = [key for key, _, _ in rows]
        # [calls, FEATURES + 1]; the last column is the logarithm of the remaining work.
        self._numbers = np.empty((len(rows), FEATURES + 1))
        if rows:
            self._numbers[:, :FEATURES] = [numbers for _, numbers, _ in rows]
            self._numbers[:, FEATURES] = [math.log(max(1, us)) for _, _, us in rows]

    def of(self, groups: Mapping[int, int]) -> Floats:
        """Return the rows at these indices with their group as last column: [calls, FEATURES + 2].

        `groups` has the number of the group by index of the row.
        """
        return np.column_stack((self._numbers[[*groups]], [*groups.values()]))

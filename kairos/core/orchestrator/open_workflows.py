"""What open workflows teach before they end; ours.

What has ended says too little of what is left: under a load that is no longer than its longest
workflows the short ones end first, and of those that go on nothing is learnt while it matters. So
each call that ended of a workflow that is still open is learnt from as well: what remained after it
was what its workflow was served since, and what is now expected to be left. That follows from the
model before, so an app's models come to agree with themselves step by step; and it is no less than
what the workflow was served so far: of what has lasted long, much is left (Lindy's law).

Parallel calls count into each other here, as they do not in what ended (`remaining.py`): to find
the critical path of all open workflows each time would take too long.
"""

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from functools import lru_cache

import msgspec
import numpy as np

from kairos.core.agent_key import AgentKey, agent_key
from kairos.core.call_row import CallRow
from kairos.core.learnt import Floats, RemainingModel
from kairos.core.position import FEATURES, Position, features

OPEN_CALLS = 4_096  # looked at, each time that models are learnt; a quarter of what has ended

_features = lru_cache(2 * OPEN_CALLS)(features)  # the same calls are looked at again and again

Row = tuple[AgentKey, tuple[float, ...], float]  # features, and what remained, in µs


class WorkflowCall(msgspec.Struct, gc=False):
    """One attempt at a call, and where it stood when it arrived."""

    row: CallRow
    position: Position


class OpenWorkflow(msgspec.Struct, frozen=True):
    """One that has not ended, as it stands. Of its calls, which go on, only what they were as they
    arrived may be looked at."""

    served_us: int  # execution latency of the calls that ended
    ended: Sequence[WorkflowCall]
    in_flight: Sequence[WorkflowCall]

    def rows(
        self,
        models: Mapping[tuple[str, str], RemainingModel],
        apps: Set[tuple[str, str]] | None = None,
    ) -> list[Row]:
        """Of these apps; None: of all."""
        ended = [(agent_key(call.row.request), call.position) for call in self.ended]
        if apps is not None:
            ended = [seen for seen in ended if seen[0][:2] in apps]
        if not ended:
            return []
        served_us = self.served_us
        left_us: float = served_us
        for call in self.in_flight:
            tenant, app, agent = agent_key(call.row.request)
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
    """Such rows as numbers, as models take them."""

    def __init__(self, rows: Sequence[Row] = ()) -> None:
        self.keys = [key for key, _, _ in rows]
        # [calls, FEATURES + 1]: the last is the logarithm of what remained.
        self._numbers = np.empty((len(rows), FEATURES + 1))
        if rows:
            self._numbers[:, :FEATURES] = [numbers for _, numbers, _ in rows]
            self._numbers[:, FEATURES] = [math.log(max(1, us)) for _, _, us in rows]

    def of(self, groups: Mapping[int, int]) -> Floats:
        """Of some of them, by their place, of which group each is: [calls, FEATURES + 2]."""
        return np.column_stack((self._numbers[[*groups]], [*groups.values()]))

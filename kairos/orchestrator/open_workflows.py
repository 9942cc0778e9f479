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

from collections.abc import Iterable, Iterator, Mapping, Set
from functools import lru_cache

import msgspec

from kairos.learnt import AgentKey, RemainingModel, agent_key
from kairos.model import Request
from kairos.workflow_tracker import Position, features

OPEN_CALLS = 4_096  # looked at, each time that models are learnt; a quarter of what has ended

_features = lru_cache(2 * OPEN_CALLS)(features)  # the same calls are looked at again and again

CallSeen = tuple[Request, Position]  # where it stood when it arrived
Row = tuple[AgentKey, tuple[float, ...], float]  # features, and what remained, in µs


class OpenWorkflow(msgspec.Struct, frozen=True):
    """One that has not ended, as it stands."""

    served_us: int  # execution latency of the calls that ended
    ended: list[CallSeen]
    in_flight: list[CallSeen]

    def rows(
        self,
        models: Mapping[tuple[str, str], RemainingModel],
        apps: Set[tuple[str, str]] | None = None,
    ) -> Iterator[Row]:
        """Of these apps; None: of all."""
        ended = [
            (key, position)
            for request, position in self.ended
            for key in (agent_key(request),)
            if apps is None or key[:2] in apps
        ]
        if not ended:
            return
        left_us: float = self.served_us
        for request, position in self.in_flight:
            tenant, app, agent = agent_key(request)
            model = models.get((tenant, app))
            if model is not None:
                left_us = max(left_us, model.remaining_us(agent, _features(position)))
        for key, position in ended:
            since_us = self.served_us - position.served_us
            yield key, _features(position), since_us + left_us


def rows_of(
    workflows: Iterable[OpenWorkflow],
    models: Mapping[tuple[str, str], RemainingModel],
    apps: Set[tuple[str, str]] | None = None,
) -> list[Row]:
    return [row for workflow in workflows for row in workflow.rows(models, apps)]

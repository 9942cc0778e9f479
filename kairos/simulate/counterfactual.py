"""The workflows of a log once more, in virtual time, under whichever policy."""

from collections import Counter
from collections.abc import Callable
from math import nan

import msgspec

from kairos.core import (
    SECOND,
    CallRow,
    Instance,
    SetupError,
    WorkflowKey,
    placement_named,
    policy_named,
)
from kairos.simulate.logged_engines import LoggedEngines
from kairos.simulate.recent_log import RecentLog
from kairos.simulate.recording import workflow_calls
from kairos.simulate.users import TENANT
from kairos.simulate.workload.workflows import Submission, workflow
from kairos.simulate.world import World, WorldEvent


class Decided(msgspec.Struct, frozen=True):
    """A policy and a placement."""

    policy: str
    placement: str


def of_one_model(log: RecentLog) -> dict[str, Instance]:
    """The instances that serve what most calls were served by.

    Raises:
        SetupError: no call ended.
    """
    calls = Counter(row.instance_id for row in log.rows)
    there = log.at_first | {each.instance_id for each in log.changes} | calls.keys()
    known = [each for each in log.limits.values() if each.id in there]
    served: Counter[tuple[str, ...]] = Counter()
    for each in known:
        served[each.models] += calls[each.id]
    if not served.total():
        raise SetupError("no call ended in this time: ask again once some have")
    models = served.most_common(1)[0][0]
    return {each.id: each for each in known if each.models == models}


class Counterfactual:
    """Workflows of a log on the model of its engines, under one policy after the other."""

    def __init__(
        self, log: RecentLog, whole: dict[WorkflowKey, list[CallRow]], engines: LoggedEngines
    ) -> None:
        began = {
            key: min(row.request.workflow_started_at for row in rows) for key, rows in whole.items()
        }
        self.keys = sorted(whole, key=lambda key: (began[key], key))
        self.rows = whole
        first_at = began[self.keys[0]]
        self.actual_us = [
            max(row.ended_at or 0 for row in whole[key]) - began[key] for key in self.keys
        ]
        self._profiles = engines.profiles
        self._submissions = []
        for number, key in enumerate(self.keys):
            # Named by their numbers: tenants may have the same ids.
            named = [
                msgspec.structs.replace(call, workflow_id=str(number))
                for call in (workflow_calls(whole[key]))
            ]
            self._submissions.append(
                Submission(at_us=began[key] - first_at, workflow=workflow(named))
            )
        self._happenings = _happenings(log, engines, first_at)

    def run(self, decided: Decided, tell: Callable[[float], None]) -> list[float]:
        """Return how long each workflow takes, in s, in the order of `keys`."""
        total = len(self._submissions)
        world = World(
            self._submissions,
            self._profiles,
            policy_named(decided.policy),
            placement_named(decided.placement),
            happenings=self._happenings,
            on_second=lambda world: tell(1 - world.users.left / total),
        )
        world.run()
        ended = world.metrics.ended
        return [
            (ended[TENANT, each.workflow.id] - each.at_us) / SECOND
            if (TENANT, each.workflow.id) in ended and each.workflow.id not in world.users.failed
            else nan
            for each in self._submissions
        ]


def _happenings(log: RecentLog, engines: LoggedEngines, first_at: int) -> list[WorldEvent]:
    """Instances that come and go. One that is not there at first joins."""
    return [
        WorldEvent(at_us=max(0, each.at - first_at), what=each.what, instance_id=each.instance_id)
        for each in log.changes
        if each.instance_id in engines.profiles
    ]

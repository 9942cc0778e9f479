"""From records to what the policies order by: what the orchestrator learnt, ranked and published.

`observe` is cheap and runs with every record. The rest is in parts, so that no request ever waits
for learning: `study` and `compute` are slow, touch nothing that facts touch, and may run in a
thread of their own. The event that comes of it is fed to the runtime like any other fact.
"""

from collections.abc import Iterable

from kairos.events import ProfilesLearnt, Record
from kairos.learnt import AgentKey, AgentProfile, RemainingModel
from kairos.orchestrator.learning import Learning
from kairos.orchestrator.orchestrator import Orchestrator
from kairos.orchestrator.profiles import Sample
from kairos.orchestrator.workflow import Workflow
from kairos.scheduler.ranking import Ranking

# Up to here a full embedding takes about as long as a place for one agent among the others.
_ALWAYS_EMBEDDED = 200
# Beyond, all are embedded anew when this share of the agents has changed since the last time.
_CHANGED_SHARE = 0.1


class Learner:
    """Owns the ranking; `compute` is called for one `Learning` after the other."""

    def __init__(self, orchestrator: Orchestrator) -> None:
        self.orchestrator = orchestrator
        self._ranking = Ranking()
        self._changed = 0  # agents, since the last full embedding

    def observe(self, record: Record) -> None:
        self.orchestrator.observe(record)

    def restore(self, profiles: Iterable[AgentProfile], models: Iterable[RemainingModel]) -> None:
        """Go on from what was published before a restart. Nothing has been observed yet."""
        self.orchestrator.profiles.restore(profiles, models)

    def step(self) -> ProfilesLearnt | None:
        """All parts one after the other, for whoever has no request to keep waiting."""
        self.orchestrator.learn(self.study(self.orchestrator.take_ended()))
        learning = self.begin()
        return None if learning is None else self.compute(learning)

    def study(self, ended: Iterable[Workflow]) -> list[Sample | AgentKey]:
        """What these workflows teach. Pure."""
        skew_us = self.orchestrator.skew_us
        return [lesson for workflow in ended for lesson in workflow.lessons(skew_us)]

    def begin(self) -> Learning | None:
        """A copy of what has changed; None when nothing has."""
        return self.orchestrator.profiles.take_changed()

    def compute(self, learning: Learning) -> ProfilesLearnt:
        """What follows from it. Touches nothing that `observe` touches."""
        profiles, models = learning.learn()
        for key in learning.forgotten:
            self._ranking.remove(key)
        self._ranking.update(profiles)
        self._changed += len(profiles)
        if len(self._ranking) <= _ALWAYS_EMBEDDED or self._changed > _CHANGED_SHARE * len(
            self._ranking
        ):
            self._ranking.embed()
            self._changed = 0
        return ProfilesLearnt(
            profiles=tuple(profiles),
            models=tuple(models),
            ranks=tuple(self._ranking.ranks()),
            kendall_tau=self._ranking.kendall_tau(),
        )

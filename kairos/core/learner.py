"""Learner: from records to published profiles, models and ranks.

`observe` is cheap and runs for every record. The rest is split so that no request ever waits for
learning: `study` and `compute` are slow, touch nothing that `observe` touches, and may run in a
thread of their own. The resulting event is fed to the runtime like any other fact.
"""

from collections.abc import Iterable

import msgspec

from kairos.core.agent_key import AgentKey
from kairos.core.events import ProfilesLearnt, Record
from kairos.core.learnt import POOLED_AGENT, AgentRank, RemainingModel
from kairos.core.orchestrator.learning_data import AppKey, Learning
from kairos.core.orchestrator.orchestrator import Orchestrator
from kairos.core.orchestrator.workflow import Lesson, OpenedWorkflow
from kairos.core.scheduler.ranking import Ranking

# All agents are embedded again, and all ranks published, when more than this share of them has
# changed since the last time; with few agents, each time (at most 2 ms).
_CHANGED_SHARE = 0.1
_ALWAYS_EMBEDDED = 20


class Learner:
    """Owner of the ranking. `compute` must be called for one `Learning` at a time."""

    def __init__(self, orchestrator: Orchestrator) -> None:
        self.orchestrator = orchestrator
        self._ranking = Ranking()
        self._changed = 0  # agents changed since the last full embedding
        self._published: dict[AgentKey, float] = {}  # last published ranks
        self._models: dict[AppKey, RemainingModel] = {}  # last published models

    def observe(self, record: Record) -> None:
        self.orchestrator.observe(record)

    def restore(self, known: ProfilesLearnt) -> None:
        """Restore what was published before a restart. Call it before any `observe`."""
        self._models.update(((model.tenant, model.app), model) for model in known.models)
        self.orchestrator.profiles.restore(known.profiles, known.models)
        if known.joins is not msgspec.UNSET:
            self.orchestrator.joins.restore(known.joins)

    def step(self) -> ProfilesLearnt | None:
        """Run all parts in sequence, for callers without requests to delay."""
        self.orchestrator.learn(self.study(self.orchestrator.take_ended()))
        learning = self.collect_changes()
        return None if learning is None else self.compute(learning)

    def study(self, ended: Iterable[OpenedWorkflow]) -> list[Lesson]:
        """Return what these workflows teach, without changing anything."""
        skew_us, joins = self.orchestrator.skew_us, self.orchestrator.joins
        return [lesson for workflow in ended for lesson in workflow.lessons(skew_us, joins)]

    def collect_changes(self, *, whole: bool = False) -> Learning | None:
        """Return a copy of what is due to be learnt, or with `whole` of all changes, if any."""
        learning = self.orchestrator.profiles.take_changed(whole=whole)
        if learning is None:
            return None
        learning = msgspec.structs.replace(
            learning, joins=self.orchestrator.joins.take_changed(whole=whole)
        )
        if learning.models:
            still_open, known = self.orchestrator.still_open(), dict(self._models)
            return msgspec.structs.replace(learning, still_open=still_open, known=known)
        return learning

    def compute(self, learning: Learning) -> ProfilesLearnt:
        """Compute what to publish. Touches nothing that `observe` touches."""
        profiles, models = learning.learn()
        self._models.update(((model.tenant, model.app), model) for model in models)
        for key in learning.forgotten:
            if key[2] == POOLED_AGENT:
                self._models.pop(key[:2], None)
            self._ranking.remove(key)
            self._published.pop(key, None)
        self._ranking.update(profiles)
        self._changed += len(profiles)
        if self._changed > _CHANGED_SHARE * len(self._ranking) - _ALWAYS_EMBEDDED:
            self._ranking.embed()
            self._changed = 0
        return ProfilesLearnt(
            profiles=tuple(profiles),
            models=tuple(models),
            ranks=self._new_ranks(),
            forgotten=learning.forgotten,
            kendall_tau=self._ranking.kendall_tau(),
            joins=learning.joins or msgspec.UNSET,
        )

    def _new_ranks(self) -> tuple[AgentRank, ...]:
        """Return the ranks that differ from the last published ones."""
        ranks = self._ranking.ranks()
        new = [rank for rank in ranks if self._published.get(rank.key) != rank.rank]
        self._published.update((rank.key, rank.rank) for rank in new)
        return tuple(new)

"""What the calls of every agent were like, learnt from workflows that ended: kairos paper, 4.3.

Each sample also feeds the pool of its app and the pool of everything: what is expected of agents
and apps that are not known yet. Ours: the pools, the bounds, the models beside the distributions.

Bounds: `max_agents` names per app, `max_apps` apps, `max_tracked` agents in all. A new name beyond
them takes the place of the longest unused one, if that was not heard of for so long that its app's
model has forgotten it too. Otherwise its calls are pooled only, and counted. So a flood of new
names pushes out no agent that works.
"""

from collections import OrderedDict
from collections.abc import Iterable

import msgspec

from kairos.learnt import POOLED, AgentKey, AgentProfile, RemainingModel
from kairos.orchestrator.agent_status import AgentStatus, status_of
from kairos.orchestrator.learning_data import AppKey, Learning, ModelData, WindowData
from kairos.orchestrator.remaining_model import MODEL_CALLS, UNTRACKED, Calls
from kairos.orchestrator.window import Window, is_restorable
from kairos.workflow_tracker import FEATURES, Position, features

WINDOW = 1_024
CONVERGENCE = 0.1
MAX_AGENTS = 256
MAX_APPS = 1_000
MAX_TRACKED = 5_000  # ranking them takes a second and 200 MB (scheduler/ranking.py)
_UNUSED_APP = 4 * MODEL_CALLS  # calls of everything since the last of the app
# An app's model is learnt anew after each fifth more of its calls, and after so many. What it takes
# for open workflows follows from the model before, so it comes to the point by steps.
_RENEWED_SHARE, _RENEWED = 5, 256

_EVERYTHING = (POOLED, POOLED)


class CallSample(msgspec.Struct, frozen=True):
    """One call of a workflow that ended."""

    key: AgentKey
    position: Position
    call_us: int
    completion_tokens: int | None  # None: the engine did not tell
    remaining_us: int
    remaining_stages: int


class _Agent:
    __slots__ = ("censored", "number", "used", "window")

    def __init__(self, number: int, window: Window) -> None:
        self.number = number  # in the app's model
        self.window = window
        self.used = 0  # when: calls of the app until then
        self.censored = 0


class _Pool:
    """The calls of an app's agents together, or of everything."""

    def __init__(self, number: int, window: Window) -> None:
        self.number = number  # of the app, in the model of everything
        self.window = window
        self.calls = Calls()
        self.added = 0
        self.renewed_at = 1  # when its model is to be learnt anew: calls by then
        self.agents: OrderedDict[str, _Agent] = OrderedDict()  # longest unused first
        self.named = 0  # agents that ever were
        self.used = 0  # when: calls of everything until then
        self.censored = 0
        self.pooled = 0
        self.prior: RemainingModel | None = None  # from before a restart


class Profiles:
    """Changed by `add`, `censor` and `restore`; what changed is taken with `take_changed`."""

    def __init__(
        self,
        *,
        window: int = WINDOW,
        convergence: float = CONVERGENCE,
        max_agents: int = MAX_AGENTS,
        max_apps: int = MAX_APPS,
        max_tracked: int = MAX_TRACKED,
    ) -> None:
        """`convergence`: Wasserstein distance between a distribution and the one before, over the
        mean, under which it counts as known."""
        self._window, self._convergence = window, convergence
        self._max_agents, self._max_apps, self._max_tracked = max_agents, max_apps, max_tracked
        self._apps: OrderedDict[AppKey, _Pool] = OrderedDict()  # longest unused first
        self._everything = _Pool(0, self._new_window(testable=False))
        self._named = 0  # apps that ever were
        self._tracked = 0  # agents
        self.pooled = 0  # calls of agents and of apps that are not tracked, of all tenants
        self._due_windows: dict[AgentKey, Window] = {}
        self._due_models: dict[AppKey, _Pool] = {}
        self._not_due_windows: dict[AgentKey, Window] = {}  # that have changed as well
        self._not_due_models: dict[AppKey, _Pool] = {}
        self._forgotten: dict[AgentKey, None] = {}  # a dict for its order

    def add(self, sample: CallSample) -> None:
        """Learn one call. Amortised 10 µs, with all checks and tests of change (`make bench`)."""
        tokens = sample.completion_tokens
        row = (
            float(sample.remaining_us),
            float(sample.call_us),
            float("nan") if tokens is None else float(tokens),
            float(sample.remaining_stages),
            float(sample.position.visit == 1),
        )
        numbers = features(sample.position)
        app = sample.key[:2]
        pool = self._pool(app)
        self._everything.calls.add(
            numbers, sample.remaining_us, UNTRACKED if pool is None else pool.number
        )
        self._pour(_EVERYTHING, self._everything, row)
        if pool is None:
            self.pooled += 1
            return
        agent = self._agent(sample.key, pool)
        pool.calls.add(numbers, sample.remaining_us, UNTRACKED if agent is None else agent.number)
        self._pour(app, pool, row)
        if agent is None:
            pool.pooled += 1
            self.pooled += 1
            return
        if agent.window.add(row):
            pool.calls.keep_newest(agent.number, len(agent.window))
            self._due_models[app] = pool
        self._note(sample.key, agent.window)

    def censor(self, key: AgentKey) -> None:
        """A call of the agent failed or was cancelled: how long it would have been is not known.

        Counted with the agent, or, where that is not tracked, with its pool.
        """
        pool = self._apps.get(key[:2], self._everything)
        (pool.agents.get(key[2]) or pool).censored += 1

    def take_changed(self, *, whole: bool = False) -> Learning | None:
        """What is worth publishing since it was last asked, or, the `whole` of it, all that has
        changed since it was last published; None: nothing. Copies arrays only."""
        if whole:
            self._due_windows = self._not_due_windows | self._due_windows
            self._due_models = self._not_due_models | self._due_models
            self._not_due_windows, self._not_due_models = {}, {}
        if not self._due_windows and not self._due_models and not self._forgotten:
            return None
        windows = [
            WindowData(key, window.rows(), window.converged)
            for key, window in self._due_windows.items()
        ]
        models = [self._model_data(app, pool) for app, pool in self._due_models.items()]
        learning = Learning(windows, models, tuple(self._forgotten))
        self._due_windows, self._due_models, self._forgotten = {}, {}, {}
        return learning

    def restore(
        self, profiles: Iterable[AgentProfile], models: Iterable[RemainingModel] = ()
    ) -> None:
        """Begin with what was published before a restart, and publish it again; before any `add`.

        Within the same bounds: what does not fit is left out, and so is what has another shape,
        from another version of Kairos.
        """
        for profile in profiles:
            pool = self._restored_pool(profile.key[:2]) if is_restorable(profile) else None
            if pool is None:
                continue
            known = pool if profile.agent == POOLED else self._agent(profile.key, pool)
            if known is not None:
                known.window.restore(profile)
                self._note(profile.key, known.window)
        for model in models:
            app = (model.tenant, model.app)
            pool = self._restored_pool(app) if len(model.weights) == FEATURES else None
            if pool is not None:
                pool.prior = model
                self._due_models[app] = pool

    def status(self, tenant: str) -> list[AgentStatus]:
        """Of the tenant's agents and its apps' pools, by app and name."""
        found = []
        for (owner, app), pool in self._apps.items():
            if owner == tenant:
                found.append(status_of(app, POOLED, pool.window, pool.censored, pool.pooled))
                found += [
                    status_of(app, name, each.window, each.censored)
                    for name, each in pool.agents.items()
                ]
        return sorted(found, key=lambda status: (status.app, status.agent))

    def _model_data(self, app: AppKey, pool: _Pool) -> ModelData:
        agents = {(*app, name): agent.number for name, agent in pool.agents.items()}
        apps = {(*each, POOLED): other.number for each, other in self._apps.items()}
        numbers = apps if pool is self._everything else agents
        return ModelData(app, pool.calls.rows(), numbers, pool.prior)

    def _pour(self, app: AppKey, pool: _Pool, row: tuple[float, ...]) -> None:
        pool.window.add(row)
        self._note((*app, POOLED), pool.window)
        pool.added += 1
        if pool.added >= pool.renewed_at:
            pool.renewed_at = pool.added + min(max(1, pool.added // _RENEWED_SHARE), _RENEWED)
            self._due_models[app] = pool
            self._not_due_models.pop(app, None)
        elif app not in self._due_models:
            self._not_due_models[app] = pool

    def _note(self, key: AgentKey, window: Window) -> None:
        if window.is_due:
            self._due_windows[key] = window
            self._not_due_windows.pop(key, None)
            window.is_due = False
        elif key not in self._due_windows:
            self._not_due_windows[key] = window

    def _new_window(self, *, testable: bool) -> Window:
        return Window(self._window, self._convergence, testable=testable)

    def _restored_pool(self, app: AppKey) -> _Pool | None:
        return self._everything if app == _EVERYTHING else self._pool(app)

    def _pool(self, app: AppKey) -> _Pool | None:
        """The app's, made if there is room for it."""
        pool = self._apps.get(app)
        if pool is None:
            if len(self._apps) >= self._max_apps and not self._forget_unused_app():
                return None
            pool = self._apps[app] = _Pool(self._named, self._new_window(testable=False))
            self._named += 1
            self._forgotten.pop((*app, POOLED), None)
        self._apps.move_to_end(app)
        pool.used = self._everything.added
        return pool

    def _agent(self, key: AgentKey, pool: _Pool) -> _Agent | None:
        """What is known of the agent, begun if there is room for it."""
        name = key[2]
        agent = pool.agents.get(name)
        if agent is None:
            if not self._has_room(key[:2], pool):
                return None
            agent = pool.agents[name] = _Agent(pool.named, self._new_window(testable=True))
            pool.named += 1
            self._tracked += 1
            self._forgotten.pop(key, None)
        pool.agents.move_to_end(name)
        agent.used = pool.added
        return agent

    def _has_room(self, app: AppKey, pool: _Pool) -> bool:
        """For one more agent of the app, if need be in the place of one that is not used."""
        if len(pool.agents) >= self._max_agents:
            return self._forget_unused_agent(app, pool)
        if self._tracked >= self._max_tracked and self._forget_unused_app():
            return self._tracked < self._max_tracked
        return self._tracked < self._max_tracked or self._forget_unused_agent(app, pool)

    def _forget_unused_agent(self, app: AppKey, pool: _Pool) -> bool:
        name, agent = next(iter(pool.agents.items()), (None, None))
        if name is None or agent is None or pool.added - agent.used < MODEL_CALLS:
            return False
        del pool.agents[name]
        self._forget((*app, name))
        self._tracked -= 1
        return True

    def _forget_unused_app(self) -> bool:
        app, pool = next(iter(self._apps.items()))
        if self._everything.added - pool.used < _UNUSED_APP:
            return False
        del self._apps[app]
        self._due_models.pop(app, None)
        self._not_due_models.pop(app, None)
        self._tracked -= len(pool.agents)
        for name in (POOLED, *pool.agents):
            self._forget((*app, name))
        return True

    def _forget(self, key: AgentKey) -> None:
        self._due_windows.pop(key, None)
        self._not_due_windows.pop(key, None)
        self._forgotten[key] = None

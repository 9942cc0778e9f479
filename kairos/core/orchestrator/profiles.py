"""Statistics of every agent's calls, learnt from ended workflows (kairos paper, 4.3).

Each sample also feeds the pools of its app, of its tenant and of everything, which give the
expectation for agents and apps that are not known yet. Not in the paper: the pools, their bounds
(`pools.py`), and the models that complement the distributions.
"""

from collections.abc import Iterable

import msgspec

from kairos.core.agent_key import AgentKey
from kairos.core.learnt import POOLED_AGENT, AgentProfile, RemainingModel
from kairos.core.orchestrator.learning_data import AppKey, Learning, ModelData, WindowData
from kairos.core.orchestrator.pools import (
    EVERYTHING,
    MAX_AGENTS,
    MAX_APPS,
    MAX_TRACKED,
    CallPool,
    Pools,
)
from kairos.core.orchestrator.remaining_model import UNTRACKED
from kairos.core.orchestrator.window import Window, is_restorable
from kairos.core.position import FEATURES, Position, features

WINDOW = 1_024
CONVERGENCE = 0.1
# An app's model is relearnt when its calls have grown by a fifth, at the latest after this many.
# Its estimates for open workflows use the model before, so it converges step by step.
_RENEWED_SHARE, _RENEWED = 5, 256


class CallSample(msgspec.Struct, frozen=True):
    """A call of an ended workflow, as a learning sample."""

    key: AgentKey
    position: Position
    call_us: int
    completion_tokens: int | None  # None: not reported by the engine
    remaining_us: int
    remaining_stages: int


class AgentStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Learning progress of one agent, or of the pool of its app."""

    app: str
    agent: str
    samples: int
    converged: bool
    # Wasserstein distance over the mean, at the last check; None before the second check.
    distance: float | None
    checks: int  # at 1, 2, 4, ... calls
    reopened: int
    censored: int  # calls that failed or were cancelled, never learnt as short
    pooled: int = 0  # only in a pool: calls of agents that are not tracked by name


class Profiles:
    """Profiles of all agents, and what changed in them since it was last published."""

    def __init__(
        self,
        *,
        window: int = WINDOW,
        convergence: float = CONVERGENCE,
        max_agents: int = MAX_AGENTS,
        max_apps: int = MAX_APPS,
        max_tracked: int = MAX_TRACKED,
    ) -> None:
        """Create empty profiles.

        Args:
            window: number of recent calls kept per agent.
            convergence: an agent is converged if the Wasserstein distance between its distribution
                and the previous one, over the mean, is below this.
            max_agents: maximum number of tracked agents per app.
            max_apps: maximum number of apps.
            max_tracked: maximum number of tracked agents in total.
        """
        self._window, self._convergence = window, convergence
        bounds = max_agents, max_apps, max_tracked
        self._pools = Pools(bounds, self._new_window, self._forget, self._part)
        self.pooled = 0  # calls of agents and of apps that are not tracked, of all tenants
        self._due_windows: dict[AgentKey, Window] = {}
        self._due_models: dict[AppKey, CallPool] = {}
        self._not_due_windows: dict[AgentKey, Window] = {}  # changed, but not due to be published
        self._not_due_models: dict[AppKey, CallPool] = {}
        self._forgotten: dict[AgentKey, None] = {}  # an ordered set

    def add(self, sample: CallSample) -> None:
        """Learn one call. Takes 10 µs amortised, convergence checks and change tests included."""
        tokens = sample.completion_tokens
        row = (
            float(sample.remaining_us),
            float(sample.call_us),
            float("nan") if tokens is None else float(tokens),
            float(sample.remaining_stages),
            float(sample.position.visit == 1),
        )
        numbers = features(sample.position)
        app, pools = sample.key[:2], self._pools
        pools.count(app[0])
        of_tenant, pool = pools.tenant(app[0]), pools.app(app)
        number = UNTRACKED if pool is None else pool.number
        for key, each in ((EVERYTHING, pools.everything), ((app[0], POOLED_AGENT), of_tenant)):
            if each is not None:
                each.calls.add(numbers, sample.remaining_us, number)
                self._pour(key, each, row)
        if pool is None:
            self.pooled += 1
            return
        agent = pools.agent(sample.key, pool)
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
        """Count a call that failed or was cancelled, so that its duration is unknown.

        It counts for the agent, or, if that is not tracked, for its pool.
        """
        pool = self._pools.get(key[:2]) or self._pools.everything
        (pool.agents.get(key[2]) or pool).censored += 1

    def take_changed(self, *, whole: bool = False) -> Learning | None:
        """Return what is due to be published since the last call; None if nothing is.

        With `whole`, also return what changed but is not due yet. Only copies arrays.
        """
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
        """Restore what was published before a restart, and publish it again.

        Call it before any `add`. The same bounds apply: what does not fit is left out, and so is
        data of another shape, from another version of Kairos.
        """
        for profile in profiles:
            pool = self._pools.restored(profile.key[:2]) if is_restorable(profile) else None
            if pool is None:
                continue
            known = pool if profile.agent == POOLED_AGENT else self._pools.agent(profile.key, pool)
            if known is not None:
                known.window.restore(profile)
                self._note(profile.key, known.window)
        for model in models:
            app = (model.tenant, model.app)
            pool = self._pools.restored(app) if len(model.weights) == FEATURES else None
            if pool is not None:
                pool.prior = model
                self._due_models[app] = pool

    def tenants(self) -> list[str]:
        """Return the tenants with known apps, sorted."""
        return sorted({tenant for (tenant, _), _ in self._pools.apps(None)})

    def status(self, tenant: str) -> list[AgentStatus]:
        """Return the status of the tenant's agents and its apps' pools, sorted by app and name."""
        found = []
        for (_, app), pool in self._pools.apps(tenant):
            found.append(status_of(app, POOLED_AGENT, pool.window, pool.censored, pool.pooled))
            found += [
                status_of(app, name, each.window, each.censored)
                for name, each in pool.agents.items()
            ]
        return sorted(found, key=lambda status: (status.app, status.agent))

    def _part(self, tenant: str, pool: CallPool) -> None:
        """Publish the pool of a tenant that was split off from the pool of everything."""
        if pool.added:
            self._due_windows[tenant, POOLED_AGENT, POOLED_AGENT] = pool.window
            self._due_models[tenant, POOLED_AGENT] = pool

    def _model_data(self, app: AppKey, pool: CallPool) -> ModelData:
        if app[1] == POOLED_AGENT:
            apps = self._pools.apps(None if app == EVERYTHING else app[0])
            numbers = {(*each, POOLED_AGENT): other.number for each, other in apps}
        else:
            numbers = {(*app, name): agent.number for name, agent in pool.agents.items()}
        return ModelData(app, pool.calls.rows(), numbers, pool.prior)

    def _pour(self, app: AppKey, pool: CallPool, row: tuple[float, ...]) -> None:
        pool.window.add(row)
        self._note((*app, POOLED_AGENT), pool.window)
        pool.added += 1
        if pool.added >= pool.renewed_at:
            pool.renewed_at = pool.added + min(max(1, pool.added // _RENEWED_SHARE), _RENEWED)
            self._due_models[app] = pool
            self._not_due_models.pop(app, None)
        elif app not in self._due_models:
            self._not_due_models[app] = pool

    def _note(self, key: AgentKey, window: Window) -> None:
        if self._forgotten:
            self._forgotten.pop(key, None)
        if window.is_due:
            self._due_windows[key] = window
            self._not_due_windows.pop(key, None)
            window.is_due = False
        elif key not in self._due_windows:
            self._not_due_windows[key] = window

    def _new_window(self, testable: bool) -> Window:
        return Window(self._window, self._convergence, testable=testable)

    def _forget(self, key: AgentKey) -> None:
        self._due_windows.pop(key, None)
        self._not_due_windows.pop(key, None)
        if key[2] == POOLED_AGENT:
            self._due_models.pop(key[:2], None)
            self._not_due_models.pop(key[:2], None)
        self._forgotten[key] = None


def status_of(app: str, name: str, window: Window, censored: int, pooled: int = 0) -> AgentStatus:
    return AgentStatus(
        app=app,
        agent=name,
        samples=len(window),
        converged=window.converged,
        distance=window.distance,
        checks=window.checks,
        reopened=window.reopened,
        censored=censored,
        pooled=pooled,
    )

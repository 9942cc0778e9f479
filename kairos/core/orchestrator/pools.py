"""Bounded registry of the agents, apps and tenants whose calls are kept.

Bounds: `max_agents` names per app, `max_apps` apps, `max_tracked` agents in total. Beyond them, a
new name replaces the least recently used name of its tenant, if that was unused for so long that
its app's model has forgotten it too. Otherwise it replaces the least recently used name of the
tenant that has most, if that tenant has more. Otherwise its calls are only pooled and counted. So a
flood of new names evicts no active agent of its own tenant, and none of a tenant with fewer names.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from copy import deepcopy

from kairos.core.agent_key import AgentKey
from kairos.core.learnt import POOLED_AGENT, RemainingModel
from kairos.core.orchestrator.learning_data import AppKey
from kairos.core.orchestrator.remaining_model import MODEL_CALLS, Calls
from kairos.core.orchestrator.window import Window
from kairos.core.shared_lru import Holdings, SharedLru

MAX_AGENTS = 256
MAX_APPS = 1_000
MAX_TRACKED = 5_000  # ranking them takes a second and 200 MB (core/scheduler/ranking.py)
MAX_TENANTS = 100  # tenants with a pool; 0.9 MB each
# An app is unused after this many calls of its tenant; a tenant, after this many calls in total.
_UNUSED_APP = 4 * MODEL_CALLS

EVERYTHING = (POOLED_AGENT, POOLED_AGENT)


class TrackedAgent:
    """Recent calls of one agent."""

    __slots__ = ("censored", "number", "used", "window")

    def __init__(self, number: int, window: Window) -> None:
        self.number = number  # in the app's model
        self.window = window
        self.used = 0  # last use, counted in calls of its app
        self.censored = 0


class CallPool:
    """Recent calls of all agents of an app, of a tenant, or of everything."""

    def __init__(self, number: int, window: Window) -> None:
        self.number = number  # of the app, in the models of its tenant and of everything
        self.window = window
        self.calls = Calls()
        self.added = 0
        self.renewed_at = 1  # number of calls at which its model is next due to be learnt
        self.agents: OrderedDict[str, TrackedAgent] = OrderedDict()  # longest unused first
        self.named = 0  # agents ever tracked; the next agent's number
        self.used = 0  # last use, counted in calls of its tenant (of everything, for a tenant)
        self.censored = 0
        self.pooled = 0
        self.prior: RemainingModel | None = None  # from before a restart


class Pools:
    """Registry of pools and tracked agents. It calls `forget` for each one evicted."""

    def __init__(
        self,
        bounds: tuple[int, int, int],
        new_window: Callable[[bool], Window],
        forget: Callable[[AgentKey], None],
        parted: Callable[[str, CallPool], None],
    ) -> None:
        """Create an empty registry.

        Args:
            bounds: `max_agents`, `max_apps`, `max_tracked`.
            new_window: creates a window; its argument is True for a single agent, False for a pool.
            forget: called with the key of each evicted agent or pool.
            parted: called when a second tenant appears, with the first tenant and its new pool.
        """
        self._max_agents, self._max_apps, self._max_tracked = bounds
        self._new_window, self._forget, self._parted = new_window, forget, parted
        self._apps: SharedLru[AppKey, CallPool] = SharedLru(self._max_apps)
        self.everything = CallPool(0, new_window(False))
        self._named = 0  # apps ever tracked; the next app's number
        self._tracked = Holdings()  # number of tracked agents by tenant
        self._calls: dict[str, int] = {}  # calls by tenant, while it has apps
        self._tenants: dict[str, CallPool] = {}
        self._alone: str | None = None  # the only tenant so far; it uses the pool of everything

    def get(self, app: AppKey) -> CallPool | None:
        """Return the pool of an app, or None if the app is unknown."""
        return self._apps.get(app)

    def apps(self, tenant: str | None = None) -> Iterator[tuple[AppKey, CallPool]]:
        """Yield the apps of a tenant, or of all tenants, with their pools."""
        for app in self._apps if tenant is None else self._apps.of(tenant):
            pool = self._apps.get(app)
            assert pool is not None
            yield app, pool

    def count(self, tenant: str) -> None:
        """Count one more call of the tenant."""
        if tenant in self._calls:
            self._calls[tenant] += 1

    def tenant(self, tenant: str) -> CallPool | None:
        """Return the tenant's pool, created if there is capacity.

        None without capacity, or if the tenant is the only one and uses the pool of everything.
        """
        pool = self._tenants.get(tenant)
        if pool is None:
            if self._alone is None and not self._tenants:
                self._alone = tenant
            if tenant == self._alone or not self._has_room_for_tenant():
                return None
            if self._alone is not None:
                own = self._tenants[self._alone] = deepcopy(self.everything)
                own.used = self.everything.added
                self._parted(self._alone, own)
                self._alone = None
            pool = self._tenants[tenant] = CallPool(0, self._new_window(False))
        pool.used = self.everything.added
        return pool

    def app(self, app: AppKey) -> CallPool | None:
        """Return the pool of an app, created if there is capacity, else None."""
        pool = self._apps.get(app)
        tenant = app[0]
        if pool is None:
            if not self._has_room_for_app(tenant):
                return None
            pool = CallPool(self._named, self._new_window(False))
            self._apps.put(tenant, app, pool)
            self._named += 1
            self._calls.setdefault(tenant, 0)
        else:
            self._apps.touch(tenant, app)
        pool.used = self._calls[tenant]
        return pool

    def restored(self, app: AppKey) -> CallPool | None:
        """Return the pool for what was learnt about `app` before a restart; None: no capacity."""
        tenant, name = app
        if app == EVERYTHING:
            return self.everything
        if name == POOLED_AGENT or self._alone not in (None, tenant):
            for each in (self._alone, tenant):
                if each is not None and len(self._tenants) < MAX_TENANTS:
                    self._tenants.setdefault(each, CallPool(0, self._new_window(False)))
            self._alone = None
        elif not self._tenants:
            self._alone = tenant
        return self._tenants.get(tenant) if name == POOLED_AGENT else self.app(app)

    def agent(self, key: AgentKey, pool: CallPool) -> TrackedAgent | None:
        """Return the agent in its app's pool, added if there is capacity, else None."""
        name = key[2]
        agent = pool.agents.get(name)
        if agent is None:
            if not self._has_room_for_agent(key[:2], pool):
                return None
            agent = pool.agents[name] = TrackedAgent(pool.named, self._new_window(True))
            pool.named += 1
            self._tracked.add(key[0], 1)
        pool.agents.move_to_end(name)
        agent.used = pool.added
        return agent

    def _has_room_for_tenant(self) -> bool:
        if len(self._tenants) < MAX_TENANTS:
            return True
        longest = min(self._tenants, key=lambda each: self._tenants[each].used)
        if self.everything.added - self._tenants[longest].used < _UNUSED_APP:
            return False
        del self._tenants[longest]
        self._forget((longest, POOLED_AGENT, POOLED_AGENT))
        return True

    def _has_room_for_app(self, tenant: str) -> bool:
        if len(self._apps) < self._max_apps or self._forget_unused_app(tenant):
            return True
        giver = self._apps.gives_way(tenant)
        if giver == tenant:
            return False
        self._forget_app(next(iter(self._apps.of(giver))))
        return True

    def _has_room_for_agent(self, app: AppKey, pool: CallPool) -> bool:
        """Return whether the app may track one more agent, evicting another if necessary."""
        if len(pool.agents) >= self._max_agents:
            return self._forget_unused_agent(app, pool)
        if self._tracked.total < self._max_tracked:
            return True
        if self._forget_unused_app(app[0]):
            return self._tracked.total < self._max_tracked
        return self._forget_unused_agent(app, pool) or self._forget_of_largest(app[0])

    def _forget_of_largest(self, tenant: str) -> bool:
        """Evict an agent of the tenant that has most, if that has more than `tenant` does."""
        giver = self._tracked.gives_way(tenant)
        if giver == tenant:
            return False
        app, pool = next((app, pool) for app, pool in self.apps(giver) if pool.agents)
        self._forget_agent(app, pool)
        return True

    def _forget_unused_agent(self, app: AppKey, pool: CallPool) -> bool:
        agent = next(iter(pool.agents.values()), None)
        if agent is None or pool.added - agent.used < MODEL_CALLS:
            return False
        self._forget_agent(app, pool)
        return True

    def _forget_agent(self, app: AppKey, pool: CallPool) -> None:
        """Evict the least recently used agent of the app."""
        name, _ = pool.agents.popitem(last=False)
        self._tracked.add(app[0], -1)
        self._forget((*app, name))

    def _forget_unused_app(self, tenant: str) -> bool:
        app = next(iter(self._apps.of(tenant)), None)
        pool = None if app is None else self._apps.get(app)
        if app is None or pool is None or self._calls[tenant] - pool.used < _UNUSED_APP:
            return False
        self._forget_app(app)
        return True

    def _forget_app(self, app: AppKey) -> None:
        tenant = app[0]
        pool = self._apps.remove(tenant, app)
        assert pool is not None
        if not self._apps.of(tenant):
            del self._calls[tenant]
        self._tracked.add(tenant, -len(pool.agents))
        for name in (POOLED_AGENT, *pool.agents):
            self._forget((*app, name))

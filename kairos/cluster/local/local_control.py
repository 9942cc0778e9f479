"""Decisions and learning for a single process, which also serves clients."""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING

import msgspec

from kairos.cluster.local.learning import learn, recall, replay
from kairos.core import (
    SECOND,
    Balancer,
    Engine,
    Entitlements,
    EntitlementsChanged,
    Event,
    Learner,
    Observer,
    Orchestrator,
    PolicyChosen,
    Record,
    Runtime,
    Tick,
    WorkEstimates,
    WorkflowEnded,
    placement_named,
    policy_named,
)
from kairos.gateway import Access
from kairos.host import WallClock
from kairos.observe import LearntStore
from kairos.settings import Settings, part_of_quota, tenant_entitlements

if TYPE_CHECKING:
    from fastapi import FastAPI


TICK_S = 1.0
ENTITLING = ("tenant", "service_class", "quota")  # settings that determine entitlements


class LocalControl:
    """A runtime, and a learner that starts from what was learnt before a restart."""

    def __init__(
        self,
        settings: Settings,
        engine: Engine,
        balancer: Balancer,
        learner: Learner,
        observers: tuple[Observer, ...],
        decided: Sequence[Record] = (),
    ) -> None:
        """Create the runtime. `decided` are the records of a process that this one replaces.

        Raises:
            SetupError: The file of learnt profiles cannot be used.
        """
        path = settings.learnt_file
        self._store = LearntStore(path) if path is not None else None
        self.learner = learner
        kept = () if self._store is None else (self._store,)
        watching = (*observers, *kept, self.learner.orchestrator.observe)
        self.runtime = Runtime(balancer, engine, WallClock(), watching)
        chosen = [each.event.policy for each in decided if type(each.event) is PolicyChosen]
        self._policy = chosen[-1] if chosen else settings.policy
        if decided:
            replay(decided, balancer, learner, self._store)
        elif self._store is not None:
            recall(self.runtime, self.learner, self._store)

    @property
    def balancer(self) -> Balancer:
        return self.runtime.balancer

    @property
    def decides(self) -> bool:
        return True

    def now(self) -> int:
        return self.runtime.now()

    def feed(self, event: Event) -> None:
        self.runtime.feed(event)

    def entitle(self, entitlements: Entitlements) -> None:
        """Apply these entitlements from now on, unless they are in force already."""
        if entitlements != self.balancer.entitlements:
            self.feed(EntitlementsChanged(entitlements))

    def order_by(self, policy: str) -> None:
        """Order waiting calls by the policy with that name, unless it is in force already."""
        if policy != self._policy:
            self._policy = policy
            self.feed(PolicyChosen(policy))

    def background(self) -> list[Coroutine[None, None, None]]:
        storing = [] if self._store is None else [self._store.run()]
        return [learn(self.runtime, self.learner), self._give_up(), *storing]

    def add_insight(self, app: "FastAPI", access: Access) -> None:
        from kairos.gateway import add_insight

        add_insight(app, access, self)

    def add_tenants(self, app: "FastAPI") -> None:
        from kairos.gateway import add_tenants

        add_tenants(app, self)

    @property
    def orchestrator(self) -> Orchestrator:
        return self.learner.orchestrator

    @property
    def estimates(self) -> WorkEstimates:
        return self.balancer.estimates

    async def end(self, event: WorkflowEnded) -> None:
        self.feed(event)

    async def _give_up(self) -> None:
        """Feed a `Tick` when the next waiting request has reached its maximum waiting time."""
        while True:
            await asyncio.sleep(TICK_S)
            tick_at = self.balancer.tick_at
            if tick_at is not None and tick_at <= self.runtime.now():
                self.runtime.feed(Tick())


def new_balancer(settings: Settings) -> Balancer:
    return Balancer(
        policy_named(settings.policy),
        placement_named(settings.placement),
        max_waiting=settings.max_waiting,
        max_wait_us=settings.max_wait_s * SECOND,
        idle_us=settings.workflow_idle_s * SECOND,
        budget=settings.budget,
        # Without keys all are one tenant.
        tenant_share=settings.caller_share if settings.asks_for_keys else 1,
        suspicion_us=settings.suspicion_s * SECOND,
        entitlements=entitlements_of(settings),
    )


def entitlements_of(settings: Settings) -> Entitlements:
    """Return the entitlements of the tenants, service classes and quotas in the settings.

    One of several pools enforces its part of each quota.
    """
    entitled = tenant_entitlements(settings.tenant, settings.service_class, settings.quota)
    part = settings.pool_share
    if part == 1:
        return entitled
    return msgspec.structs.replace(
        entitled, quotas=tuple(part_of_quota(each, part) for each in entitled.quotas)
    )

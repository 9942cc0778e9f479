"""Which tenant's turn it is: start-time fair queueing with depth, SFQ(D).

A tenant's start tag is the service that its calls have had, over its weight. Of the tenants that
wait, the one with the lowest tag goes first, so while several wait each gets service in proportion
to its weight, however many calls it sends. Where the first tenant has nothing that fits, the next
one goes: no room stays empty. What so overtakes the first is bounded as within a tenant
(`queue.py`). A tenant may weigh its apps against each other, by the same rule.

A call is charged for what it is expected to cost when it goes, and the tag is put right when it
ends (`dispatcher/service_cost.py`). Who comes back begins at the virtual time: nothing is saved up
by waiting for nothing. While two tenants wait and any of their calls would fit, their tags differ
by no more than the cost of a call of each over its weight, and by how wrong the charges were for
calls that run now.

Goyal, Vin and Cheng, "Start-time fair queueing", SIGCOMM 1996; with several calls in service at
once: Jin, Chase and Kaur, "Interposed proportional sharing for a storage service utility",
SIGMETRICS 2004; that what is charged is put right later: Sheng et al., "Fairness in serving large
language models", OSDI 2024. Ours: the virtual time is the lowest tag among those that wait and the
one that goes, because the one that goes need not have the lowest tag.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

import msgspec

from kairos.model import Request

_REMEMBERED = 1_024  # names that need not wait; beyond, those are forgotten that nothing follows of

Share = tuple[str, str | None]  # tenant; app, where the tenant weighs its apps
_ALL: Share = "", None


class TenantWeight(msgspec.Struct, frozen=True):
    weight: float = 1.0
    apps: Mapping[str, float] = {}  # of one that is not named: 1; none at all: apps do not count


NO_WEIGHTS: Mapping[str, TenantWeight] = MappingProxyType({})


class StartTags:
    """Of tenants, or of one tenant's apps, by name."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._weights = weights
        self._tags: dict[str, float] = {}  # µs of an instance, over the weight
        self._waiting: dict[str, int] = {}  # queues of theirs in which anything waits
        self.virtual_time = 0.0

    def tag(self, name: str) -> float:
        return self._tags.get(name, self.virtual_time)

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def came(self, name: str) -> None:
        """In another queue something of it waits."""
        waiting = self._waiting.get(name, 0)
        self._waiting[name] = waiting + 1
        if not waiting:
            self._tags[name] = max(self.tag(name), self.virtual_time)
            if len(self._tags) > _REMEMBERED:
                self._forget_some()

    def left(self, name: str) -> None:
        """In one queue nothing of it waits any more."""
        waiting = self._waiting.pop(name) - 1
        if waiting:
            self._waiting[name] = waiting

    def first(self, names: Iterable[str]) -> str:
        """Of these, which wait; of equal ones, the first."""
        return min(names, key=self.tag)

    def charge(self, name: str, cost_us: float) -> None:
        """One of its calls goes, which waited."""
        tags = self._tags
        lowest = (
            tags[name] if len(self._waiting) == 1 else min(tags[each] for each in self._waiting)
        )
        self.virtual_time = max(self.virtual_time, lowest)
        tags[name] += cost_us / self._weights.get(name, 1.0)

    def correct(self, name: str, more_us: float) -> None:
        """What it was charged was so much too little."""
        if name in self._tags:
            self._tags[name] += more_us / self._weights.get(name, 1.0)

    def _forget_some(self) -> None:
        """Who comes back begins at the virtual time, so nothing is lost of who is below that."""
        waiting, now = self._waiting, self.virtual_time
        self._tags = {n: tag for n, tag in self._tags.items() if tag > now or n in waiting}


class FairQueueing:
    """Of all tenants; whoever is not named has a weight of 1."""

    def __init__(self, weights: Mapping[str, TenantWeight] | None) -> None:
        """Weights are above 0. None: all calls are of one share."""
        self._is_fair = weights is not None
        weights = weights or {}
        self.tenants = StartTags({name: each.weight for name, each in weights.items()})
        self._apps = {name: StartTags(each.apps) for name, each in weights.items() if each.apps}

    def share_of(self, request: Request) -> Share:
        """What it waits in, and is charged to."""
        if not self._is_fair:
            return _ALL
        tenant = request.tenant
        return (tenant, request.app or "") if tenant in self._apps else (tenant, None)

    def came(self, share: Share) -> None:
        """In another queue something of it waits."""
        tenant, app = share
        self.tenants.came(tenant)
        if app is not None:
            self._apps[tenant].came(app)

    def left(self, share: Share) -> None:
        """In one queue nothing of it waits any more."""
        tenant, app = share
        self.tenants.left(tenant)
        if app is not None:
            self._apps[tenant].left(app)

    def first(self, shares: Iterable[Share]) -> Share:
        """Of these, which wait, at least one."""
        shares = dict.fromkeys(shares)
        if len(shares) == 1:
            return next(iter(shares))
        tenant = self.tenants.first(tenant for tenant, _ in shares)
        apps = [app for each, app in shares if each == tenant and app is not None]
        return (tenant, self._apps[tenant].first(apps)) if apps else (tenant, None)

    def charge(self, share: Share, cost_us: float) -> None:
        tenant, app = share
        self.tenants.charge(tenant, cost_us)
        if app is not None:
            self._apps[tenant].charge(app, cost_us)

    def correct(self, request: Request, more_us: float) -> None:
        """What it was charged was so much too little."""
        tenant, app = self.share_of(request)
        self.tenants.correct(tenant, more_us)
        if app is not None:
            self._apps[tenant].correct(app, more_us)

"""Fair sharing among tenants: start-time fair queueing with depth, SFQ(D).

A tenant's start tag is the service that its calls have received, divided by its weight. Among
waiting tenants the one with the lowest tag is served first. So while several wait, each gets
service in proportion to its weight, however many calls it sends. If the first tenant has no call
that fits, the next one is served, up to the ninth, so that no capacity stays idle. The first
becomes overdue after a while, as within a tenant (`guard.py`). A tenant may weigh its apps against
each other by the same rule.

A call is charged its expected cost when it is dispatched, and the tag is corrected when it ends
(`core/dispatcher/booking.py`). A tenant that returns starts at the virtual time: idle time
earns no credit. While two tenants wait and any of their calls would fit, their tags differ by at
most the cost of one call of each over its weight, plus the error of the charges for running calls.

Goyal, Vin and Cheng, "Start-time fair queueing", SIGCOMM 1996; with several calls in service at
once: Jin, Chase and Kaur, "Interposed proportional sharing for a storage service utility",
SIGMETRICS 2004; correction of charges: Sheng et al., "Fairness in serving large language models",
OSDI 2024. Not in these papers: the virtual time is the lowest tag among the waiting tenants and the
one served, because the one served need not have the lowest tag.
"""

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import ClassVar

from kairos.core.entitlements import (
    SERVICE_CLASSES,
    STANDARD_CLASS,
    Goes,
    ServiceClass,
    TenantWeight,
)
from kairos.core.model import Request

_REMEMBERED = 1_024  # beyond this many names, idle ones whose tags have no effect are dropped

# Level of the class of service, tenant, class; app, if the tenant weighs its apps.
Share = tuple[int, str, str, str | None]
LEVELS: Mapping[Goes, int] = MappingProxyType({"first": -1, "share": 0, "spare": 1})
_SHARED, SPARE = LEVELS["share"], LEVELS["spare"]


class StartTags:
    """Start tags by name, of tenants, of a tenant's classes or of its apps."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._weights = weights
        self._tags: dict[str, float] = {}  # instance time in µs, over the weight
        self._waiting: dict[str, int] = {}  # number of non-empty queues, by name
        self.virtual_time = 0.0

    def tag(self, name: str) -> float:
        return self._tags.get(name, self.virtual_time)

    def weighed(self, name: str, cost_us: float) -> float:
        """Return by how much a cost moves the tag of `name`."""
        return cost_us / self._weights.get(name, 1.0)

    @property
    def waiting(self) -> int:
        """Return the number of names with waiting calls."""
        return len(self._waiting)

    def queues(self, name: str) -> int:
        """Return the number of non-empty queues of `name`."""
        return self._waiting.get(name, 0)

    def open_queue(self, name: str) -> None:
        """Record that one more queue of `name` became non-empty."""
        waiting = self._waiting.get(name, 0)
        self._waiting[name] = waiting + 1
        if not waiting:
            tags, now = self._tags, self.virtual_time
            if tags.get(name, -1.0) < now:
                tags[name] = now
            if len(tags) > _REMEMBERED:
                self._forget_some()

    def close_queue(self, name: str) -> None:
        """Record that a queue of `name` became empty."""
        waiting = self._waiting.pop(name) - 1
        if waiting:
            self._waiting[name] = waiting

    def charge(self, name: str, cost_us: float) -> None:
        """Charge `name` for a waiting call that is dispatched."""
        tags, waiting = self._tags, self._waiting
        tag = tags[name]
        lowest = tag if len(waiting) == 1 else min(tags[each] for each in waiting)
        if lowest > self.virtual_time:
            self.virtual_time = lowest
        tags[name] = tag + self.weighed(name, cost_us)

    def correct(self, name: str, more_us: float) -> None:
        """Correct the tag of `name`, which was charged `more_us` too little."""
        if name in self._tags:
            self._tags[name] += self.weighed(name, more_us)

    def go_on_from(self, before: "StartTags") -> None:
        """Take over the tags used before; unknown names start at the virtual time."""
        now = self.virtual_time = before.virtual_time
        self._tags = dict.fromkeys(self._waiting, now) | before._tags

    def _forget_some(self) -> None:
        """Forget idle names with tags below the virtual time, at which they would start anyway."""
        waiting, now = self._waiting, self.virtual_time
        self._tags = {n: tag for n, tag in self._tags.items() if tag > now or n in waiting}


class FairQueueing:
    """Fair sharing among all tenants; a tenant without a configured weight has weight 1.

    Each level of classes has its own tags, so best-effort calls count against no tenant's share.
    """

    ALL: ClassVar[Share] = _SHARED, "", STANDARD_CLASS, None
    """The share of all calls if fair sharing is off."""

    def __init__(
        self,
        weights: Mapping[str, TenantWeight] | None,
        classes: Mapping[str, ServiceClass] = SERVICE_CLASSES,
    ) -> None:
        """Set up the tags.

        `weights` are above 0; None: no fair sharing, all calls have one share.
        """
        self._is_fair = weights is not None
        self._weights = weights or {}
        self._weighing_apps = {name for name, each in self._weights.items() if each.apps}
        self._levels = {name: LEVELS[each.goes] for name, each in classes.items()}
        self._class_weights = {name: each.weight for name, each in classes.items()}
        self._max_waits_us = {name: each.max_wait_us for name, each in classes.items()}
        tenants = {name: each.weight for name, each in self._weights.items()}
        self.tenants = {level: StartTags(tenants) for level in LEVELS.values()}
        self._first_class: dict[tuple[int, str], str] = {}  # by level and tenant
        # Tags of classes, for tenants that have used more than one; by level and tenant.
        self._classes: dict[tuple[int, str], StartTags] = {}
        self._apps: dict[tuple[int, str, str], StartTags] = {}  # by level, tenant and class
        self._found: dict[Share, list[tuple[StartTags, str]]] = {}

    def follow(self, before: "FairQueueing") -> None:
        """Prepare to replace `before`, which has other weights and classes.

        The queues of this one are still empty.
        """
        self._first_class = before._first_class.copy()
        self._classes = {key: StartTags(self._class_weights) for key in before._classes}
        self._apps = {
            key: StartTags(self._weights[key[1]].apps)
            for key in before._apps
            if key[1] in self._weighing_apps
        }

    def go_on_from(self, before: "FairQueueing") -> None:
        """Take over the service counted by `before`, once all waiting calls are queued again.

        Call `follow` first.
        """
        for level, tags in self.tenants.items():
            tags.go_on_from(before.tenants[level])
        for key, tags in before._classes.items():
            self._classes[key].go_on_from(tags)
        for name, tags in before._apps.items():
            if name in self._apps:
                self._apps[name].go_on_from(tags)

    def share_of(self, request: Request) -> Share:
        """Return the share in which a request waits and to which it is charged."""
        if not self._is_fair:
            return self.ALL
        tenant, name = request.tenant, request.service_class
        level = self._levels.get(name)
        if level is None:  # from a log written with other settings
            level, name = _SHARED, STANDARD_CLASS
        app = (request.app or "") if tenant in self._weighing_apps else None
        return level, tenant, name, app

    def is_spare(self, service_class: str) -> bool:
        """Return whether the class is best-effort: dispatched only if nothing else fits."""
        return self._is_fair and self._levels.get(service_class) == SPARE

    def max_wait_us(self, share: Share) -> int | None:
        """Return the maximum wait of its class; None: the default applies."""
        return self._max_waits_us.get(share[2])

    def tags(self, share: Share) -> list[tuple[StartTags, str]]:
        """Return the tags of a share: tenant's, then class's and app's if there are several."""
        known = self._found.get(share)
        if known is not None:
            return known
        level, tenant, name, app = share
        found = [(self.tenants[level], tenant)]
        if (classes := self._classes_of(level, tenant, name)) is not None:
            found.append((classes, name))
        if app is not None:
            key = level, tenant, name
            if key not in self._apps:
                self._apps[key] = StartTags(self._weights[tenant].apps)
            found.append((self._apps[key], app))
        if len(self._found) >= _REMEMBERED:
            self._found.clear()
        self._found[share] = found
        return found

    def _classes_of(self, level: int, tenant: str, name: str) -> StartTags | None:
        """Return the tags of the tenant's classes; None while it has used only one class."""
        key = level, tenant
        if self._first_class.setdefault(key, name) != name and key not in self._classes:
            classes = self._classes[key] = StartTags(self._class_weights)
            for _ in range(self.tenants[level].queues(tenant)):
                classes.open_queue(self._first_class[key])
            self._found.clear()
        return self._classes.get(key)

    def open_queue(self, share: Share) -> None:
        """Record that one more queue of the share became non-empty."""
        for tags, name in self.tags(share):
            tags.open_queue(name)

    def close_queue(self, share: Share) -> None:
        """Record that a queue of the share became empty."""
        for tags, name in self.tags(share):
            tags.close_queue(name)

    def order(self, shares: Iterable[Share], at_most: int) -> list[Share]:
        """Return the first `at_most` of these waiting shares in service order; ties by position."""
        of_tenants: dict[tuple[int, str], list[Share]] = {}
        for share in shares:
            of_tenants.setdefault((share[0], share[1]), []).append(share)
        turns = [
            (level, self.tenants[level].tag(name), place, own)
            for place, ((level, name), own) in enumerate(of_tenants.items())
        ]
        found: list[Share] = []
        for *_, own in heapq.nsmallest(at_most, turns):
            found += own if len(own) == 1 else sorted(own, key=self._turn_within(own))
            if len(found) >= at_most:
                break
        return found[:at_most]

    def _turn_within(self, shares: Sequence[Share]) -> Callable[[Share], tuple[float, ...]]:
        """Return the sort key of shares of one tenant: by class, then by app."""
        classes = {name: place for place, (_, _, name, _) in reversed([*enumerate(shares)])}

        def turn(share: Share) -> tuple[float, ...]:
            tags = [tags.tag(name) for tags, name in self.tags(share)[1:]]
            return (tags[0], classes[share[2]], *tags[1:]) if tags else ()

        return turn

    def charge(self, share: Share, cost_us: float) -> None:
        for tags, name in self.tags(share):
            tags.charge(name, cost_us)

    def correct(self, request: Request, more_us: float) -> None:
        """Correct the tags of the request's share, which was charged `more_us` too little."""
        for tags, name in self.tags(self.share_of(request)):
            tags.correct(name, more_us)

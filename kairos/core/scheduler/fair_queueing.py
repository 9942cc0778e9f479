"""Which tenant's turn it is: start-time fair queueing with depth, SFQ(D).

A tenant's start tag is the service that its calls have had, over its weight. Of the tenants that
wait, the one with the lowest tag goes first, so while several wait each gets service in proportion
to its weight, however many calls it sends. Where the first tenant has nothing that fits, the next
one goes, of the first nine: so no room stays empty. The first is overdue after a while, as
within a tenant (`guard.py`). A tenant may weigh its apps against each other, by the same rule.

A call is charged for what it is expected to cost when it goes, and the tag is put right when it
ends (`core/dispatcher/service_cost.py`). Who comes back begins at the virtual time: nothing is
saved up by waiting for nothing. While two tenants wait and any of their calls would fit, their
tags differ by no more than the cost of a call of each over its weight, and by how wrong the
charges were for calls that run now.

Goyal, Vin and Cheng, "Start-time fair queueing", SIGCOMM 1996; with several calls in service at
once: Jin, Chase and Kaur, "Interposed proportional sharing for a storage service utility",
SIGMETRICS 2004; that what is charged is put right later: Sheng et al., "Fairness in serving large
language models", OSDI 2024. Ours: the virtual time is the lowest tag among those that wait and the
one that goes, because the one that goes need not have the lowest tag.
"""

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import ClassVar

from kairos.core.entitlements import CLASSES, STANDARD, Goes, ServiceClass, TenantWeight
from kairos.core.model import Request

_REMEMBERED = 1_024  # names that need not wait; beyond, those are forgotten that nothing follows of

# Level of the class of service, tenant, class; app, where the tenant weighs its apps.
Share = tuple[int, str, str, str | None]
LEVELS: Mapping[Goes, int] = MappingProxyType({"first": -1, "share": 0, "spare": 1})
_SHARED, SPARE = LEVELS["share"], LEVELS["spare"]


class StartTags:
    """Of tenants, or of one tenant's apps, by name."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._weights = weights
        self._tags: dict[str, float] = {}  # µs of an instance, over the weight
        self._waiting: dict[str, int] = {}  # queues of theirs in which anything waits
        self.virtual_time = 0.0

    def tag(self, name: str) -> float:
        return self._tags.get(name, self.virtual_time)

    def weighed(self, name: str, cost_us: float) -> float:
        """By how much such a cost moves its tag."""
        return cost_us / self._weights.get(name, 1.0)

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def queues(self, name: str) -> int:
        """In how many something of it waits."""
        return self._waiting.get(name, 0)

    def came(self, name: str) -> None:
        """In another queue something of it waits."""
        waiting = self._waiting.get(name, 0)
        self._waiting[name] = waiting + 1
        if not waiting:
            tags, now = self._tags, self.virtual_time
            if tags.get(name, -1.0) < now:
                tags[name] = now
            if len(tags) > _REMEMBERED:
                self._forget_some()

    def left(self, name: str) -> None:
        """In one queue nothing of it waits any more."""
        waiting = self._waiting.pop(name) - 1
        if waiting:
            self._waiting[name] = waiting

    def charge(self, name: str, cost_us: float) -> None:
        """One of its calls goes, which waited."""
        tags, waiting = self._tags, self._waiting
        tag = tags[name]
        lowest = tag if len(waiting) == 1 else min(tags[each] for each in waiting)
        if lowest > self.virtual_time:
            self.virtual_time = lowest
        tags[name] = tag + self.weighed(name, cost_us)

    def correct(self, name: str, more_us: float) -> None:
        """What it was charged was so much too little."""
        if name in self._tags:
            self._tags[name] += self.weighed(name, more_us)

    def go_on_from(self, before: "StartTags") -> None:
        """What they had until now counts; who was not known begins at the virtual time."""
        now = self.virtual_time = before.virtual_time
        self._tags = dict.fromkeys(self._waiting, now) | before._tags

    def _forget_some(self) -> None:
        """Who comes back begins at the virtual time, so nothing is lost of who is below that."""
        waiting, now = self._waiting, self.virtual_time
        self._tags = {n: tag for n, tag in self._tags.items() if tag > now or n in waiting}


class FairQueueing:
    """Of all tenants; whoever is not named has a weight of 1. Each level of classes has tags of its
    own, so what is spare counts against nobody's share."""

    ALL: ClassVar[Share] = _SHARED, "", STANDARD, None
    """That of all calls, where nothing is shared out."""

    def __init__(
        self,
        weights: Mapping[str, TenantWeight] | None,
        classes: Mapping[str, ServiceClass] = CLASSES,
    ) -> None:
        """Weights are above 0. None: all calls are of one share."""
        self._is_fair = weights is not None
        self._weights = weights or {}
        self._weighing_apps = {name for name, each in self._weights.items() if each.apps}
        self._levels = {name: LEVELS[each.goes] for name, each in classes.items()}
        self._class_weights = {name: each.weight for name, each in classes.items()}
        self._max_waits_us = {name: each.max_wait_us for name, each in classes.items()}
        tenants = {name: each.weight for name, each in self._weights.items()}
        self.tenants = {level: StartTags(tenants) for level in LEVELS.values()}
        self._first_class: dict[tuple[int, str], str] = {}  # by level and tenant
        self._classes: dict[tuple[int, str], StartTags] = {}  # of those that have had several
        self._apps: dict[tuple[int, str, str], StartTags] = {}  # by class as well
        self._found: dict[Share, list[tuple[StartTags, str]]] = {}

    def follow(self, before: "FairQueueing") -> None:
        """Other weights and classes held until now. Nothing waits here yet."""
        self._first_class = before._first_class.copy()
        self._classes = {key: StartTags(self._class_weights) for key in before._classes}
        self._apps = {
            key: StartTags(self._weights[key[1]].apps)
            for key in before._apps
            if key[1] in self._weighing_apps
        }

    def go_on_from(self, before: "FairQueueing") -> None:
        """Where it `follow`ed that, and all that waits has come: what was served counts."""
        for level, tags in self.tenants.items():
            tags.go_on_from(before.tenants[level])
        for key, tags in before._classes.items():
            self._classes[key].go_on_from(tags)
        for name, tags in before._apps.items():
            if name in self._apps:
                self._apps[name].go_on_from(tags)

    def share_of(self, request: Request) -> Share:
        """What it waits in, and is charged to."""
        if not self._is_fair:
            return self.ALL
        tenant, name = request.tenant, request.service_class
        level = self._levels.get(name)
        if level is None:  # of a log that other settings wrote
            level, name = _SHARED, STANDARD
        app = (request.app or "") if tenant in self._weighing_apps else None
        return level, tenant, name, app

    def is_spare(self, service_class: str) -> bool:
        """Whether calls of this class go once nothing else fits."""
        return self._is_fair and self._levels.get(service_class) == SPARE

    def max_wait_us(self, share: Share) -> int | None:
        """The longest wait of its class; None: as for all."""
        return self._max_waits_us.get(share[2])

    def tags(self, share: Share) -> list[tuple[StartTags, str]]:
        """From the tenant down: of its classes, and then its apps, where there are several."""
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
        """None, as long as it has had calls of one class alone."""
        key = level, tenant
        if self._first_class.setdefault(key, name) != name and key not in self._classes:
            classes = self._classes[key] = StartTags(self._class_weights)
            for _ in range(self.tenants[level].queues(tenant)):
                classes.came(self._first_class[key])
            self._found.clear()
        return self._classes.get(key)

    def came(self, share: Share) -> None:
        """In another queue something of it waits."""
        for tags, name in self.tags(share):
            tags.came(name)

    def left(self, share: Share) -> None:
        """In one queue nothing of it waits any more."""
        for tags, name in self.tags(share):
            tags.left(name)

    def order(self, shares: Iterable[Share], at_most: int) -> list[Share]:
        """Of these, which wait, so many whose turn it is first; of equal ones, who is named
        first."""
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
        """Their tenant: by class, and then by app."""
        classes = {name: place for place, (_, _, name, _) in reversed([*enumerate(shares)])}

        def turn(share: Share) -> tuple[float, ...]:
            tags = [tags.tag(name) for tags, name in self.tags(share)[1:]]
            return (tags[0], classes[share[2]], *tags[1:]) if tags else ()

        return turn

    def charge(self, share: Share, cost_us: float) -> None:
        for tags, name in self.tags(share):
            tags.charge(name, cost_us)

    def correct(self, request: Request, more_us: float) -> None:
        """What it was charged was so much too little."""
        for tags, name in self.tags(self.share_of(request)):
            tags.correct(name, more_us)

"""Learn which agents join parallel branches, for apps whose calls carry names but no ids.

Not in the paper. A single workflow cannot show whether a call that names one branch, and arrives
after all branches, waited for all of them. Many workflows can: for a join, the time since the
*last* end varies least; otherwise, the time since the end of the named call. A call that arrives
while a branch runs has not waited for that branch.
"""

import math
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from statistics import fmean, median
from typing import NamedTuple

import msgspec

from kairos.core.learnt import JoinPlace, Sighting
from kairos.core.orchestrator.learning_data import AppKey
from kairos.core.shared_lru import SharedLru

MAX_PLACES = 1_000  # of all apps; 30 kB each at most
MAX_SIGHTINGS = 64  # of a place: the newest
# Thresholds as logarithms of odds: 1,000 to 1; from names alone 150 to 1, since names hardly change
# by chance. Not in the paper.
SURE, SURE_BY_NAMES = 7.0, 5.0
_FLOOR_US = 1_000.0  # smaller deviations count as this
_FEWEST = 4  # sightings needed for a first verdict
_EACH = 16  # sightings after which a verdict is renewed at the latest
# A branch is left out of the join if more arrivals, and a larger share of them, fall into it.
_ONCE, _BESIDE = 1, 0.04
_LATE = 3.0  # what one arrival during a branch weighs against a join
_LAST = 0.9  # share of calls that name the branch that ended last, above which names are evidence


class SeenJoin(msgspec.Struct, frozen=True):
    """A sighting in an ended workflow of an app."""

    app: AppKey
    sighting: Sighting


class Verdict(NamedTuple):
    """Log odds that calls at a place are joins.

    `by_times` is the evidence from arrival times, `by_names` from the branches that the calls name.
    The last field lists the agents whose branches a join there leaves out.
    """

    by_times: float = 0.0
    by_names: float = 0.0
    beside: frozenset[str] = frozenset()


UNKNOWN = Verdict()
_PlaceKey = tuple[AppKey, str, str | None]


class JoinsOfApp:
    """Verdicts for one app."""

    def __init__(self, joins: "LearntJoins", app: AppKey) -> None:
        self._joins, self._app = joins, app

    def verdict(self, agent: str, caller: str | None) -> Verdict:
        return self._joins.verdict(self._app, agent, caller)


class LearntJoins:
    """Places, in all apps, at which calls may be joins.

    Bounded: the tenant with most places loses its least recently used one.
    """

    def __init__(self, *, skew_us: int = 0, max_places: int = MAX_PLACES) -> None:
        self._skew_us = skew_us
        self._places: SharedLru[_PlaceKey, _Place] = SharedLru(max_places)
        self._forgotten: set[_PlaceKey] = set()  # since the last `take_changed`

    def __len__(self) -> int:
        return len(self._places)

    def of(self, app: AppKey) -> JoinsOfApp:
        return JoinsOfApp(self, app)

    def verdict(self, app: AppKey, agent: str, caller: str | None) -> Verdict:
        place = self._places.get((app, agent, caller))
        return UNKNOWN if place is None else place.verdict

    def add(self, seen: SeenJoin) -> None:
        """Learn one sighting.

        Takes 1 µs, or some tenths of a millisecond if the verdict is renewed. The verdict is
        renewed when the place has a quarter more sightings, and at the latest after `_EACH`.
        """
        sighting, app = seen.sighting, seen.app
        key = (app, sighting.agent, sighting.caller)
        self._place(key).add(sighting, self._skew_us)

    def take_changed(self, *, whole: bool = False) -> tuple[JoinPlace, ...]:
        """Return the places to publish, with evicted places as empty ones.

        A place is published each time its sightings have doubled, and later after each
        `MAX_SIGHTINGS`. With `whole`, every place with unpublished sightings is returned.
        """
        changed = [
            _published(key, place)
            for key, place in zip(self._places.keys(), self._places.values(), strict=True)
            if place.is_news(whole=whole)
        ]
        gone = [_published(key, None) for key in self._forgotten if key not in self._places]
        self._forgotten.clear()
        return (*changed, *gone)

    def restore(self, places: Iterable[JoinPlace]) -> None:
        """Restore what was published before a restart. Call it before any `add`."""
        for each in places:
            if each.sightings:
                key = (each.tenant, each.app), each.agent, each.caller
                self._place(key).restore(each, self._skew_us)
        self._forgotten.clear()

    def _place(self, key: _PlaceKey) -> "_Place":
        """Return the place, created if needed, and mark it as most recently used."""
        place, tenant = self._places.get(key), key[0][0]
        if place is None:
            place = _Place()
            self._forgotten.update(gone for gone, _ in self._places.put(tenant, key, place))
        else:
            self._places.touch(tenant, key)
        return place


class _Place:
    __slots__ = ("due", "published", "seen", "sightings", "verdict")

    def __init__(self) -> None:
        self.sightings: deque[Sighting] = deque(maxlen=MAX_SIGHTINGS)
        self.seen, self.due, self.published = 0, _FEWEST, 0
        self.verdict = UNKNOWN

    def add(self, sighting: Sighting, skew_us: int) -> None:
        self.sightings.append(sighting)
        self.seen += 1
        if self.seen >= self.due:
            self.due = self.seen + min(max(1, self.seen // 4), _EACH)
            self.verdict = weigh(self.sightings, skew_us)

    def is_news(self, *, whole: bool) -> bool:
        """Return whether the place is due to be published; if so, count it as published."""
        new = self.seen - self.published
        if not new or (not whole and new < max(_FEWEST, min(self.published, MAX_SIGHTINGS))):
            return False
        self.published = self.seen
        return True

    def restore(self, known: JoinPlace, skew_us: int) -> None:
        self.sightings.extend(known.sightings)
        self.seen = self.published = max(known.seen, len(known.sightings))
        self.due = self.seen + 1
        if len(self.sightings) >= _FEWEST:
            self.verdict = weigh(self.sightings, skew_us)


def _published(key: _PlaceKey, place: _Place | None) -> JoinPlace:
    (tenant, app), agent, caller = key
    seen, sightings = (0, ()) if place is None else (place.seen, tuple(place.sightings))
    return JoinPlace(
        tenant=tenant, app=app, agent=agent, caller=caller, seen=seen, sightings=sightings
    )


def weigh(sightings: Sequence[Sighting], skew_us: int) -> Verdict:
    """Compute the odds that calls with these sightings are joins.

    Compares two explanations: the call arrives some time after the end of the call that it names,
    or the same time after the last end. Deviations follow a Laplace distribution, since tools'
    times have long tails. If the named branch is nearly always the one that ended last, times
    cannot decide. Then names are the evidence: the name changes with the branch that ends last, and
    of several calls of the named agent only the last is followed.
    """
    beside = _beside(sightings, skew_us)
    last_ends = [
        max((end for agent, end in each.others if agent not in beside), default=None)
        for each in sightings
    ]
    joined = [
        (each, max(0, end))
        for each, end in zip(sightings, last_ends, strict=True)
        if end is not None
    ]
    if not joined:
        return Verdict(-math.inf, 0.0, beside)
    floor = max(_FLOOR_US, float(skew_us))
    alone = max(floor, _deviation([each.after_us for each, _ in joined]))
    after_all = max(floor, _deviation([each.after_us - end for each, end in joined]))
    odds = len(joined) * math.log(alone / after_all)
    odds -= _LATE * sum(each.after_us + skew_us < end for each, end in joined)
    return Verdict(odds, _by_names(joined, beside), beside)


def _beside(sightings: Iterable[Sighting], skew_us: int) -> frozenset[str]:
    """Return the agents during whose branches such calls arrive."""
    seen: Counter[str] = Counter()
    during: Counter[str] = Counter()
    for each in sightings:
        for agent, end in each.others:
            seen[agent] += 1
            during[agent] += each.after_us + skew_us < end
    return frozenset(agent for agent in seen if during[agent] > max(_ONCE, _BESIDE * seen[agent]))


def _by_names(joined: Sequence[tuple[Sighting, int]], beside: frozenset[str]) -> float:
    named_last = [each for each, end in joined if not end]
    if len(named_last) < _LAST * len(joined):
        return 0.0
    branches = Counter(each.branch for each in named_last)
    changes = sum(n * math.log(len(named_last) / n) for n in branches.values())
    return changes + sum(each.choices for each in named_last if each.branch not in beside)


def _deviation(values: Sequence[int]) -> float:
    middle = median(values)
    return fmean(abs(value - middle) for value in values)

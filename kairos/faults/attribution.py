"""Whose fault is it that a call came to nothing: its own, or its instance's? Ours.

A model with two unknowns. A call may be *poisonous*: it fails on any instance, nearly always. And
an instance fails sound calls at a rate of its own, which its latest calls tell. A failure is
evidence for both. By Bayes' rule the odds that a call is poisonous grow with each failure by

    P(fails | poisonous) / P(fails | sound) = 0.98 / rate of the instance

so a failure where all others fail says nothing of the call, and one where all others are served
says much. The instance is charged with what the call is probably not guilty of, so a poisonous call
that comes again and again costs an instance ever less. Who made poisonous calls before is likelier
to have made another. Failures of one caller's calls that were served nowhere are evidence on that
caller: they are left out of the rate by which another of its calls is judged, or whoever makes many
poisonous calls would make all instances look broken, and none of its calls poisonous.

Calls with the same body are one call: clients try again under new names. What is concluded is taken
back as soon as more is known: where a suspect is served, its failures become the instances'; where
it is found poisonous, they are none of theirs.

The verdict's error rates, in worlds of which the truth is known:
`python -m tests.simulation.faults`.
"""

import math
from collections import OrderedDict
from typing import Any

import msgspec

from kairos.learnt import AgentKey
from kairos.model import SECOND

POISONOUS = 0.9  # probability from which on a call that failed twice is refused
# That a call is poisonous, where nothing is known of who made it: a guess. A tenth of it moves no
# verdict on a call that two well instances failed. It counts as much as ten calls of the caller.
PRIOR, PRIOR_CALLS = 1e-3, 10.0
FAILS_IF_POISONOUS = 0.98
# At which an instance fails sound calls, as long as nothing is known of it, and how many calls that
# counts for: in what it did of late, and in what it did before.
RATE, RATE_CALLS, LONG_RATE_CALLS = 0.01, 1.0, 20.0
# What is left of earlier outcomes with each that follows: of late are four calls, before, fifty.
# The former tells that an instance broke, the latter that it fails some calls all the time.
MEMORY, LONG_MEMORY = 0.75, 0.98
WELL_US = 10 * SECOND  # after which without a served call an instance's good ones count half
REMEMBERED_US = 600 * SECOND  # suspects and callers, since the last failure
MOST_SUSPECTS = 4096  # and callers; the oldest are forgotten
MOST_OPEN = 64  # callers whose failures on one instance are told apart


class _Memory(msgspec.Struct):
    """An instance's outcomes, the latest of which count most."""

    keeps: float
    served: float = 0.0
    failed: float = 0.0

    def add(self, served: float, failed: float) -> None:
        self.served = self.keeps * self.served + served
        self.failed = self.keeps * self.failed + failed

    def rate(self, prior_calls: float, worth: float, without: float = 0.0) -> float:
        """`worth`: of what it served. `without` so many of the failures."""
        failed = max(0.0, self.failed - without)
        return (failed + RATE * prior_calls) / (worth * self.served + failed + prior_calls)


class _Open(msgspec.Struct):
    """What one caller's calls that were served nowhere cost an instance, as it was after so many of
    its outcomes."""

    late: float = 0.0
    long: float = 0.0
    outcomes: int = 0

    def at(self, outcomes: int) -> "_Open":
        passed = outcomes - self.outcomes
        self.late *= MEMORY**passed
        self.long *= LONG_MEMORY**passed
        self.outcomes = outcomes
        return self

    def add(self, share: float) -> None:
        self.late = max(0.0, self.late + share)
        self.long = max(0.0, self.long + share)


class _Outcomes(msgspec.Struct):
    """Of an instance."""

    late: _Memory = msgspec.field(default_factory=lambda: _Memory(MEMORY))
    long: _Memory = msgspec.field(default_factory=lambda: _Memory(LONG_MEMORY))
    count: int = 0
    served_at: int = -1  # the last; -1: nothing
    open: OrderedDict[AgentKey, _Open] = msgspec.field(default_factory=OrderedDict)

    def add(self, served: float, failed: float) -> None:
        self.count += 1
        self.late.add(served, failed)
        self.long.add(served, failed)

    def charge(self, share: float) -> None:
        """With more, or less, than it was at first."""
        for memory in (self.late, self.long):
            memory.failed = max(0.0, memory.failed + share)

    def worth(self, at: int) -> float:
        """What it served says the less, the longer ago that is: it may hang since."""
        return math.pow(0.5, (at - self.served_at) / WELL_US)

    def open_of(self, caller: AgentKey) -> _Open:
        found = self.open.get(caller)
        if found is None:
            found = self.open[caller] = _Open()
            if len(self.open) > MOST_OPEN:
                self.open.popitem(last=False)
        return found.at(self.count)

    def rate_for(self, caller: AgentKey, at: int) -> float:
        """At which it fails sound calls, of late or all the time, as others' calls tell."""
        mine = self.open_of(caller)
        late = self.late.rate(RATE_CALLS, self.worth(at), mine.late)
        return max(late, self.long.rate(LONG_RATE_CALLS, 1.0, mine.long))


class _Suspect(msgspec.Struct):
    """A body that failed somewhere."""

    odds: float  # poisonous : sound
    caller: AgentKey
    first_at: int
    failed_at: int
    failures: int = 0
    charged: dict[str, float] = msgspec.field(default_factory=dict)  # to instances, by id
    failed_on: set[str] = msgspec.field(default_factory=set)


class _Caller(msgspec.Struct):
    """Who made a poisonous call."""

    poisonous: int = 0
    served: int = 0  # since
    last_at: int = 0


class FaultAttribution:
    """What failures say of calls and of instances. `key` is the call's body, by its hash, or the
    call's id where that is not known. O(1) each."""

    def __init__(self) -> None:
        self._outcomes: dict[str, _Outcomes] = {}
        self._suspects: OrderedDict[int | str, _Suspect] = OrderedDict()
        self.callers: OrderedDict[AgentKey, _Caller] = OrderedDict()
        """Who made poisonous calls: these are to be told of when they are `well`."""

    def served(self, instance_id: str, at: int) -> None:
        """A call was served there."""
        outcomes = self._of(instance_id)
        outcomes.served_at = at
        outcomes.add(1.0, 0.0)

    def well(self, caller: AgentKey) -> None:
        """A call of theirs was served."""
        known = self.callers.get(caller)
        if known is not None:
            known.served += 1

    def failed(
        self,
        key: int | str,
        caller: AgentKey,
        instance_id: str,
        at: int,
        *,
        about_itself: bool = False,
    ) -> float:
        """A call came to nothing there. `about_itself`: for a reason that is none of the call's, as
        the instance says. Returns the instance's share in that, from 0 to 1."""
        outcomes = self._of(instance_id)
        share = 1.0
        if not about_itself:
            rate = outcomes.rate_for(caller, at)
            share = self._suspected(key, caller, instance_id, rate, at)
        outcomes.late.served *= outcomes.worth(at)
        outcomes.add(0.0, share)
        if not about_itself:
            outcomes.open_of(caller).add(share)
        return share

    def cleared(self, key: int | str) -> None:
        """The call was served: where it failed, the instance failed it."""
        suspect = self._suspects.pop(key, None)
        if suspect is not None:
            self._settle(suspect, 1.0)

    def condemned(self, key: int | str, at: int) -> list[str]:
        """The call is found poisonous: it counts against its caller, and not against the instances
        where it failed. Returns the ids of these."""
        suspect = self._suspects[key]
        caller = self.callers.pop(suspect.caller, None) or _Caller()
        self.callers[suspect.caller] = caller
        _forget_oldest(self.callers)
        caller.poisonous += 1
        caller.last_at = at
        self._settle(suspect, 0.0)
        instances = list(suspect.charged)
        suspect.charged.clear()
        return instances

    def is_poisonous(self, key: int | str, at: int) -> bool:
        """It failed twice, and more likely by its own fault. One failure condemns no call; nor do
        any where no other call was served, on a single instance since the first of them."""
        suspect = self._suspects.get(key)
        if suspect is None or suspect.failures < 2 or at - suspect.failed_at > REMEMBERED_US:
            return False
        since = suspect.first_at if len(suspect.failed_on) == 1 else -1
        outcomes = (self._outcomes.get(each) for each in suspect.failed_on)
        serves = any(each is not None and each.served_at > since for each in outcomes)
        return serves and _probability(suspect.odds) >= POISONOUS

    def is_doubtful(self, key: int | str) -> bool:
        """No instance that failed at it has served another call since: the fault may have been
        theirs, when all of them failed at once."""
        suspect = self._suspects[key]
        outcomes = (self._outcomes.get(each) for each in suspect.failed_on)
        return all(each is None or each.served_at <= suspect.failed_at for each in outcomes)

    def rate(self, instance_id: str, at: int) -> float:
        """At which the instance fails sound calls, of late."""
        outcomes = self._outcomes.get(instance_id)
        if outcomes is None:
            return RATE
        return outcomes.late.rate(RATE_CALLS, outcomes.worth(at))

    def forget(self, instance_id: str) -> None:
        """It has left: one that comes back has started anew."""
        self._outcomes.pop(instance_id, None)

    def _of(self, instance_id: str) -> _Outcomes:
        outcomes = self._outcomes.get(instance_id)
        if outcomes is None:
            outcomes = self._outcomes[instance_id] = _Outcomes()
        return outcomes

    def _settle(self, suspect: _Suspect, share: float) -> None:
        """The instances' share in its failures is known now."""
        for instance_id, charged in suspect.charged.items():
            if (outcomes := self._outcomes.get(instance_id)) is not None:
                outcomes.charge(share - charged)
                outcomes.open_of(suspect.caller).add(-charged)

    def _suspected(
        self, key: int | str, caller: AgentKey, instance_id: str, rate: float, at: int
    ) -> float:
        """Returns the probability that the call is sound, after this failure."""
        suspect = self._suspects.pop(key, None)
        if suspect is None or at - suspect.failed_at > REMEMBERED_US:
            suspect = _Suspect(_odds(self._prior(caller, at)), caller, at, at)
        self._suspects[key] = suspect
        _forget_oldest(self._suspects)
        suspect.failed_at = at
        suspect.failures += 1
        suspect.failed_on.add(instance_id)
        suspect.odds *= FAILS_IF_POISONOUS / rate
        share = 1.0 - _probability(suspect.odds)
        suspect.charged[instance_id] = suspect.charged.get(instance_id, 0.0) + share
        return share

    def _prior(self, caller: AgentKey, at: int) -> float:
        """That a call of theirs is poisonous, before anything is known of it."""
        known = self.callers.get(caller)
        if known is None or at - known.last_at > REMEMBERED_US:
            return PRIOR
        calls = known.poisonous + known.served + PRIOR_CALLS
        return (known.poisonous + PRIOR * PRIOR_CALLS) / calls


def _forget_oldest(kept: OrderedDict[Any, Any]) -> None:
    if len(kept) > MOST_SUSPECTS:
        kept.popitem(last=False)


def _odds(probability: float) -> float:
    return probability / (1.0 - probability)


def _probability(odds: float) -> float:
    return odds / (1.0 + odds)

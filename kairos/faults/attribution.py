"""Whose fault is it that a call came to nothing: its own, or its instance's? Ours.

A model with two unknowns. A call may be *poisonous*: it fails on any instance, nearly always. And
an instance fails sound calls at a rate of its own, which its latest calls tell. A failure is
evidence for both. By Bayes' rule the odds that a call is poisonous grow with each failure by

    P(fails | poisonous) / P(fails | sound) = 0.98 / rate of the instance

so a failure where all others fail says nothing of the call, and one where all others are served
says much. The instance is charged with what the call is probably not guilty of, so a poisonous call
that comes again and again costs an instance ever less. Who made poisonous calls before is likelier
to have made another.

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

POISONOUS = 0.9  # probability from which on a call is refused
# That a call of somebody unknown is poisonous: a guess. A tenth of it moves no verdict on a call
# that two well instances failed.
PRIOR = 1e-3
LARGEST_PRIOR = 0.1  # whoever makes it: where a tenth of all fail, one failure condemns no call
FAILS_IF_POISONOUS = 0.98
RATE, RATE_WEIGHT = 0.01, 1.0  # of an instance of which nothing is known, and how many calls that
# counts for
MEMORY = 0.75  # of an instance's outcomes, with each that follows: four calls
WELL_US = 10 * SECOND  # after which without a served call an instance's good ones count half
REMEMBERED_US = 600 * SECOND  # suspects and callers, since the last failure
MOST_SUSPECTS = 4096  # and callers; the oldest are forgotten


class _Outcomes(msgspec.Struct):
    """Of an instance's latest calls: how many were served, how many it failed."""

    served: float = 0.0
    failed: float = 0.0
    served_at: int | None = None


class _Suspect(msgspec.Struct):
    """A body that failed somewhere."""

    odds: float  # poisonous : sound
    caller: AgentKey
    failed_at: int
    charged: dict[str, float] = msgspec.field(default_factory=dict)  # to instances, by id


class FaultAttribution:
    """What failures say of calls and of instances. `key` is the call's body, by its hash, or the
    call's id where that is not known. O(1) each."""

    def __init__(self) -> None:
        self._outcomes: dict[str, _Outcomes] = {}
        self._suspects: OrderedDict[int | str, _Suspect] = OrderedDict()
        # How many poisonous calls each made, and when the last.
        self._callers: OrderedDict[AgentKey, tuple[float, int]] = OrderedDict()

    def served(self, instance_id: str, at: int) -> None:
        """A call was served there."""
        outcomes = self._of(instance_id)
        outcomes.served_at = at
        outcomes.served = MEMORY * outcomes.served + 1
        outcomes.failed *= MEMORY

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
        rate = self.rate(instance_id, at)
        share = 1.0 if about_itself else self._suspected(key, caller, instance_id, rate, at)
        outcomes = self._of(instance_id)
        outcomes.served = MEMORY * self._well(outcomes, at)
        outcomes.failed = MEMORY * outcomes.failed + share
        return share

    def cleared(self, key: int | str) -> None:
        """The call was served: where it failed, the instance failed it."""
        suspect = self._suspects.pop(key, None)
        if suspect is not None:
            share = _probability(suspect.odds)
            for instance_id in suspect.charged:
                self._of(instance_id).failed += share

    def condemned(self, key: int | str, at: int) -> list[str]:
        """The call is found poisonous: it counts against its caller, and not against the instances
        where it failed. Returns the ids of these."""
        suspect = self._suspects[key]
        count, _ = self._callers.pop(suspect.caller, (0.0, at))
        self._callers[suspect.caller] = count + 1, at
        _forget_oldest(self._callers)
        for instance_id, charged in suspect.charged.items():
            outcomes = self._outcomes.get(instance_id)
            if outcomes is not None:
                outcomes.failed = max(0.0, outcomes.failed - charged)
        instances = list(suspect.charged)
        suspect.charged.clear()
        return instances

    def is_poisonous(self, key: int | str, at: int) -> bool:
        suspect = self._suspects.get(key)
        if suspect is None or at - suspect.failed_at > REMEMBERED_US:
            return False
        return _probability(suspect.odds) >= POISONOUS

    def rate(self, instance_id: str, at: int) -> float:
        """At which the instance fails sound calls, at present."""
        outcomes = self._outcomes.get(instance_id)
        if outcomes is None:
            return RATE
        of = self._well(outcomes, at) + outcomes.failed + RATE_WEIGHT
        return (outcomes.failed + RATE * RATE_WEIGHT) / of

    def forget(self, instance_id: str) -> None:
        """It has left: one that comes back has started anew."""
        self._outcomes.pop(instance_id, None)

    def _of(self, instance_id: str) -> _Outcomes:
        outcomes = self._outcomes.get(instance_id)
        if outcomes is None:
            outcomes = self._outcomes[instance_id] = _Outcomes()
        return outcomes

    def _well(self, outcomes: _Outcomes, at: int) -> float:
        """What it served says the less, the longer ago that is: it may hang since."""
        if outcomes.served_at is None:
            return 0.0
        return outcomes.served * math.pow(0.5, (at - outcomes.served_at) / WELL_US)

    def _suspected(
        self, key: int | str, caller: AgentKey, instance_id: str, rate: float, at: int
    ) -> float:
        """Returns the probability that the call is sound, after this failure."""
        suspect = self._suspects.pop(key, None)
        if suspect is None or at - suspect.failed_at > REMEMBERED_US:
            suspect = _Suspect(_odds(self._prior(caller, at)), caller, at)
        self._suspects[key] = suspect
        _forget_oldest(self._suspects)
        suspect.failed_at = at
        suspect.odds *= FAILS_IF_POISONOUS / rate
        share = 1.0 - _probability(suspect.odds)
        suspect.charged[instance_id] = suspect.charged.get(instance_id, 0.0) + share
        return share

    def _prior(self, caller: AgentKey, at: int) -> float:
        """That a call of theirs is poisonous, before anything is known of it."""
        poisonous, last_at = self._callers.get(caller, (0.0, at))
        if at - last_at > REMEMBERED_US:
            return PRIOR
        return min(poisonous + PRIOR, LARGEST_PRIOR)


def _forget_oldest(kept: OrderedDict[Any, Any]) -> None:
    if len(kept) > MOST_SUSPECTS:
        kept.popitem(last=False)


def _odds(probability: float) -> float:
    return probability / (1.0 - probability)


def _probability(odds: float) -> float:
    return odds / (1.0 + odds)

"""Attribution of a failed call to the call itself or to its instance. Not in the paper.

A model with two unknowns. A call may be *poisonous*: it fails on nearly any instance. And an
instance fails sound calls at a rate of its own, estimated from its latest calls. A failure is
evidence for both. By Bayes' rule each failure multiplies the odds that a call is poisonous by

    P(fails | poisonous) / P(fails | sound) = 0.98 / rate of the instance

so a failure on an instance that fails all calls says nothing about the call, and a failure on an
instance that serves all others says much. The instance is charged with the probability that the
call is sound, so a poisonous call that is repeated costs an instance ever less. A caller that made
poisonous calls before is likelier to make another. Failures of one caller's calls that were served
nowhere are evidence about that caller: they do not count in the rate by which its other calls are
judged. Otherwise a caller with many poisonous calls would make all instances look broken, and none
of its calls poisonous.

Calls with the same body count as one call, since clients retry under new names. Several of them on
one instance when it failed are evidence once. Conclusions are revised as soon as more is known: if
a suspect is served, its failures are charged to the instances; if it is found poisonous, they are
not.

All this only determines what an instance is charged with. A call is delayed or refused for one
reason alone: an instance had it, and dropped the connection or died (`quarantine.py`).

Error rates of the verdict, in simulations with known truth: `python -m tests.simulation.faults`.
"""

import math
from collections.abc import Collection, Mapping

from kairos.core.agent_key import AgentKey
from kairos.core.model import SECOND
from kairos.core.shared_lru import SharedLru

# Prior rate at which an instance fails sound calls, and its weight in calls: in the short-term and
# in the long-term rate.
RATE, RATE_CALLS, LONG_RATE_CALLS = 0.01, 1.0, 20.0
# Factor on earlier outcomes with each new one: the short term covers four calls, the long term
# fifty. The former shows that an instance broke, the latter that it fails some calls all the time.
MEMORY, LONG_MEMORY = 0.75, 0.98
WELL_US = 10 * SECOND  # time without a served call after which earlier served calls count half
MOST_OPEN = 64  # callers whose failures on one instance are counted separately


class _Memory:
    """Outcomes of an instance, with exponentially decreasing weight."""

    served: float = 0.0
    failed: float = 0.0

    def __init__(self, keeps: float) -> None:
        self.keeps = keeps

    def add(self, served: float, failed: float) -> None:
        self.served = self.keeps * self.served + served
        self.failed = self.keeps * self.failed + failed

    def rate(self, prior_calls: float, worth: float, without: float = 0.0) -> float:
        """Return the rate of failures, without `without` of them.

        `prior_calls` and `worth` weigh the prior rate, in calls, and the served calls.
        """
        failed = max(0.0, self.failed - without)
        return (failed + RATE * prior_calls) / (worth * self.served + failed + prior_calls)


class _Open:
    """Charges to an instance for one caller's calls that were served nowhere.

    They decay with the instance's outcomes; `outcomes` is the count they are valid for.
    """

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


class Outcomes:
    """Outcomes of one instance."""

    count: int = 0
    served_at: int = -1  # time of the last served call; -1: none yet

    def __init__(self) -> None:
        self.late: _Memory = _Memory(MEMORY)
        self.long: _Memory = _Memory(LONG_MEMORY)
        self.open: SharedLru[AgentKey, _Open] = SharedLru(MOST_OPEN)

    def add(self, served: float, failed: float) -> None:
        self.count += 1
        self.late.add(served, failed)
        self.long.add(served, failed)

    def charge(self, share: float) -> None:
        """Correct the charge of an earlier failure by `share`."""
        for memory in (self.late, self.long):
            memory.failed = max(0.0, memory.failed + share)

    def worth(self, at: int) -> float:
        """Return the weight of served calls, which decreases with time: it may hang since."""
        return math.pow(0.5, (at - self.served_at) / WELL_US)

    def open_of(self, caller: AgentKey) -> _Open:
        found = self.open.get(caller)
        if found is None:
            found = _Open()
            self.open.put(caller[0], caller, found)
        return found.at(self.count)

    def rate_for(self, caller: AgentKey, at: int) -> float:
        """Return the higher of the short- and long-term rates, less the caller's own failures."""
        mine = self.open_of(caller)
        late = self.late.rate(RATE_CALLS, self.worth(at), mine.late)
        return max(late, self.long.rate(LONG_RATE_CALLS, 1.0, mine.long))


POISONOUS = 0.9  # minimum probability for which a call that failed twice counts as poisonous
# Prior probability that a call of an unknown caller is poisonous: a guess. A tenth of it changes no
# verdict on a call that two healthy instances failed. It weighs as much as ten calls of the caller.
PRIOR, PRIOR_CALLS = 1e-3, 10.0
FAILS_IF_POISONOUS = 0.98
# Probability that an instance dies by itself while a sound call begins there: a guess, too. Only
# its ratio to the prior matters: with one call in flight, the fault is as likely the call's.
DIES_BY_ITSELF = 1e-3
REMEMBERED_US = 600 * SECOND  # time since the last failure for which suspects and callers are kept
# Lower bound of the factor on the odds that a call of a caller with a good record kills an
# instance: low enough that it is no suspect next to a call of a new caller, but is one alone.
LEAST_BY_RECORD = 0.02
FEW = 2  # up to this many calls on an instance at its death are all suspects
MOST_SERVED = 1000  # served calls that count for a caller at most
MOST_SUSPECTS = 4096  # also of callers; the oldest of the tenant that has most are evicted


class _Suspect:
    """Body of a request that failed on some instance."""

    failures: int = 0
    deaths: int = 0  # number of instances that died while they had it
    is_found: bool = False  # found to be poisonous
    may_kill: bool = False  # an instance died of it, or of one of the few calls next to it
    is_killer: bool = False  # an instance died of it, since nothing else ran there
    suspected: float = 0.0  # probability counted against its caller

    def __init__(
        self, odds: float, odds_before: float, caller: AgentKey, first_at: int, failed_at: int
    ) -> None:
        self.odds = odds  # poisonous : sound
        self.odds_before = odds_before  # odds before its latest failure
        self.caller = caller
        self.first_at = first_at
        self.failed_at = failed_at
        self.charged: dict[str, float] = {}  # share charged to instances, by id
        self.failed_on: dict[str, int] = {}  # latest counted failure by instance id


class CallerRecord:
    """Record of a caller: its poisonous calls, and its calls that may have killed an instance."""

    poisonous: int = 0
    killers: int = 0  # poisonous calls that instances died of
    comes_into_question: bool = False  # an instance died, possibly of one of its calls
    suspected: float = 0.0  # expected number of poisonous calls among the unresolved ones
    served: int = 0  # its served calls, at most `MOST_SERVED`
    last_at: int = 0


class FaultAttribution:
    """Evidence from failures about calls and instances.

    `key` is the hash of the call's body, or the call's id if that is unknown. O(1) each.
    """

    def __init__(self) -> None:
        self._outcomes: dict[str, Outcomes] = {}
        self._suspects: SharedLru[int | str, _Suspect] = SharedLru(MOST_SUSPECTS)
        self.callers: SharedLru[AgentKey, CallerRecord] = SharedLru(MOST_SUSPECTS)
        """Records of recent callers."""
        self.knows_deaths = False
        """Whether an instance ever died with calls in flight."""

    def record_service(self, instance_id: str, at: int) -> None:
        """Record that the instance served a call."""
        outcomes = self._of(instance_id)
        outcomes.served_at = at
        outcomes.add(1.0, 0.0)

    def count_served_call(self, caller: AgentKey) -> None:
        """Record that a call of the caller was served."""
        known = self.callers.get(caller)
        if known is None:
            known = self._new_caller(caller)
        if known.served < MOST_SERVED:
            known.served += 1

    def record_failure(
        self,
        key: int | str,
        caller: AgentKey,
        instance_id: str,
        at: int,
        *,
        began_at: int,
        about_itself: bool = False,
    ) -> float:
        """Record a failed call, and return the instance's share of the blame, 0 to 1.

        `began_at`: when it was dispatched there. `about_itself`: the instance reports that the
        reason is not the call.
        """
        outcomes = self._of(instance_id)
        share = 1.0
        if not about_itself:
            rate = outcomes.rate_for(caller, at)
            share = self._suspected(key, caller, instance_id, rate, at, began_at)
        outcomes.late.served *= outcomes.worth(at)
        outcomes.add(0.0, share)
        if not about_itself:
            outcomes.open_of(caller).add(share)
        return share

    def clear_suspect(self, key: int | str) -> None:
        """Record that a call was served, so that its earlier failures are the instances' fault."""
        suspect = self._suspects.get(key)
        if suspect is not None:
            self._suspects.remove(suspect.caller[0], key)
            self._settle(suspect, 1.0)
            if suspect.caller in self.callers:
                self.callers[suspect.caller].suspected -= suspect.suspected

    def condemn_call(self, key: int | str, at: int, *, killed: bool) -> list[str]:
        """Record that a call is poisonous, which is charged to its caller and not to instances.

        `killed`: an instance died of it. Return the ids of the instances it failed on.
        """
        suspect = self._suspects[key]
        caller = self._note(suspect.caller, at)
        caller.poisonous += not suspect.is_found
        caller.killers += killed
        suspect.is_killer |= killed
        caller.suspected -= suspect.suspected
        suspect.is_found, suspect.suspected = True, 0.0
        self._settle(suspect, 0.0)
        instances = list(suspect.charged)
        suspect.charged.clear()
        return instances

    def suspect_call(
        self, key: int | str, caller: AgentKey, instance_id: str, at: int, began_at: int
    ) -> None:
        """Record a call's failure on an instance that had left before the failure was reported."""
        self._suspected(key, caller, instance_id, RATE, at, began_at)

    def blame_one(
        self, weights: Mapping[int | str, float], told: Collection[int | str], at: int
    ) -> None:
        """Record one event that failed several calls, at most one of them being the cause.

        Evidence for one call is evidence against the others, and the failure of one call on the
        instance says nothing more about the next. With more than `FEW` calls, only a call that
        another instance died of before becomes a suspect, or one that is a likelier cause than all
        others together.

        `weights` are factors on the odds of each call. `told` are calls whose failure there is new.
        """
        self.knows_deaths = True
        suspects = {key: self._suspects[key] for key in weights if key in self._suspects}
        news = {key: suspects[key] for key in told if key in suspects}
        for key, each in news.items():
            if not each.is_found:
                each.odds = self.odds_of_death(key) * weights[key]
            each.deaths += 1
        together = sum(each.odds for each in suspects.values())
        for each in news.values():
            if len(weights) <= FEW or each.deaths > 1 or 2 * each.odds > together:
                each.may_kill = self._note(each.caller, at).comes_into_question = True
            if not each.is_found:
                each.odds /= 1.0 + max(0.0, together - each.odds)
                risk = _probability(each.odds)
                self._note(each.caller, at).suspected += risk - each.suspected
                each.suspected = risk

    def caller_of(self, key: int | str) -> AgentKey:
        """Return the caller of a suspect."""
        return self._suspects[key].caller

    def is_killer(self, key: int | str, at: int) -> bool:
        """Return whether an instance died of the call while nothing else ran there."""
        suspect = self._suspects.get(key)
        return suspect is not None and suspect.is_killer and at - suspect.failed_at <= REMEMBERED_US

    def odds_of_death(self, key: int | str) -> float:
        """Return the odds that the instance died of the call when it dropped the connection."""
        suspect = self._suspects[key]
        odds = suspect.odds_before * FAILS_IF_POISONOUS / DIES_BY_ITSELF
        return odds if suspect.deaths else odds * self._by_record(suspect.caller)

    def may_kill(self, key: int | str) -> float:
        """Return the probability that instances die of the call."""
        suspect = self._suspects.get(key)
        return _probability(suspect.odds) if suspect is not None and suspect.may_kill else 0.0

    def _note(self, caller: AgentKey, at: int) -> CallerRecord:
        """Return the caller's record, marked as having a failure at `at`."""
        known = self.callers.get(caller) or self._new_caller(caller)
        self.callers.touch(caller[0], caller)
        known.last_at = at
        return known

    def _new_caller(self, caller: AgentKey) -> CallerRecord:
        known = CallerRecord()
        self.callers.put(caller[0], caller, known)
        return known

    def is_poisonous(self, key: int | str, at: int) -> bool:
        """Return whether the call failed twice, and more likely by its own fault.

        A single failure is never enough. Nor are failures on one instance alone that has served no
        other call since the first of them, unless the first instance may have died of it.
        """
        suspect = self._suspects.get(key)
        if suspect is None or suspect.failures < 2 or at - suspect.failed_at > REMEMBERED_US:
            return False
        since = suspect.first_at if len(suspect.failed_on) == 1 else -1
        outcomes = [self._outcomes.get(each) for each in suspect.failed_on]
        serves = any(each is not None and each.served_at > since for each in outcomes)
        is_theirs = not serves and not suspect.may_kill
        return not is_theirs and _probability(suspect.odds) >= POISONOUS

    def rate(self, instance_id: str, at: int) -> float:
        """Return the recent rate at which the instance fails sound calls."""
        outcomes = self._outcomes.get(instance_id)
        if outcomes is None:
            return RATE
        return outcomes.late.rate(RATE_CALLS, outcomes.worth(at))

    def forget_instance(self, instance_id: str) -> None:
        """Forget an instance that left: if it comes back, it is a new process."""
        self._outcomes.pop(instance_id, None)

    def _of(self, instance_id: str) -> Outcomes:
        outcomes = self._outcomes.get(instance_id)
        if outcomes is None:
            outcomes = self._outcomes[instance_id] = Outcomes()
        return outcomes

    def _settle(self, suspect: _Suspect, share: float) -> None:
        """Correct the charges of the instances, now that their share in the failures is known."""
        for instance_id, charged in suspect.charged.items():
            if (outcomes := self._outcomes.get(instance_id)) is not None:
                outcomes.charge(share - charged)
                outcomes.open_of(suspect.caller).add(-charged)

    def _suspected(
        self,
        key: int | str,
        caller: AgentKey,
        instance_id: str,
        rate: float,
        at: int,
        began_at: int,
    ) -> float:
        """Record a failure, and return the probability that the call is sound after it."""
        suspect = self._suspects.get(key)
        if suspect is not None:
            self._suspects.remove(suspect.caller[0], key)
        if suspect is None or at - suspect.failed_at > REMEMBERED_US:
            prior = self.prior(caller, at)
            odds = prior / (1.0 - prior)
            suspect = _Suspect(odds, odds, caller, at, at)
        self._suspects.put(suspect.caller[0], key, suspect)
        # Concurrent calls with the same body on one instance failed by one event: it counts once.
        is_new = suspect.failed_on.get(instance_id, began_at) <= began_at
        suspect.failed_at = at
        if is_new:
            suspect.failed_on[instance_id] = at
            suspect.failures += 1
            suspect.odds_before = suspect.odds
            suspect.odds *= FAILS_IF_POISONOUS / rate
        share = 1.0 - _probability(suspect.odds)
        suspect.charged[instance_id] = suspect.charged.get(instance_id, 0.0) + share
        return share

    def _by_record(self, caller: AgentKey) -> float:
        """Return the factor by which the caller's good record lowers the odds of a killing call."""
        known = self.callers.get(caller)
        served = 0 if known is None else known.served
        return max(PRIOR_CALLS / (PRIOR_CALLS + served), LEAST_BY_RECORD)

    def prior(self, caller: AgentKey, at: int) -> float:
        """Return the prior probability that a call of the caller is poisonous."""
        known = self.callers.get(caller)
        if known is None or at - known.last_at > REMEMBERED_US:
            return PRIOR
        poisonous = known.poisonous + max(0.0, known.suspected)
        calls = poisonous + known.served + PRIOR_CALLS
        return max(PRIOR, (poisonous + PRIOR * PRIOR_CALLS) / calls)


def _probability(odds: float) -> float:
    return odds / (1.0 + odds)

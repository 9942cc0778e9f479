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

Calls with the same body are one call: clients try again under new names. Several of them that were
on one instance when it failed are evidence once. What is concluded is taken
back as soon as more is known: where a suspect is served, its failures become the instances'; where
it is found poisonous, they are none of theirs.

All this only shares out what an instance is charged with. A call is held back, or refused, for one
thing alone: that an instance had it, and broke the connection or died (`quarantine.py`).

The verdict's error rates, in worlds of which the truth is known:
`python -m tests.simulation.faults`.
"""

from collections.abc import Collection, Mapping

from kairos.core.agent_key import AgentKey
from kairos.core.faults.outcomes import RATE, RATE_CALLS, Outcomes
from kairos.core.model import SECOND
from kairos.core.shared_lru import SharedLru

POISONOUS = 0.9  # probability from which on a call that failed twice is taken for poisonous
# That a call is poisonous, where nothing is known of who made it: a guess. A tenth of it moves no
# verdict on a call that two well instances failed. It counts as much as ten calls of the caller.
PRIOR, PRIOR_CALLS = 1e-3, 10.0
FAILS_IF_POISONOUS = 0.98
# That an instance dies by itself while a sound call begins there: a guess, too. What matters is how
# it compares to the prior: where one call was in flight, the fault is as likely the call's.
DIES_BY_ITSELF = 1e-3
REMEMBERED_US = 600 * SECOND  # suspects and callers, since the last failure
# Of somebody of long standing a call is that much less likely to kill an instance: so little that
# it is no suspect beside one of somebody new, and so much that it is one alone.
LEAST_BY_RECORD = 0.02
FEW = 2  # calls that an instance had when it died: each of them comes into question
MOST_SERVED = 1000  # calls of a caller count for it, of all that it ever made
MOST_SUSPECTS = 4096  # and callers; the oldest of the tenant that has most are forgotten


class _Suspect:
    """A body that failed somewhere."""

    failures: int = 0
    deaths: int = 0  # of instances that had it
    is_found: bool = False  # to be poisonous
    may_kill: bool = False  # an instance died at it, or at one of few that ran beside it
    is_killer: bool = False  # an instance died of it: nothing else ran there
    suspected: float = 0.0  # what that counts against its caller

    def __init__(
        self, odds: float, odds_before: float, caller: AgentKey, first_at: int, failed_at: int
    ) -> None:
        self.odds = odds  # poisonous : sound
        self.odds_before = odds_before  # its latest failure
        self.caller = caller
        self.first_at = first_at
        self.failed_at = failed_at
        self.charged: dict[str, float] = {}  # to instances, by id
        self.failed_on: dict[str, int] = {}  # the latest that counted there


class CallerRecord:
    """Who makes calls. Poisonous ones, or some that may have killed an instance?"""

    poisonous: int = 0
    killers: int = 0  # of these: instances died of them
    comes_into_question: bool = False  # an instance died, and a call of theirs may be why
    suspected: float = 0.0  # of those of which it is not known: so many, probably
    served: int = 0  # calls of theirs, `MOST_SERVED` at most
    last_at: int = 0


class FaultAttribution:
    """What failures say of calls and of instances. `key` is the call's body, by its hash, or the
    call's id where that is not known. O(1) each."""

    def __init__(self) -> None:
        self._outcomes: dict[str, Outcomes] = {}
        self._suspects: SharedLru[int | str, _Suspect] = SharedLru(MOST_SUSPECTS)
        self.callers: SharedLru[AgentKey, CallerRecord] = SharedLru(MOST_SUSPECTS)
        """By who they are; those of late."""
        self.knows_deaths = False
        """Whether an instance ever died with calls in flight."""

    def served(self, instance_id: str, at: int) -> None:
        """A call was served there."""
        outcomes = self._of(instance_id)
        outcomes.served_at = at
        outcomes.add(1.0, 0.0)

    def well(self, caller: AgentKey) -> None:
        """A call of theirs was served."""
        known = self.callers.get(caller)
        if known is None:
            known = self._new_caller(caller)
        if known.served < MOST_SERVED:
            known.served += 1

    def failed(
        self,
        key: int | str,
        caller: AgentKey,
        instance_id: str,
        at: int,
        *,
        began_at: int,
        about_itself: bool = False,
    ) -> float:
        """A call that began there at `began_at` came to nothing. `about_itself`: for a reason that
        is none of the call's, as the instance says. Returns the instance's share in that, from 0
        to 1."""
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

    def cleared(self, key: int | str) -> None:
        """The call was served: where it failed, the instance failed it."""
        suspect = self._suspects.get(key)
        if suspect is not None:
            self._suspects.remove(suspect.caller[0], key)
            self._settle(suspect, 1.0)
            if suspect.caller in self.callers:
                self.callers[suspect.caller].suspected -= suspect.suspected

    def condemned(self, key: int | str, at: int, *, killed: bool) -> list[str]:
        """The call is found poisonous: it counts against its caller, and not against the instances
        where it failed. `killed`: an instance died of it. Returns the ids of those where it
        failed."""
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

    def suspect(
        self, key: int | str, caller: AgentKey, instance_id: str, at: int, began_at: int
    ) -> None:
        """A call came to nothing on an instance that had left before that was told."""
        self._suspected(key, caller, instance_id, RATE, at, began_at)

    def one_of(
        self, weights: Mapping[int | str, float], told: Collection[int | str], at: int
    ) -> None:
        """One event failed all of these, and at most one of them is its cause: what speaks for one
        speaks against the others, and that the instance failed one says nothing more of the next.
        `weights`: what is left of the odds of each. `told`: of which that is news. Of more than
        `FEW` only a call at which another died before comes into question, or one that is likelier
        the cause than all others together."""
        self.knows_deaths = True
        suspects = {key: self._suspects[key] for key in weights if key in self._suspects}
        news = {key: suspects[key] for key in told if key in suspects}
        for key, each in news.items():
            if not each.is_found:
                each.odds = self._odds_of_death(each) * weights[key]
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

    def caller(self, key: int | str) -> AgentKey:
        """Of a suspect."""
        return self._suspects[key].caller

    def is_killer(self, key: int | str, at: int) -> bool:
        """Whether an instance died of it, while nothing else ran there."""
        suspect = self._suspects.get(key)
        return suspect is not None and suspect.is_killer and at - suspect.failed_at <= REMEMBERED_US

    def odds_of_death(self, key: int | str) -> float:
        """Return the odds that an instance died of the call that it had when it broke off."""
        return self._odds_of_death(self._suspects[key])

    def _odds_of_death(self, suspect: _Suspect) -> float:
        odds = suspect.odds_before * FAILS_IF_POISONOUS / DIES_BY_ITSELF
        return odds if suspect.deaths else odds * self._by_record(suspect.caller)

    def may_kill(self, key: int | str) -> float:
        """The probability that instances die at it."""
        suspect = self._suspects.get(key)
        return _probability(suspect.odds) if suspect is not None and suspect.may_kill else 0.0

    def _note(self, caller: AgentKey, at: int) -> CallerRecord:
        """Something bad of them."""
        known = self.callers.get(caller) or self._new_caller(caller)
        self.callers.touch(caller[0], caller)
        known.last_at = at
        return known

    def _new_caller(self, caller: AgentKey) -> CallerRecord:
        known = CallerRecord()
        self.callers.put(caller[0], caller, known)
        return known

    def is_poisonous(self, key: int | str, at: int) -> bool:
        """It failed twice, and more likely by its own fault. One failure condemns no call; nor do
        any where no other call was served, on a single instance since the first of them; unless
        the first instance died of it, maybe."""
        suspect = self._suspects.get(key)
        if suspect is None or suspect.failures < 2 or at - suspect.failed_at > REMEMBERED_US:
            return False
        since = suspect.first_at if len(suspect.failed_on) == 1 else -1
        outcomes = [self._outcomes.get(each) for each in suspect.failed_on]
        serves = any(each is not None and each.served_at > since for each in outcomes)
        is_theirs = not serves and not suspect.may_kill
        return not is_theirs and _probability(suspect.odds) >= POISONOUS

    def rate(self, instance_id: str, at: int) -> float:
        """At which the instance fails sound calls, of late."""
        outcomes = self._outcomes.get(instance_id)
        if outcomes is None:
            return RATE
        return outcomes.late.rate(RATE_CALLS, outcomes.worth(at))

    def forget(self, instance_id: str) -> None:
        """It has left: one that comes back has started anew."""
        self._outcomes.pop(instance_id, None)

    def _of(self, instance_id: str) -> Outcomes:
        outcomes = self._outcomes.get(instance_id)
        if outcomes is None:
            outcomes = self._outcomes[instance_id] = Outcomes()
        return outcomes

    def _settle(self, suspect: _Suspect, share: float) -> None:
        """The instances' share in its failures is known now."""
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
        """Returns the probability that the call is sound, after this failure."""
        suspect = self._suspects.get(key)
        if suspect is not None:
            self._suspects.remove(suspect.caller[0], key)
        if suspect is None or at - suspect.failed_at > REMEMBERED_US:
            odds = _odds(self.prior(caller, at))
            suspect = _Suspect(odds, odds, caller, at, at)
        self._suspects.put(suspect.caller[0], key, suspect)
        # Calls with one body that were there side by side failed by one event: it counts once.
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
        """How much less likely than of somebody new a call of theirs kills an instance: many others
        did not."""
        known = self.callers.get(caller)
        served = 0 if known is None else known.served
        return max(PRIOR_CALLS / (PRIOR_CALLS + served), LEAST_BY_RECORD)

    def prior(self, caller: AgentKey, at: int) -> float:
        """That a call of theirs is poisonous, before anything is known of it."""
        known = self.callers.get(caller)
        if known is None or at - known.last_at > REMEMBERED_US:
            return PRIOR
        poisonous = known.poisonous + max(0.0, known.suspected)
        calls = poisonous + known.served + PRIOR_CALLS
        return max(PRIOR, (poisonous + PRIOR * PRIOR_CALLS) / calls)


def _odds(probability: float) -> float:
    return probability / (1.0 - probability)


def _probability(odds: float) -> float:
    return odds / (1.0 + odds)

"""What follows from failures: which instances are left alone, which calls are refused, and which
run alone."""

import math
from collections.abc import Collection

from kairos.core.agent_key import AgentKey, agent_key
from kairos.core.dispatcher.booking import Booking
from kairos.core.dispatcher.ledger import Ledger
from kairos.core.errors import CallBreaksEngines
from kairos.core.events import (
    Bounced,
    Cancelled,
    Event,
    Failed,
    Finished,
    FirstToken,
    InstanceLeft,
    InstanceStatus,
    PrefillFailed,
)
from kairos.core.faults.attribution import POISONOUS, CallerRecord, FaultAttribution
from kairos.core.faults.breaking_caller import CallerBreaksEngines
from kairos.core.faults.circuits import Circuits
from kairos.core.faults.quarantine import KILLER, SUSPECTED, SUSPICION_US, Quarantine, slowed_us
from kairos.core.model import SECOND, Instance, Request

# The rate of failures from which on an instance is left alone. Of one that served its latest calls
# it takes three calls in a row; of one of which nothing is known, or nothing of late, one.
UNTRUSTED = 0.4


class Faults:
    """Of one balancer."""

    def __init__(self, suspicion_us: int = SUSPICION_US) -> None:
        """`suspicion_us`: for which a call waits that may have killed an instance."""
        self.circuits = Circuits()
        self.quarantine = Quarantine(suspicion_us)
        self._attribution = FaultAttribution()
        # Under what a call here is suspected, by id; of those that are no suspects, nothing.
        self._keys: dict[str, int | str] = {}
        self._opened_by: dict[str, int | str] = {}  # the latest suspect, by instance id
        self._poisonous: dict[str, None] = {}  # calls that were found to be, by id; each once

    def check(self, request: Request, body: int | None, at: int) -> None:
        """One that arrives.

        Raises:
            CallBreaksEngines: an instance died of it, or of one with the same body.
            CallerBreaksEngines: its caller's calls killed engines, and one of them waits, or it is
                too early for the next.
        """
        attribution = self._attribution
        if body is not None and attribution.is_killer(body, at):
            raise CallBreaksEngines
        if not attribution.knows_deaths:
            return
        caller = agent_key(request)
        known = self._killer(caller, at)
        if known is None or not known.killers:
            return
        not_before = known.last_at + slowed_us(known.killers)
        if at < not_before or self.quarantine.has_suspect_of(caller):
            raise CallerBreaksEngines(max(1, math.ceil((not_before - at) / SECOND)))

    def arrived(self, request: Request, body: int | None, at: int) -> None:
        """It is to run alone, where one like it may have killed an instance, or where others of its
        caller's did."""
        attribution = self._attribution
        if body is not None:
            self._keys[request.id] = body
            self._suspect(request.id, agent_key(request), attribution.may_kill(body), at)
        if attribution.knows_deaths and self._killer(caller := agent_key(request), at):
            self.quarantine.suspect(request.id, caller, at)

    def learn(
        self,
        event: Finished | Failed | Cancelled | Bounced,
        ledger: Ledger,
        at: int,
    ) -> None:
        """How a call ended, or that it bounced, before the ledger forgets it."""
        booking = ledger.booking(event.request_id)
        if booking is None:
            return
        instance = ledger.instances.get(booking.instance_id)  # None: it has left
        if type(event) is Finished:
            prefilling = ledger.prefills.instance_of(event.request_id)
            if prefilling is not None and prefilling in ledger.instances:
                self._trust(ledger.instances[prefilling], at)
            if instance is not None:
                self._served(booking, instance, at)
        elif (type(event) is Bounced or type(event) is Failed) and event.by_instance:
            self._failed(event, booking, at, is_here=instance is not None)

    def prefill_failed(self, event: PrefillFailed, ledger: Ledger, at: int) -> None:
        """The call goes on without that instance: if it is served, the failure is held against the
        instance alone."""
        booking = ledger.booking(event.request_id)
        instance_id = ledger.prefills.instance_of(event.request_id)
        if booking is None or instance_id is None:
            return
        if instance_id in ledger.instances:
            key = self._key_of(booking.request.id, event.body)
            self._charge(booking, key, instance_id, at, about_itself=False)

    def heard(self, event: Event, at: int) -> list[str]:
        """What a fact that was taken in says of those that are in quarantine. Ids of those that go
        as any other from now on."""
        quarantine = self.quarantine
        if type(event) is InstanceStatus:
            quarantine.heard_of(event.instance_id, at)
        elif type(event) is FirstToken:
            quarantine.is_sound(event.request_id)
        quarantine.pass_time(at)
        return quarantine.take_freed()

    def _killer(self, caller: AgentKey, at: int) -> CallerRecord | None:
        """What is known of them, if a new call of theirs is likely to kill. Of those without a name
        nothing is thought: they may be many."""
        known = self._attribution.callers.get(caller)
        if known is None or caller[1:] == ("", ""):
            return None
        if not known.comes_into_question or known.killers + known.suspected <= SUSPECTED:
            return None
        return known if self._attribution.prior(caller, at) >= KILLER else None

    def _suspect(self, request_id: str, caller: AgentKey, risk: float, at: int) -> None:
        """It runs alone, if it kills with so high a probability."""
        if risk >= SUSPECTED:
            self.quarantine.suspect(request_id, caller, at)

    def is_aside(self, request_id: str) -> bool:
        """Whether it waits, and not for its turn."""
        return self.quarantine.is_aside(request_id)

    def next_at(self, drained_at: int, at: int) -> int | None:
        """When something that waits may go by time alone. `drained_at`: when the queues were."""
        instants = self.circuits.next_try_at(drained_at), self.quarantine.next_at(at)
        return min((each for each in instants if each is not None), default=None)

    def take_poisonous(self) -> list[str]:
        """Ids of those that are here and were found to be just now."""
        found, self._poisonous = self._poisonous, {}
        return list(found)

    def ended(self, request_id: str) -> None:
        """It is here no more."""
        if self._keys:
            self._keys.pop(request_id, None)
        self._poisonous.pop(request_id, None)
        if self.quarantine:
            self.quarantine.ended(request_id)

    def joined(self, instance_id: str) -> None:
        self.quarantine.joined(instance_id)

    def left(self, event: InstanceLeft, at: int) -> None:
        instance_id = event.instance_id
        self.circuits.forget(instance_id)
        self._opened_by.pop(instance_id, None)
        self._attribution.forget(instance_id)
        if event.drained:
            self.quarantine.drains(instance_id)
        elif failed := self.quarantine.left(instance_id, at):
            self._decide(instance_id, failed, at)

    def _served(self, booking: Booking, instance: Instance, at: int) -> None:
        request = booking.request
        self._trust(instance, at)
        self._attribution.well(agent_key(request))
        if request.id in self._keys:
            self._attribution.cleared(self._keys[request.id])
        self.quarantine.heard_of(instance.id, booking.at)

    def _trust(self, instance: Instance, at: int) -> None:
        self._attribution.served(instance.id, at)
        if self.circuits:
            self.circuits.answered(instance.id, at, instance.max_num_seqs)

    def _failed(self, event: Failed | Bounced, booking: Booking, at: int, *, is_here: bool) -> None:
        request, instance_id = booking.request, booking.instance_id
        about_itself = type(event) is Bounced and event.about_itself
        key = self._key_of(request.id, event.body)
        if is_here:
            self._charge(booking, key, instance_id, at, about_itself=about_itself)
        elif instance_id in self.quarantine.drained:
            return
        elif event.dropped:
            self._attribution.suspect(key, agent_key(request), instance_id, at, booking.at)
        if not event.dropped:
            self.quarantine.answered(request.id, ended=not about_itself)
            return
        odds = self._attribution.odds_of_death(key)
        self.quarantine.failed(key, booking, at, ended=type(event) is Failed, odds=odds)
        if not is_here:
            self._decide(instance_id, [key], at)

    def _key_of(self, request_id: str, body: int | None) -> int | str:
        """Under what it is suspected from now on."""
        key = self._keys[request_id] = request_id if body is None else body
        return key

    def _charge(
        self, booking: Booking, key: int | str, instance_id: str, at: int, *, about_itself: bool
    ) -> None:
        """Charge a failure to the instance, and to the call."""
        attribution, circuits = self._attribution, self.circuits
        was_tried = circuits.is_on_trial(instance_id, at)
        share = attribution.failed(
            key,
            agent_key(booking.request),
            instance_id,
            at,
            began_at=booking.at,
            about_itself=about_itself,
        )
        if attribution.is_poisonous(key, at):
            self._found(key, at, killed=False)
        elif share > 0.5 if was_tried else attribution.rate(instance_id, at) > UNTRUSTED:
            circuits.open(instance_id, at)
            self._opened_by[instance_id] = key

    def _decide(self, instance_id: str, keys: Collection[int | str], at: int) -> None:
        """The instance left: which of the calls that failed there may have killed it? `keys`: of
        those of which that is news."""
        attribution, quarantine = self._attribution, self.quarantine
        attribution.one_of(quarantine.weights(instance_id), keys, at)
        held = quarantine.held(instance_id)
        risks = {request_id: attribution.may_kill(key) for request_id, key in held.items()}
        for request_id in sorted(risks, key=risks.__getitem__):
            risk, key = risks[request_id], held[request_id]
            if risk >= POISONOUS and quarantine.was_spared(instance_id):
                self._found(key, at, killed=True)
            elif risk >= SUSPECTED:  # else one like it may have been served meanwhile
                self._suspect(request_id, attribution.caller(key), risk, at)
        quarantine.free(instance_id)

    def _found(self, key: int | str, at: int, *, killed: bool) -> None:
        """Take a call for poisonous. `killed`: an instance died of it, so it is refused."""
        attribution = self._attribution
        for each in attribution.condemned(key, at, killed=killed):
            self._acquit(each, key, at)
        if not killed:
            return
        caller = attribution.caller(key)
        self.quarantine.slow(caller, at + slowed_us(attribution.callers[caller].killers))
        self._poisonous |= {name: None for name, other in self._keys.items() if other == key}

    def _acquit(self, instance_id: str, key: int | str, at: int) -> None:
        """Of what a poisonous call did there."""
        is_trusted = self._attribution.rate(instance_id, at) <= UNTRUSTED
        if is_trusted and self._opened_by.get(instance_id) == key:
            self.circuits.forget(instance_id)

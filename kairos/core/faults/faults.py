"""Consequences of failures: open circuits, refused calls, and calls that run alone."""

import math
from collections.abc import Collection

from kairos.core.agent_key import AgentKey, agent_key_of
from kairos.core.dispatcher.booking import Booking
from kairos.core.dispatcher.ledger import Ledger
from kairos.core.errors import CallBreaksEngines, CallerBreaksEngines
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
from kairos.core.faults.circuits import Circuits
from kairos.core.faults.quarantine import KILLER, SUSPECTED, SUSPICION_US, Quarantine, slowed_us
from kairos.core.model import SECOND, Instance, Request

# Rate of failures above which the circuit of an instance opens. If its latest calls were served,
# that takes three failures in a row; if nothing recent is known of it, one.
UNTRUSTED = 0.4


class Faults:
    """Faults known to one balancer."""

    def __init__(self, suspicion_us: int = SUSPICION_US) -> None:
        """Start without faults. `suspicion_us`: see `Quarantine`."""
        self.circuits = Circuits()
        self.quarantine = Quarantine(suspicion_us)
        self._attribution = FaultAttribution()
        # Keys of present calls that are suspects, by id.
        self._keys: dict[str, int | str] = {}
        self._opened_by: dict[str, int | str] = {}  # the call that opened the circuit
        self._poisonous: dict[str, None] = {}  # newly found poisonous calls, by id; an ordered set

    def check(self, request: Request, body: int | None, at: int) -> None:
        """Check an arriving request.

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
        caller = agent_key_of(request)
        known = self._killer(caller, at)
        if known is None or not known.killers:
            return
        not_before = known.last_at + slowed_us(known.killers)
        if at < not_before or self.quarantine.has_suspect_of(caller):
            raise CallerBreaksEngines(max(1, math.ceil((not_before - at) / SECOND)))

    def screen_call(self, request: Request, body: int | None, at: int) -> None:
        """Let a call run alone if one like it, or of its caller, may have killed an instance."""
        attribution = self._attribution
        if body is not None:
            self._keys[request.id] = body
            self._suspect(request.id, agent_key_of(request), attribution.may_kill(body), at)
        if attribution.knows_deaths and self._killer(caller := agent_key_of(request), at):
            self.quarantine.suspect(request.id, caller, at)

    def learn_from_end(
        self,
        event: Finished | Failed | Cancelled | Bounced,
        ledger: Ledger,
        at: int,
    ) -> None:
        """Learn from the end or bounce of a call, before the ledger forgets it."""
        booking = ledger.booking(event.request_id)
        if booking is None:
            return
        instance = ledger.instances.get(booking.instance_id)  # None if it has left
        if type(event) is Finished:
            prefilling = ledger.prefills.instance_of(event.request_id)
            if prefilling is not None and prefilling in ledger.instances:
                self._trust(ledger.instances[prefilling], at)
            if instance is not None:
                self._record_service(booking, instance, at)
        elif (type(event) is Bounced or type(event) is Failed) and event.by_instance:
            self._record_failure(event, booking, at, is_here=instance is not None)

    def prefill_failed(self, event: PrefillFailed, ledger: Ledger, at: int) -> None:
        """Record a failed prefill; the call goes on without that instance.

        If the call is served, the failure counts against the instance alone.
        """
        booking = ledger.booking(event.request_id)
        instance_id = ledger.prefills.instance_of(event.request_id)
        if booking is None or instance_id is None:
            return
        if instance_id in ledger.instances:
            key = self._key_of(booking.request.id, event.body)
            self._charge(booking, key, instance_id, at, about_itself=False)

    def apply_fact(self, event: Event, at: int) -> list[str]:
        """Apply a fact to the quarantine, and return the ids of calls released by it."""
        quarantine = self.quarantine
        if type(event) is InstanceStatus:
            quarantine.clear_instance(event.instance_id, at)
        elif type(event) is FirstToken:
            quarantine.end_trial(event.request_id)
        quarantine.pass_time(at)
        return quarantine.take_freed()

    def _killer(self, caller: AgentKey, at: int) -> CallerRecord | None:
        """Return the record of the caller if a new call of it is likely to kill an instance.

        Callers without a name are never suspected: they may be many.
        """
        known = self._attribution.callers.get(caller)
        if known is None or caller[1:] == ("", ""):
            return None
        if not known.comes_into_question or known.killers + known.suspected <= SUSPECTED:
            return None
        return known if self._attribution.prior(caller, at) >= KILLER else None

    def _suspect(self, request_id: str, caller: AgentKey, risk: float, at: int) -> None:
        """Let a call run alone if its probability to kill an instance is high enough."""
        if risk >= SUSPECTED:
            self.quarantine.suspect(request_id, caller, at)

    def is_aside(self, request_id: str) -> bool:
        """Return whether the call is in quarantine, so that it is not dispatched in turn."""
        return self.quarantine.is_aside(request_id)

    def next_at(self, drained_at: int, at: int) -> int | None:
        """Return when a waiting call may be dispatched by the passing of time alone.

        `drained_at`: when the queues were last drained.
        """
        instants = self.circuits.next_try_at(drained_at), self.quarantine.next_at(at)
        return min((each for each in instants if each is not None), default=None)

    def take_poisonous(self) -> list[str]:
        """Return and clear the ids of present calls that were newly found poisonous."""
        found, self._poisonous = self._poisonous, {}
        return list(found)

    def forget_call(self, request_id: str) -> None:
        """Forget a call that has ended."""
        if self._keys:
            self._keys.pop(request_id, None)
        self._poisonous.pop(request_id, None)
        if self.quarantine:
            self.quarantine.forget_call(request_id)

    def add_instance(self, instance_id: str) -> None:
        self.quarantine.note_restart(instance_id)

    def remove_instance(self, event: InstanceLeft, at: int) -> None:
        instance_id = event.instance_id
        self.circuits.close_circuit(instance_id)
        self._opened_by.pop(instance_id, None)
        self._attribution.forget_instance(instance_id)
        if event.drained:
            self.quarantine.drain_instance(instance_id)
        elif failed := self.quarantine.record_departure(instance_id, at):
            self._decide(instance_id, failed, at)

    def _record_service(self, booking: Booking, instance: Instance, at: int) -> None:
        request = booking.request
        self._trust(instance, at)
        self._attribution.count_served_call(agent_key_of(request))
        if request.id in self._keys:
            self._attribution.clear_suspect(self._keys[request.id])
        self.quarantine.clear_instance(instance.id, booking.at)

    def _trust(self, instance: Instance, at: int) -> None:
        self._attribution.record_service(instance.id, at)
        if self.circuits:
            self.circuits.count_answer(instance.id, at, instance.max_num_seqs)

    def _record_failure(
        self, event: Failed | Bounced, booking: Booking, at: int, *, is_here: bool
    ) -> None:
        request, instance_id = booking.request, booking.instance_id
        about_itself = type(event) is Bounced and event.about_itself
        key = self._key_of(request.id, event.body)
        if is_here:
            self._charge(booking, key, instance_id, at, about_itself=about_itself)
        elif instance_id in self.quarantine.drained:
            return
        elif event.dropped:
            self._attribution.suspect_call(key, agent_key_of(request), instance_id, at, booking.at)
        if not event.dropped:
            self.quarantine.record_answer(request.id, ended=not about_itself)
            return
        odds = self._attribution.odds_of_death(key)
        self.quarantine.hold_call(key, booking, at, ended=type(event) is Failed, odds=odds)
        if not is_here:
            self._decide(instance_id, [key], at)

    def _key_of(self, request_id: str, body: int | None) -> int | str:
        """Return the key under which a call is suspected from now on."""
        key = self._keys[request_id] = request_id if body is None else body
        return key

    def _charge(
        self, booking: Booking, key: int | str, instance_id: str, at: int, *, about_itself: bool
    ) -> None:
        """Charge a failure to the instance and to the call."""
        attribution, circuits = self._attribution, self.circuits
        was_tried = circuits.is_on_trial(instance_id, at)
        share = attribution.record_failure(
            key,
            agent_key_of(booking.request),
            instance_id,
            at,
            began_at=booking.at,
            about_itself=about_itself,
        )
        if attribution.is_poisonous(key, at):
            self._condemn(key, at, killed=False)
        elif share > 0.5 if was_tried else attribution.rate(instance_id, at) > UNTRUSTED:
            circuits.open_circuit(instance_id, at)
            self._opened_by[instance_id] = key

    def _decide(self, instance_id: str, keys: Collection[int | str], at: int) -> None:
        """Decide which of the calls that failed on an instance may have killed it, as it has left.

        `keys` are the calls whose failure is new.
        """
        attribution, quarantine = self._attribution, self.quarantine
        attribution.blame_one(quarantine.weights(instance_id), keys, at)
        held = quarantine.held(instance_id)
        risks = {request_id: attribution.may_kill(key) for request_id, key in held.items()}
        for request_id in sorted(risks, key=risks.__getitem__):
            risk, key = risks[request_id], held[request_id]
            if risk >= POISONOUS and quarantine.was_spared(instance_id):
                self._condemn(key, at, killed=True)
            elif risk >= SUSPECTED:  # otherwise a call like it may have been served since
                self._suspect(request_id, attribution.caller_of(key), risk, at)
        quarantine.free_calls(instance_id)

    def _condemn(self, key: int | str, at: int, *, killed: bool) -> None:
        """Condemn a call as poisonous. `killed`: an instance died of it, so it is refused."""
        attribution = self._attribution
        for each in attribution.condemn_call(key, at, killed=killed):
            self._acquit(each, key, at)
        if not killed:
            return
        caller = attribution.caller_of(key)
        self.quarantine.delay_caller(caller, at + slowed_us(attribution.callers[caller].killers))
        self._poisonous |= {name: None for name, other in self._keys.items() if other == key}

    def _acquit(self, instance_id: str, key: int | str, at: int) -> None:
        """Close the circuit of an instance if only the poisonous call had opened it."""
        is_trusted = self._attribution.rate(instance_id, at) <= UNTRUSTED
        if is_trusted and self._opened_by.get(instance_id) == key:
            self.circuits.close_circuit(instance_id)

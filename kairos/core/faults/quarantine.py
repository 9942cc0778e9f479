"""Which calls wait until it is known what became of their instance, and which run alone; ours.

A call may kill the engine that has it, and then the next one. So a call whose instance took it and
then broke the connection is set aside until the instance is heard of: it is well, and the call
waits for another as any that bounced; or it has left, and the call is a suspect, with the other
one that was in flight there, if there was one. Where more than `FEW` failed at that moment they go
on at once: most of them are not the cause. Only one that is likelier the cause than all others
together, or at which another instance died before, is a suspect even then. All failed by one event,
of which at most one of them is the cause
(`FaultAttribution.one_of`). One that is the cause with a probability of `SUSPECTED` at least runs
alone: on an instance that can be spared, since another serves its model; that is left alone until
nothing runs there, and for as long as the call may still kill it. After `SUSPICION_US` it waits no
longer for that, and goes as any other. So a call that ran with one other at most kills two engines,
and takes no other call with it the second time; one among many kills three.

What an instance answers, whatever it is, and a connection that it refuses, make no call a suspect.

Agents whose calls killed engines of late, and make up much of what they ask, are suspects as they
arrive; and each that kills makes the next wait longer.
"""

from collections.abc import Collection, Mapping

from kairos.core.agent_key import AgentKey
from kairos.core.core_names import SUSPICION_S
from kairos.core.dispatcher.booking import Booking
from kairos.core.faults.attribution import FEW
from kairos.core.model import SECOND

HELD_US = 3 * SECOND // 2  # a call, until its instance is heard of: it is looked at each second
# For which a suspect waits for an instance that can be spared, or that is to come back.
SUSPICION_US = SUSPICION_S * SECOND
SUSPECTED = 0.01  # probability of being the cause from which on a call runs alone
# The probability from which on a new call runs alone, of somebody whose calls may have killed
# engines. How long it waits after the first that is found to have, twice as long after each that
# follows; and at most.
KILLER, SLOWED_US, MOST_SLOWED_US = 0.015, 10 * SECOND, 300 * SECOND
# Most calls that kill an engine do so as it begins with them. So one that ran for longer is less
# likely the cause; so is one that went there when others had failed already.
BEGINS_US, LATE = 2 * SECOND, 0.05
ALONE_US = BEGINS_US  # for which a suspect runs alone, where nothing is heard of it before


class _Unheard:
    """An instance at which calls failed, and which was not heard of since."""

    was_spared: bool = False  # for a call that failed there
    has_left: bool = False

    def __init__(self, since: int) -> None:
        self.since = since
        self.weights: dict[int | str, float] = {}  # by key of the call
        self.held: dict[str, int | str] = {}  # keys, by id of the call
        self.together = 0.0  # the odds of all
        self.likeliest = 0.0, ""  # of all: its odds, and its key


class _Suspect:
    """Runs alone, or as any other from the instant `until` on."""

    def __init__(self, not_before: int, until: int, caller: AgentKey) -> None:
        self.not_before = not_before
        self.until = until
        self.caller = caller


class Quarantine:
    """Of one balancer. It is asked whenever a fact has been taken in, but in most pools, at most
    times, it is empty, and false. Calls are meant by id; by key, as in `FaultAttribution`."""

    def __init__(self, suspicion_us: int = SUSPICION_US) -> None:
        """`suspicion_us`: for which a suspect waits at most."""
        self._held_us, self._alone_us, self._suspicion_us = HELD_US, ALONE_US, suspicion_us
        self._unheard: dict[str, _Unheard] = {}  # by instance id
        self._suspects: dict[str, _Suspect] = {}  # the first runs first
        self._freed: list[str] = []
        self.drained: set[str] = set()
        """Instances that operators took out, by id: nothing is thought of what fails there."""
        self._alone_until = self._mourned_until = 0
        self._mourned: str | None = None  # the instance that left while one ran alone there
        self.room: str | None = None
        """The instance that is left alone for suspects, by id."""
        self.is_empty = False
        """Whether it has been empty since: what runs there now was a suspect."""
        self.alone: str | None = None
        """The suspect that may still kill it."""
        self._trying: _Suspect | None = None  # as it waited

    def __bool__(self) -> bool:
        return bool(self._unheard or self._suspects or self.alone or self._mourned or self._freed)

    def is_aside(self, request_id: str) -> bool:
        """Whether it waits, and not for its turn."""
        if not self._unheard:  # most often
            return request_id in self._suspects
        return request_id in self._suspects or any(
            request_id in each.held for each in self._unheard.values()
        )

    def failed(
        self, key: int | str, booking: Booking, at: int, *, ended: bool, odds: float = 1.0
    ) -> None:
        """Set a call aside: its instance broke the connection, and that may be the call's fault.

        `ended`: it is tried nowhere else; `odds`: that the instance died of it.
        """
        request_id, instance_id = booking.request.id, booking.instance_id
        unheard = self._unheard.get(instance_id)
        if unheard is None:
            unheard = self._unheard[instance_id] = _Unheard(at)
        began = at - BEGINS_US <= booking.at <= unheard.since
        weight = 1.0 if began else LATE
        if key not in unheard.weights:
            unheard.together += odds * weight
            unheard.likeliest = max(unheard.likeliest, (odds * weight, str(key)))
        unheard.weights[key] = weight
        unheard.was_spared |= request_id == self.alone
        self.is_sound(request_id)  # or else it is suspected anew
        if not ended:
            unheard.held[request_id] = key
        if len(unheard.weights) > FEW and unheard.held:
            most, likeliest = unheard.likeliest
            stands_out = 2 * most > unheard.together
            for name, of in list(unheard.held.items()):
                if not stands_out or str(of) != likeliest:
                    del unheard.held[name]
                    self._freed.append(name)

    def answered(self, request_id: str, *, ended: bool) -> None:
        """Note that the instance gave any answer to the call, or did not take it.

        A call that ran alone is free if it has `ended`, and waits as before if not.
        """
        if request_id != self.alone:
            return
        suspect = self._trying
        self.is_sound(request_id)
        if not ended and suspect is not None:
            self._suspects[request_id] = suspect

    def heard_of(self, instance_id: str, since: int) -> None:
        """It was well at that instant: those set aside go as any other."""
        unheard = self._unheard.get(instance_id)
        if unheard is not None and not unheard.has_left and since >= unheard.since:
            self._forget(instance_id)

    def joined(self, instance_id: str) -> None:
        """It has started anew."""
        self.drained.discard(instance_id)
        if instance_id == self._mourned:
            self._mourned = None
        unheard = self._unheard.get(instance_id)
        if unheard is not None and unheard.has_left:
            self._forget(instance_id)

    def left(self, instance_id: str, at: int) -> Collection[int | str]:
        """Keys of the calls that had just failed there: one of these may have killed it."""
        if self.room == instance_id:
            self.leave_alone(None)
        unheard = self._unheard.get(instance_id)
        if unheard is None:
            return ()
        unheard.has_left = True
        if unheard.was_spared:
            self._mourned, self._mourned_until = instance_id, at + self._suspicion_us
        return unheard.weights

    def drains(self, instance_id: str) -> None:
        """An operator takes it out."""
        self.drained.add(instance_id)
        if self.room == instance_id:
            self.leave_alone(None)
        if instance_id in self._unheard:
            self._forget(instance_id)

    def weights(self, instance_id: str) -> Mapping[int | str, float]:
        """How likely each of the calls that failed there is the cause, by how long it had run
        there, by key."""
        return self._unheard[instance_id].weights

    def held(self, instance_id: str) -> Mapping[str, int | str]:
        """Keys of those that are set aside for it."""
        return self._unheard[instance_id].held

    def was_spared(self, instance_id: str) -> bool:
        """Whether nothing but a suspect ran there."""
        return self._unheard[instance_id].was_spared

    def free(self, instance_id: str) -> None:
        """Those that are still set aside for it go as any other."""
        held = self._unheard[instance_id].held
        self._freed += held
        held.clear()

    def suspect(self, request_id: str, caller: AgentKey, at: int) -> None:
        """Let the call run alone from `at` on, also if it was set aside."""
        for each in self._unheard.values():
            each.held.pop(request_id, None)
        self._suspects[request_id] = _Suspect(at, at + self._suspicion_us, caller)

    def has_suspect_of(self, caller: AgentKey) -> bool:
        """One that waits."""
        return any(each.caller == caller for each in self._suspects.values())

    def slow(self, caller: AgentKey, until: int) -> None:
        """None of its suspects runs before: a call of theirs killed an instance."""
        for each in self._suspects.values():
            if each.caller == caller:
                each.not_before = max(each.not_before, until)
                each.until = max(each.until, until + self._suspicion_us)

    def next_to_run(self, at: int) -> list[str]:
        """Suspects that may run now; none, while one does, or the instance where one did is gone
        and not back yet."""
        is_spared = any(each.was_spared for each in self._unheard.values() if not each.has_left)
        if self.alone is not None or self._mourned is not None or is_spared:
            return []
        return [name for name, each in self._suspects.items() if each.not_before <= at]

    def begins(self, request_id: str, instance_id: str, at: int) -> None:
        """It runs alone there."""
        self.room, self.is_empty = instance_id, True
        self._trying = self._suspects.get(request_id)
        self.alone, self._alone_until = request_id, at + self._alone_us

    def leave_alone(self, instance_id: str | None) -> None:
        """Nothing but suspects goes there from now on; None: none is left alone."""
        if instance_id != self.room:
            self.room, self.is_empty = instance_id, False

    def is_sound(self, request_id: str) -> None:
        """It killed nothing where it runs alone, or runs there no more."""
        if request_id == self.alone:
            self.alone = self._trying = None

    def ended(self, request_id: str) -> None:
        """It is here no more."""
        self.is_sound(request_id)
        self.goes(request_id)

    def goes(self, request_id: str) -> None:
        """To an instance: by a log that may be of another's decisions, it waits here no more."""
        self._suspects.pop(request_id, None)
        for each in self._unheard.values():
            each.held.pop(request_id, None)

    def pass_time(self, at: int) -> None:
        """Whose time is up goes as any other."""
        for instance_id, unheard in list(self._unheard.items()):
            if at >= unheard.since + self._held_us:
                self._forget(instance_id)
        for request_id, suspect in list(self._suspects.items()):
            if at >= suspect.until:
                del self._suspects[request_id]
                self._freed.append(request_id)
        if at >= self._mourned_until:
            self._mourned = None
        if self.alone is not None and at >= self._alone_until:
            self.is_sound(self.alone)

    def next_at(self, at: int) -> int | None:
        """When the next time is up."""
        instants = [each.since + self._held_us for each in self._unheard.values()]
        for each in self._suspects.values():
            instants += [each.not_before, each.until]
        if self.alone is not None:
            instants.append(self._alone_until)
        if self._mourned is not None:
            instants.append(self._mourned_until)
        return min((each for each in instants if each > at), default=None)

    def take_freed(self) -> list[str]:
        """Those that go as any other from now on."""
        freed, self._freed = self._freed, []
        return freed

    def _forget(self, instance_id: str) -> None:
        self._freed += self._unheard.pop(instance_id).held


def slowed_us(killers: int) -> int:
    """How long after the latest of so many calls that killed engines the next of their caller
    waits."""
    return min(SLOWED_US << min(killers - 1, 10), MOST_SLOWED_US) if killers else 0

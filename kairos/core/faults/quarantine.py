"""Quarantine of calls that may have killed an engine. Not in the paper.

A call may kill its engine, and then the next one. So a call whose instance accepted it and then
dropped the connection is quarantined until the state of the instance is known. If the instance is
well, the call is queued like any bounced one. If it has left, the call is a suspect, together with
the other call in flight there, if there was one. If more than `FEW` calls failed at that moment,
they are released at once, since most of them are not the cause. Even then a call is a suspect if it
is likelier the cause than all others together, or if another instance died of it before. All failed
by one event, and at most one of them is the cause (`FaultAttribution.blame_one`).

A call that is the cause with a probability of at least `SUSPECTED` runs alone: on an instance that
can be spared, since another serves its model. That instance gets no other calls until it is empty,
and for as long as the call may still kill it. After `SUSPICION_US` the call stops waiting for that
and is queued normally. So a call that ran with at most one other kills two engines, and fails no
other call the second time; a call among many kills three.

Any answer of the instance, and a refused connection, make no call a suspect. Agents whose calls
recently killed engines, and make up much of their requests, are suspects on arrival; each further
kill lengthens the wait of the next.
"""

from collections.abc import Collection, Mapping

from kairos.core.agent_key import AgentKey
from kairos.core.core_names import SUSPICION_S
from kairos.core.dispatcher.booking import Booking
from kairos.core.faults.attribution import FEW
from kairos.core.model import SECOND

# Maximum wait for news of an instance, which is probed each second.
HELD_US = 3 * SECOND // 2
# Maximum wait of a suspect for an instance that can be spared, or that should come back.
SUSPICION_US = SUSPICION_S * SECOND
SUSPECTED = 0.01  # minimum probability of being the cause for which a call runs alone
# Minimum probability for which a new call runs alone if its caller's calls may have killed engines;
# its wait after the first kill, doubled with each further one; and the maximum wait.
KILLER, SLOWED_US, MOST_SLOWED_US = 0.015, 10 * SECOND, 300 * SECOND
# Most calls that kill an engine do so soon after they begin. So a call that ran for longer is less
# likely the cause, by this factor; so is a call dispatched when others had failed already.
BEGINS_US, LATE = 2 * SECOND, 0.05
ALONE_US = BEGINS_US  # time for which a suspect runs alone, unless a token arrives before


class _Unheard:
    """Instance on which calls failed, without news of it since."""

    was_spared: bool = False  # whether a failed call ran alone there
    has_left: bool = False

    def __init__(self, since: int) -> None:
        self.since = since
        self.weights: dict[int | str, float] = {}  # factor on the odds, by key of the call
        self.held: dict[str, int | str] = {}  # keys of quarantined calls, by id
        self.together = 0.0  # sum of the odds of all calls
        self.likeliest = 0.0, ""  # odds and key of the likeliest cause


class _Suspect:
    """Call that runs alone, or normally from the time `until` on."""

    def __init__(self, not_before: int, until: int, caller: AgentKey) -> None:
        self.not_before = not_before
        self.until = until
        self.caller = caller


class Quarantine:
    """Quarantine of one balancer.

    It is used after each fact, but mostly empty, and then false. Calls are identified by id, or,
    under the name `key`, as in `FaultAttribution`.
    """

    def __init__(self, suspicion_us: int = SUSPICION_US) -> None:
        """Create an empty quarantine. `suspicion_us`: maximum wait of a suspect to run alone."""
        self._held_us, self._alone_us, self._suspicion_us = HELD_US, ALONE_US, suspicion_us
        self._unheard: dict[str, _Unheard] = {}  # by instance id
        self._suspects: dict[str, _Suspect] = {}  # in the order in which they run
        self._freed: list[str] = []
        self.drained: set[str] = set()
        """Ids of instances that operators drained: failures there make no call a suspect."""
        self._alone_until = self._mourned_until = 0
        self._mourned: str | None = None  # the instance that left while a suspect ran there
        self.room: str | None = None
        """Id of the instance reserved for suspects."""
        self.is_empty = False
        """Whether it has been empty since its reservation, so that only suspects run there."""
        self.alone: str | None = None
        """Id of the suspect that may still kill it."""
        self._trying: _Suspect | None = None  # the state of that suspect while it waited

    def __bool__(self) -> bool:
        return bool(self._unheard or self._suspects or self.alone or self._mourned or self._freed)

    def is_aside(self, request_id: str) -> bool:
        """Return whether the call is in quarantine, so that it is not dispatched in turn."""
        if not self._unheard:  # the common case
            return request_id in self._suspects
        return request_id in self._suspects or any(
            request_id in each.held for each in self._unheard.values()
        )

    def hold_call(
        self, key: int | str, booking: Booking, at: int, *, ended: bool, odds: float = 1.0
    ) -> None:
        """Quarantine a call whose instance dropped the connection, possibly by the call's fault.

        `ended`: the call is not tried elsewhere. `odds`: of the instance having died of it.
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
        self.end_trial(request_id)  # it no longer runs alone; it may become a suspect again
        if not ended:
            unheard.held[request_id] = key
        if len(unheard.weights) > FEW and unheard.held:
            most, likeliest = unheard.likeliest
            stands_out = 2 * most > unheard.together
            for name, of in list(unheard.held.items()):
                if not stands_out or str(of) != likeliest:
                    del unheard.held[name]
                    self._freed.append(name)

    def record_answer(self, request_id: str, *, ended: bool) -> None:
        """Record that the instance gave any answer to the call, or did not accept it.

        A call that ran alone is free if it has `ended`; otherwise it waits as before.
        """
        if request_id != self.alone:
            return
        suspect = self._trying
        self.end_trial(request_id)
        if not ended and suspect is not None:
            self._suspects[request_id] = suspect

    def clear_instance(self, instance_id: str, since: int) -> None:
        """Release the calls quarantined for an instance that was well at `since`."""
        unheard = self._unheard.get(instance_id)
        if unheard is not None and not unheard.has_left and since >= unheard.since:
            self._forget(instance_id)

    def note_restart(self, instance_id: str) -> None:
        """Record that an instance has started again, and release the calls quarantined for it."""
        self.drained.discard(instance_id)
        if instance_id == self._mourned:
            self._mourned = None
        unheard = self._unheard.get(instance_id)
        if unheard is not None and unheard.has_left:
            self._forget(instance_id)

    def record_departure(self, instance_id: str, at: int) -> Collection[int | str]:
        """Record that an instance left, and return the keys of calls that had just failed there.

        Any of them may have killed it.
        """
        if self.room == instance_id:
            self.reserve_instance(None)
        unheard = self._unheard.get(instance_id)
        if unheard is None:
            return ()
        unheard.has_left = True
        if unheard.was_spared:
            self._mourned, self._mourned_until = instance_id, at + self._suspicion_us
        return unheard.weights

    def drain_instance(self, instance_id: str) -> None:
        """Record that an operator drains the instance, and release the calls quarantined for it."""
        self.drained.add(instance_id)
        if self.room == instance_id:
            self.reserve_instance(None)
        if instance_id in self._unheard:
            self._forget(instance_id)

    def weights(self, instance_id: str) -> Mapping[int | str, float]:
        """Return the factors on the odds of the calls that failed there, by key.

        They depend on how long each call had run.
        """
        return self._unheard[instance_id].weights

    def held(self, instance_id: str) -> Mapping[str, int | str]:
        """Return the keys of the calls quarantined for the instance, by id."""
        return self._unheard[instance_id].held

    def was_spared(self, instance_id: str) -> bool:
        """Return whether only suspects ran on the instance."""
        return self._unheard[instance_id].was_spared

    def free_calls(self, instance_id: str) -> None:
        """Release the calls that are still quarantined for the instance."""
        held = self._unheard[instance_id].held
        self._freed += held
        held.clear()

    def suspect(self, request_id: str, caller: AgentKey, at: int) -> None:
        """Let the call run alone from `at` on; also if it was quarantined before."""
        for each in self._unheard.values():
            each.held.pop(request_id, None)
        self._suspects[request_id] = _Suspect(at, at + self._suspicion_us, caller)

    def has_suspect_of(self, caller: AgentKey) -> bool:
        """Return whether a suspect of the caller waits."""
        return any(each.caller == caller for each in self._suspects.values())

    def delay_caller(self, caller: AgentKey, until: int) -> None:
        """Delay the caller's suspects until `until`, since one of its calls killed an instance."""
        for each in self._suspects.values():
            if each.caller == caller:
                each.not_before = max(each.not_before, until)
                each.until = max(each.until, until + self._suspicion_us)

    def next_to_run(self, at: int) -> list[str]:
        """Return the suspects that may run now.

        Empty while a suspect runs, or while the instance on which one ran is gone.
        """
        is_spared = any(each.was_spared for each in self._unheard.values() if not each.has_left)
        if self.alone is not None or self._mourned is not None or is_spared:
            return []
        return [name for name, each in self._suspects.items() if each.not_before <= at]

    def start_trial(self, request_id: str, instance_id: str, at: int) -> None:
        """Record that a suspect begins to run alone."""
        self.room, self.is_empty = instance_id, True
        self._trying = self._suspects.get(request_id)
        self.alone, self._alone_until = request_id, at + self._alone_us

    def reserve_instance(self, instance_id: str | None) -> None:
        """Reserve an instance for suspects; None: reserve no instance."""
        if instance_id != self.room:
            self.room, self.is_empty = instance_id, False

    def end_trial(self, request_id: str) -> None:
        """Record that a call killed nothing while it ran alone, or no longer runs."""
        if request_id == self.alone:
            self.alone = self._trying = None

    def forget_call(self, request_id: str) -> None:
        """Forget a call that has ended."""
        self.end_trial(request_id)
        self.remove_dispatched(request_id)

    def remove_dispatched(self, request_id: str) -> None:
        """Remove a dispatched call; in a replay another balancer may have dispatched it."""
        self._suspects.pop(request_id, None)
        for each in self._unheard.values():
            each.held.pop(request_id, None)

    def pass_time(self, at: int) -> None:
        """Release the calls whose waiting time has passed."""
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
            self.end_trial(self.alone)

    def next_at(self, at: int) -> int | None:
        """Return the next time at which `pass_time` has an effect, if any."""
        instants = [each.since + self._held_us for each in self._unheard.values()]
        for each in self._suspects.values():
            instants += [each.not_before, each.until]
        if self.alone is not None:
            instants.append(self._alone_until)
        if self._mourned is not None:
            instants.append(self._mourned_until)
        return min((each for each in instants if each > at), default=None)

    def take_freed(self) -> list[str]:
        """Return and clear the ids of released calls."""
        freed, self._freed = self._freed, []
        return freed

    def _forget(self, instance_id: str) -> None:
        self._freed += self._unheard.pop(instance_id).held


def slowed_us(killers: int) -> int:
    """Return how long a caller's next call waits after its latest of `killers` killing calls."""
    return min(SLOWED_US << min(killers - 1, 10), MOST_SLOWED_US) if killers else 0

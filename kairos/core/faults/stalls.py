"""Which calls were forgotten by their instances, told from who makes progress and who does not.
Ours.

Somebody looks at all calls in flight, again and again, and says of each how long nothing has come
of it. That alone says little. A prompt of 8,000 tokens keeps all streams of an instance silent for
seconds; a call whose memory the engine took away is silent until there is memory again, while all
others go on. So a silence counts only as far as nothing excuses it (`owed_us`), it is measured by
the prompts that the instance has to compute first, and it is compared with those of the instance's
other calls (`suspicion.py`). There are three cases:

- A stream has not begun: only the time counts for which the engine says that nothing waits inside
  it, and that it preempted nothing. Engines that do not say are judged by the time alone.
- The engine says all the time that it has fewer calls than it was sent: then as many as it lacks,
  of those that have waited for longer than nearly all before. Of an answer that comes whole,
  nothing else is seen before its end.
- Nothing comes of an instance, though streams have begun there, and what it says of itself does not
  change either: then all calls there that have not begun are suspected, whatever is said to wait.

A call is suspected only where another instance could take it. A stream that has begun can only be
broken off, and its silence may well be the engine's way: some hold tokens back until a tool call is
whole. So it is suspected only where the engine says for `BROKEN_US` that it lacks as many calls as
are silent there. While nobody looked (the process was stopped, or busy) no silence counts; nor does
one while the client is slow.
"""

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from kairos.core.events import InstanceStatus
from kairos.core.faults.suspicion import Silences
from kairos.core.model import SECOND, Instance

SUSPECTED = 5.0  # level; that is one silence in 100,000
LOST = 3.0  # where the engine says, too, that it has fewer calls than it was sent
SHORTEST_US = 2 * SECOND  # silences below that are never suspected
BROKEN_US = 5 * SECOND  # nor those of streams that have begun below that
BLIND_US = 2 * SECOND  # between two looks: nobody looked
SEEN_US = SECOND // 2  # a shorter silence is not told from none
# What may always be silent for `SEEN_US`, in prompt tokens: so many a slow engine computes in that
# time. An engine that is slower yet shows it.
STEP_TOKENS = 2500
GAP_TOKENS = 8192  # of the prompts under way, that an engine computes before its streams go on


class SeenCall(NamedTuple):
    """A call at an instance, as it is seen now."""

    key: int  # of this call at this instance
    instance_id: str
    model: str | None
    prompt_tokens: int
    since: int  # that nothing has come of it: it was sent then, or its last event came
    streams: bool
    has_begun: bool  # its client has something of the answer
    is_paused: bool  # it is its client that does not keep up


class _Watch(msgspec.Struct, eq=False):
    """A call that has not begun."""

    call: SeenCall
    place: "_Place"
    tokens: int = 0  # the most that were to be computed before it begins
    silence: float = 0.0  # owed, in the unit in which it is compared
    owed_us: int = 0


class _Pace(msgspec.Struct):
    """How long calls took before anything came of them: at one instance, or at all."""

    begins: Silences = msgspec.field(default_factory=Silences)  # owed, in a unit of prompt tokens
    waits: Silences = msgspec.field(default_factory=Silences)  # of the same streams, µs
    wholes: Silences = msgspec.field(default_factory=Silences)  # µs

    def part(self) -> "_Pace":
        """That of one, of all."""
        return _Pace(Silences(self.begins), Silences(self.waits), Silences(self.wholes))

    def waited(self, call: SeenCall) -> Silences:
        """Of calls such as this."""
        return self.waits if call.streams else self.wholes


class _Place(msgspec.Struct, eq=False):
    """An instance."""

    pace: _Pace
    models: tuple[str, ...] = ()
    has_joined: bool = False
    status: InstanceStatus | None = None  # the last
    told_at: int = 0  # the last status
    changed_at: int = 0  # a status differed from the one before: the engine made steps
    excused_at: int = 0  # something waited inside the engine, or was preempted
    complete_at: int = 0  # the engine had all calls that it was sent, or did not say
    missing: int = 0  # calls that it did not have, by its last status
    progressed_at: int = 0  # an event of a stream came
    gaps: Silences = msgspec.field(default_factory=Silences)
    gap: float = 0.0  # that goes on
    is_silent: bool = False  # beyond suspicion
    # As it is looked at:
    tokens: int = 0  # of prompts under way
    streams: int = 0  # that have begun, and are read
    paused: int = 0  # that have begun, and are not: the engine may have ended them
    latest: int = 0  # the last event of any of them
    unbegun: list[_Watch] = msgspec.field(default_factory=list)
    begun: list[SeenCall] = msgspec.field(default_factory=list)  # the same streams


class Stalls:
    """Of the calls that one process performs. Instants are in µs, and never go back."""

    def __init__(self) -> None:
        self._pace = _Pace()  # of all instances
        self._places: dict[str, _Place] = {}
        self._watches: dict[int, _Watch] = {}
        self._begun = set[int]()  # streams, at the last look
        self._looked_at = self._seeing_since = 0

    def joined(self, instance: Instance) -> None:
        """It takes calls; said again, its models are replaced. One that comes back is another."""
        place = self._place(instance.id)
        if not place.has_joined:
            place = self._places[instance.id] = _Place(self._pace.part())
        place.models, place.has_joined = instance.models, True

    def left(self, instance_id: str) -> None:
        """It takes no more calls, and says nothing more."""
        self._place(instance_id).has_joined = False

    def told(self, status: InstanceStatus, sent: int, at: int) -> None:
        """What an instance says of itself. `sent`: as many calls of this process are there."""
        place = self._place(status.instance_id)
        last, place.status, place.told_at = place.status, status, at
        if last is None or status != last:
            place.changed_at = at
        preempted = last is None or status.preemptions != last.preemptions
        if status.waiting or preempted:
            place.excused_at = at
        has = None if status.running is None else status.running + (status.waiting or 0)
        place.missing = 0 if has is None else sent - has
        if place.missing <= 0:
            place.complete_at = at

    def answered(self, key: int, at: int) -> None:
        """A call has its whole answer."""
        watch = self._watches.pop(key, None)
        if watch is None:
            return
        if watch.call.streams:
            _begun(watch.place, watch, at)
        else:
            watch.place.pace.wholes.add(max(SEEN_US, at - watch.call.since))

    def look(self, calls: Iterable[SeenCall], at: int) -> list[int]:
        """At all calls that are in flight. Returns the keys of those that should go elsewhere, or,
        where they have begun, end."""
        if at - self._looked_at > BLIND_US:
            self._seeing_since = at
        self._looked_at = at
        self._see(calls)
        for place in self._places.values():
            self._look_at(place, at)
        suspects = [each for place in self._places.values() for each in self._suspects(place, at)]
        found = [each.call.key for each in suspects if self._has_elsewhere(each.call)]
        return found + [key for place in self._places.values() for key in self._broken(place, at)]

    def _see(self, calls: Iterable[SeenCall]) -> None:
        watches: dict[int, _Watch] = {}
        begun = set[int]()
        for instance_id, place in list(self._places.items()):
            if not (place.has_joined or place.unbegun or place.streams):
                del self._places[instance_id]
            place.tokens = place.streams = place.paused = place.latest = 0
            place.unbegun.clear()
            place.begun.clear()
        for call in calls:
            place = self._place(call.instance_id)
            if call.has_begun:
                if call.streams:
                    begun.add(call.key)
                    self._see_stream(place, call)
                continue
            watches[call.key] = watch = self._watches.get(call.key) or _Watch(call, place)
            place.tokens += call.prompt_tokens
            place.unbegun.append(watch)
        self._watches, self._begun = watches, begun

    def _see_stream(self, place: _Place, call: SeenCall) -> None:
        """One that has begun."""
        if call.key not in self._begun:
            _begun(place, self._watches.get(call.key), call.since)
        if call.is_paused:
            place.paused += 1
        else:
            place.streams += 1
            place.begun.append(call)
            place.latest = max(place.latest, call.since)

    def _look_at(self, place: _Place, at: int) -> None:
        """The silence of its streams, and that of each call that has not begun."""
        work, step = STEP_TOKENS + place.tokens, STEP_TOKENS + min(place.tokens, GAP_TOKENS)
        if place.latest > place.progressed_at:
            place.progressed_at = place.latest
            place.gaps.add(max(place.gap, SEEN_US / STEP_TOKENS))
        place.gap, place.is_silent = 0.0, False
        if place.streams:
            since = max(place.progressed_at, place.changed_at, self._seeing_since)
            place.gap = (at - since) / step
            is_long = at - since >= SHORTEST_US
            place.is_silent = is_long and place.gaps.level(place.gap) >= SUSPECTED
        status = place.status
        is_told = place.has_joined and status is not None and status.waiting is not None
        until = place.told_at if is_told else at
        excused_at = max(place.excused_at, self._seeing_since)
        for watch in place.unbegun:
            if watch.call.streams:
                watch.tokens = max(watch.tokens, work)
                watch.owed_us = max(0, until - max(watch.call.since, excused_at))
                watch.silence = max(watch.silence, watch.owed_us / watch.tokens)

    def _suspects(self, place: _Place, at: int) -> list[_Watch]:
        silent = [each for each in place.unbegun if at - each.call.since >= SHORTEST_US]
        if place.is_silent:
            return silent
        late = [each for each in silent if _is_late(each)]
        return late + self._lost(place, [each for each in silent if each not in late], at)

    def _lost(self, place: _Place, silent: list[_Watch], at: int) -> list[_Watch]:
        """No more than the engine lacks, those first that take longest."""
        if place.missing <= 0:
            return []
        complete_at = max(place.complete_at, self._seeing_since)
        missed = [
            each
            for each in silent
            if place.told_at - max(each.call.since, complete_at) >= SHORTEST_US
            and place.pace.waited(each.call).level(at - each.call.since) >= LOST
        ]
        missed.sort(key=lambda each: each.call.since)
        return missed[: place.missing]

    def _broken(self, place: _Place, at: int) -> list[int]:
        """Streams that had begun and that the engine does not have any more: it lacks as many calls
        as are silent, so there is no other that it could mean."""
        if place.missing <= 0:
            return []
        complete_at = max(place.complete_at, self._seeing_since)
        is_long = [
            each.key
            for each in place.begun
            if place.told_at - max(each.since, complete_at) >= BROKEN_US
        ]
        silent = place.paused + sum(at - each.since >= SHORTEST_US for each in place.begun)
        silent += sum(at - each.call.since >= SHORTEST_US for each in place.unbegun)
        return is_long if silent <= place.missing else []

    def _has_elsewhere(self, call: SeenCall) -> bool:
        return any(
            place.has_joined
            and not place.is_silent
            and instance_id != call.instance_id
            and (call.model is None or call.model in place.models)
            for instance_id, place in self._places.items()
        )

    def _place(self, instance_id: str) -> _Place:
        place = self._places.get(instance_id)
        if place is None:
            place = self._places[instance_id] = _Place(self._pace.part())
        return place


def _is_late(watch: _Watch) -> bool:
    """A stream that has not begun, for all that is known of those that have."""
    if not watch.call.streams or watch.owed_us < SHORTEST_US:
        return False
    return watch.place.pace.begins.level(watch.owed_us / watch.tokens) >= SUSPECTED


def _begun(place: _Place, watch: _Watch | None, at: int) -> None:
    """A stream; None: nobody looked before it had begun."""
    shortest = SEEN_US / STEP_TOKENS
    place.pace.begins.add(shortest if watch is None else max(shortest, watch.silence))
    place.pace.waits.add(SEEN_US if watch is None else max(SEEN_US, at - watch.call.since))

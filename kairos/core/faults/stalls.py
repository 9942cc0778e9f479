"""Detection of calls that their instance has lost, from silences. Not in the paper.

All calls in flight are probed repeatedly, each with the time since anything arrived for it. That
alone says little. A prompt of 8,000 tokens silences all streams of an instance for seconds; a
preempted call is silent until memory is free, while all others go on. So only unexcused silence
counts (`owed_us`), it is measured relative to the prompts that the instance has to compute first,
and compared with the silences of the instance's other calls (`suspicion.py`). There are three
cases:

- A stream has not begun: only the time counts in which the engine reports that nothing waits inside
  it and that it preempted nothing. Engines that do not report this are judged by time alone.
- The engine keeps reporting fewer calls than were sent to it: then as many calls are suspected as
  it lacks, among the calls that have waited longer than nearly all before. For answers that are not
  streamed, this is the only evidence before their end.
- Nothing arrives from an instance although streams have begun there, and its status does not change
  either: then all calls there that have not begun are suspected, whether or not calls are reported
  to wait.

A call is suspected only if another instance could take it. A stream that has begun can only be
aborted, and its silence may be normal: some engines withhold tokens until a tool call is complete.
So it is suspected only if the engine reports for `BROKEN_US` that it lacks as many calls as are
silent there. No silence counts while nothing was probed (the process was stopped or busy), or while
the client is slow.
"""

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from kairos.core.events import InstanceStatus
from kairos.core.faults.suspicion import Silences
from kairos.core.model import SECOND, Instance

SUSPECTED = 5.0  # level of suspicion: one silence in 100,000
LOST = 3.0  # level, if the engine also reports fewer calls than were sent to it
SHORTEST_US = 2 * SECOND  # shorter silences are never suspected
BROKEN_US = 5 * SECOND  # the same for streams that have begun
BLIND_US = 2 * SECOND  # a longer time between two probes does not count as silence
SEEN_US = SECOND // 2  # shorter silences are not distinguished
# Prompt tokens that a slow engine computes in `SEEN_US`, a silence that is always allowed. A still
# slower engine shows in its own silences.
STEP_TOKENS = 2500
GAP_TOKENS = 8192  # maximum prompt tokens that an engine computes before its streams go on


class SeenCall(NamedTuple):
    """State of a call on an instance at a probe."""

    key: int  # identifies this call on this instance
    instance_id: str
    model: str | None
    prompt_tokens: int
    since: int  # start of its silence: when it was sent, or its last event arrived
    streams: bool
    has_begun: bool  # its client has received part of the answer
    is_paused: bool  # its client does not keep up


class _Watch(msgspec.Struct, eq=False):
    """Watch on a call that has not begun."""

    call: SeenCall
    place: "_Place"
    tokens: int = 0  # maximum of tokens to compute before it begins
    silence: float = 0.0  # unexcused silence, per token to compute
    owed_us: int = 0  # unexcused silence


class _Pace(msgspec.Struct):
    """Durations until anything arrived for a call: on one instance, or on all."""

    begins: Silences = msgspec.field(default_factory=Silences)  # unexcused, per prompt token
    waits: Silences = msgspec.field(default_factory=Silences)  # total, of the same streams, µs
    wholes: Silences = msgspec.field(default_factory=Silences)  # of unstreamed answers, µs

    def part(self) -> "_Pace":
        """Return a new pace of one instance, as a part of this one."""
        return _Pace(Silences(self.begins), Silences(self.waits), Silences(self.wholes))

    def waited(self, call: SeenCall) -> Silences:
        """Return the durations of calls of the same kind (streamed or not)."""
        return self.waits if call.streams else self.wholes


class _Place(msgspec.Struct, eq=False):
    """State of an instance."""

    pace: _Pace
    models: tuple[str, ...] = ()
    has_joined: bool = False
    status: InstanceStatus | None = None  # the last one
    told_at: int = 0  # time of the last status
    changed_at: int = 0  # last time the status changed, so the engine made steps
    excused_at: int = 0  # last time a call waited inside the engine, or was preempted
    complete_at: int = 0  # last time the engine had all calls sent to it, or did not report it
    missing: int = 0  # calls missing in its last status
    progressed_at: int = 0  # time of the last event of a stream
    gaps: Silences = msgspec.field(default_factory=Silences)
    gap: float = 0.0  # current silence of all streams
    is_silent: bool = False  # whether that is suspicious
    # Recomputed at each probe:
    tokens: int = 0  # tokens of prompts under way
    streams: int = 0  # streams that have begun and are read
    paused: int = 0  # streams that have begun and are not read: the engine may have ended them
    latest: int = 0  # time of the last event of any of the read ones
    unbegun: list[_Watch] = msgspec.field(default_factory=list)
    begun: list[SeenCall] = msgspec.field(default_factory=list)  # the read streams


class Stalls:
    """Stall detector for the calls of one process. Times are in µs and never decrease."""

    def __init__(self) -> None:
        self._pace = _Pace()  # over all instances
        self._places: dict[str, _Place] = {}
        self._watches: dict[int, _Watch] = {}
        self._begun = set[int]()  # streams that had begun at the last probe
        self._looked_at = self._seeing_since = 0

    def add_instance(self, instance: Instance) -> None:
        """Add an instance, or replace its models. An instance that comes back starts from zero."""
        place = self._place(instance.id)
        if not place.has_joined:
            place = self._places[instance.id] = _Place(self._pace.part())
        place.models, place.has_joined = instance.models, True

    def remove_instance(self, instance_id: str) -> None:
        """Record that an instance has left: it takes no calls and reports no status."""
        self._place(instance_id).has_joined = False

    def record_status(self, status: InstanceStatus, sent: int, at: int) -> None:
        """Record a status report. `sent`: number of this process's calls on the instance."""
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

    def end_watch(self, key: int, at: int) -> None:
        """Record that a call has its whole answer."""
        watch = self._watches.pop(key, None)
        if watch is None:
            return
        if watch.call.streams:
            _begun(watch.place, watch, at)
        else:
            watch.place.pace.wholes.add(max(SEEN_US, at - watch.call.since))

    def probe_calls(self, calls: Iterable[SeenCall], at: int) -> list[int]:
        """Probe all calls in flight.

        Returns:
            Keys of the calls to move to another instance, or, if they have begun, to end.
        """
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
        """Record the state of a stream that has begun."""
        if call.key not in self._begun:
            _begun(place, self._watches.get(call.key), call.since)
        if call.is_paused:
            place.paused += 1
        else:
            place.streams += 1
            place.begun.append(call)
            place.latest = max(place.latest, call.since)

    def _look_at(self, place: _Place, at: int) -> None:
        """Update the silence of the instance's streams, and of each call that has not begun."""
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
        """Return the longest waiting suspicious calls, at most as many as the engine lacks."""
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
        """Return the begun streams that the engine no longer has.

        It lacks at least as many calls as are silent, so these must be the missing ones.
        """
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
    """Return whether a stream that has not begun is suspiciously late."""
    if not watch.call.streams or watch.owed_us < SHORTEST_US:
        return False
    return watch.place.pace.begins.level(watch.owed_us / watch.tokens) >= SUSPECTED


def _begun(place: _Place, watch: _Watch | None, at: int) -> None:
    """Record that a stream has begun. Without a `watch`, it began before it was ever probed."""
    shortest = SEEN_US / STEP_TOKENS
    place.pace.begins.add(shortest if watch is None else max(shortest, watch.silence))
    place.pace.waits.add(SEEN_US if watch is None else max(SEEN_US, at - watch.call.since))

"""What instances say of themselves, and what follows for those that want to send them more.

Several signals, since each can mislead: counts of preemptions lag, and an engine that is paused
says that nothing waits.
"""

import math

from kairos.core.events import InstanceStatus
from kairos.core.model import SECOND, Instance

STALE_US = 3 * SECOND
PRESSED, EASED = 0.97, 0.95  # shares of the KV memory in use
_STALE_MARGIN = 0.05  # of the memory, kept free while nothing is known of the instance
_WEIGHT = 0.5  # of the newest difference


class _Told:
    suspended: bool = False
    unseen_tokens: float = 0.0  # in use there beyond what is booked; negative: fewer

    def __init__(self, status: InstanceStatus, at: int) -> None:
        self.status = status
        self.at = at


class InstanceHealth:
    """The last status of each instance."""

    def __init__(self) -> None:
        self._told: dict[str, _Told] = {}
        self.changes = 0

    def told(
        self,
        status: InstanceStatus,
        instance: Instance,
        held: tuple[float, float],
        ours: int,
        at: int,
    ) -> None:
        """`held`: tokens that our bookings there, `ours` of them, come to at this instant, without
        and with those of which nothing was heard yet: their prompts may still wait for a step, and
        will have memory then."""
        before = self._told.get(instance.id)
        told = _Told(status, at)
        if before is not None:
            told.suspended, told.unseen_tokens = before.suspended, before.unseen_tokens
        if status.kv_used is not None and instance.kv_tokens is not None:
            heard, booked = held
            used = status.kv_used * instance.kv_tokens
            unseen = max(0.0, used - booked) + max(min(0.0, used - heard), -heard / 2)
            told.unseen_tokens += _WEIGHT * (unseen - told.unseen_tokens)
        preempted = before is not None and _more(before.status.preemptions, status.preemptions)
        told.suspended = _is_suspended(told, instance, preempted=preempted) and ours > 0
        self._told[instance.id] = told
        self.changes += 1

    def nothing_runs(self, instance_id: str) -> None:
        """Nothing of ours, so nothing of ours is too much."""
        told = self._told.get(instance_id)
        if told is not None and told.suspended:
            told.suspended = False
            self.changes += 1

    def forget(self, instance_id: str) -> None:
        self._told.pop(instance_id, None)
        self.changes += 1

    def stays_until(self, at: int) -> float:
        """Until when all is as it is now, if nothing more is told."""
        ends = [each.at + STALE_US for each in self._told.values() if not _is_stale(each, at)]
        return min(ends, default=math.inf)

    def is_suspended(self, instance_id: str, at: int) -> bool:
        """It has more than it can hold: nothing new goes there until that has eased, or is not
        known any more."""
        told = self._told.get(instance_id)
        return told is not None and told.suspended and not _is_stale(told, at)

    def unseen_tokens(self, instance: Instance, at: int) -> float:
        """KV memory in use there beside what is booked, and, where its status is stale, a margin
        for what is not known. In tokens; may be negative."""
        told = self._told.get(instance.id)
        if told is None:
            return 0.0
        margin = _STALE_MARGIN * (instance.kv_tokens or 0) if _is_stale(told, at) else 0.0
        return told.unseen_tokens + margin


def _is_stale(told: _Told, at: int) -> bool:
    return at - told.at > STALE_US


def _is_suspended(told: _Told, instance: Instance, *, preempted: bool) -> bool:
    """With hysteresis: it takes more to be suspended than to stay so.

    What waits where a sequence is free and almost all memory is in use, waits for memory; where
    less is, it may just have come, and wait for the step to end. Each preemption frees much, so the
    share in use alone says little at a given moment; but while nobody waits, who was preempted is
    back already.
    """
    status = told.status
    used = status.kv_used if status.kv_used is not None else 0.0
    counts = [n for n in (status.waiting_for_room, status.waiting) if n is not None]
    waits = max(counts, default=0) > 0
    has_sequence = status.running is None or status.running < instance.max_num_seqs
    pressed = waits and has_sequence and used >= PRESSED
    squeezed = preempted and (waits or not counts)
    return squeezed or pressed or (told.suspended and used > EASED)


def _more(before: int | None, now: int | None) -> bool:
    return before is not None and now is not None and now > before

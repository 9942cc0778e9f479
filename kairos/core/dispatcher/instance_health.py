"""Health of instances, from the status they report, and its consequences for dispatching.

Several signals are combined, since each can mislead: preemption counts lag, and a paused engine
reports that nothing waits.
"""

import math

from kairos.core.events import InstanceStatus
from kairos.core.model import SECOND, Instance

STALE_US = 3 * SECOND
PRESSED, EASED = 0.97, 0.95  # shares of the KV memory in use
_STALE_MARGIN = 0.05  # share of the memory left free while the status is stale
_WEIGHT = 0.5  # weight of the newest difference


class _Told:
    suspended: bool = False
    unseen_tokens: float = 0.0  # tokens in use beyond the booked ones; negative: fewer

    def __init__(self, status: InstanceStatus, at: int) -> None:
        self.status = status
        self.at = at


class InstanceHealth:
    """Latest status of each instance."""

    def __init__(self) -> None:
        self._told: dict[str, _Told] = {}
        self.changes = 0

    def record_report(
        self,
        status: InstanceStatus,
        instance: Instance,
        held: tuple[float, float],
        ours: int,
        at: int,
    ) -> None:
        """Record a status report.

        `held` are the tokens used by our bookings there at this instant: without and with the calls
        that no token was reported of yet. Prompts of these may still wait for a step, and use
        memory after it. `ours`: number of our bookings there.
        """
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

    def end_suspension(self, instance_id: str) -> None:
        """End the suspension of an instance on which no call of ours runs."""
        told = self._told.get(instance_id)
        if told is not None and told.suspended:
            told.suspended = False
            self.changes += 1

    def forget_instance(self, instance_id: str) -> None:
        self._told.pop(instance_id, None)
        self.changes += 1

    def stays_until(self, at: int) -> float:
        """Return until when the health stays as it is without further reports."""
        ends = [each.at + STALE_US for each in self._told.values() if not _is_stale(each, at)]
        return min(ends, default=math.inf)

    def is_suspended(self, instance_id: str, at: int) -> bool:
        """Return whether the instance is overloaded, so that nothing new is dispatched to it.

        A suspension ends when the load has eased or the status is stale.
        """
        told = self._told.get(instance_id)
        return told is not None and told.suspended and not _is_stale(told, at)

    def unseen_tokens(self, instance: Instance, at: int) -> float:
        """Return the tokens of KV memory in use beyond the booked ones; may be negative.

        If the status is stale, a safety margin is added.
        """
        told = self._told.get(instance.id)
        if told is None:
            return 0.0
        margin = _STALE_MARGIN * (instance.kv_tokens or 0) if _is_stale(told, at) else 0.0
        return told.unseen_tokens + margin


def _is_stale(told: _Told, at: int) -> bool:
    return at - told.at > STALE_US


def _is_suspended(told: _Told, instance: Instance, *, preempted: bool) -> bool:
    """Return whether to suspend the instance, with hysteresis.

    A call that waits although a sequence is free and almost all memory is in use, waits for memory;
    with less memory in use, it may just have arrived and wait for the next step. Each preemption
    frees much memory, so the share in use alone says little at a given moment; but if nothing
    waits, the preempted call is back already.
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

"""Limits for best-effort calls, so that other calls hardly notice them. Not in the paper.

In continuous batching every call that joins lengthens each step for all running calls, and its
prompt delays all of them. So free memory and sequences say little about how much a best-effort call
may use. There are two rules:

- *Next to other calls*, best-effort calls get a share of the instance's time, 5 % (the first
  constant below). The cost of a call in µs of the whole instance is known (`booking.py`). A
  best-effort call dispatched next to others is paid for by that share of the passing time; until it
  is paid, no other one is dispatched there. So the others are slowed down by about this share,
  regardless of lengths and free capacity.
- *Alone*, they may fill the instance gradually: at first a part of it (`AT_ONCE`), and all of it
  once no other call has been there for `ALONE_US`; but beyond that first part, only the share of
  the pool's instances that have no other calls. If another call comes, the best-effort ones run to
  their end and slow it down. How soon that happens is estimated from how long none has come, and
  how many calls are elsewhere: by day other calls find instances with little in their way, and at
  night best-effort calls fill all.
"""

from collections.abc import Callable, Sequence

from kairos.core.model import SECOND, Instance, Request

BESIDE = 0.05  # share of an instance's time for best-effort calls next to others
AT_ONCE = 0.1  # share of its memory and sequences for best-effort calls at once
ALONE_US = 30 * SECOND
# Number of classes whose latest end of a call is stored. It exceeds the number of best-effort
# classes, so that the latest end of another class is among them. Over Kafka calls may name any.
_CLASSES = 64

IsSpare = Callable[[str], bool]  # whether a class of service is best-effort


class _There(dict[str, int]):
    """Calls in flight on an instance, by class of service."""

    __slots__ = ("ended_at", "paid_at")

    def __init__(self) -> None:
        self.ended_at: dict[str, int] = {}  # latest end by class, in order of time
        self.paid_at = 0.0  # when the best-effort calls will be paid for


class SpareCalls:
    """Calls in flight by instance and class of service, and the time owed for best-effort calls."""

    def __init__(self) -> None:
        self._there: dict[str, _There] = {}  # by instance

    def count_call(self, request: Request, instance_id: str) -> None:
        there = self._there.get(instance_id)
        if there is None:
            there = self._there[instance_id] = _There()
        name = request.service_class
        there[name] = there.get(name, 0) + 1

    def uncount_call(self, request: Request, instance_id: str, at: int) -> None:
        there, name = self._there[instance_id], request.service_class
        if left := there[name] - 1:
            there[name] = left
        else:
            del there[name]
        ended_at = there.ended_at
        ended_at.pop(name, None)
        ended_at[name] = at
        if len(ended_at) > _CLASSES:
            del ended_at[next(iter(ended_at))]

    def forget_instance(self, instance_id: str) -> None:
        """Forget an instance that has left and has no calls in flight."""
        self._there.pop(instance_id, None)

    def free_share(self, instances: Sequence[Instance], is_spare: IsSpare) -> float:
        """Return the share, 0 to 1, of these instances (at least one) without other calls."""
        found = [self._there.get(each.id) for each in instances]
        with_others = sum(each is not None and _has_others(each, is_spare) for each in found)
        return 1 - with_others / len(instances)

    def may_dispatch(
        self, instance_id: str, is_spare: IsSpare, used: float, free_share: float, at: int
    ) -> bool:
        """Return whether one more best-effort call may be dispatched to an instance.

        `used`: share of the instance in use, 0 to 1. `free_share`: share of the instances serving
        its model that have no other calls.
        """
        there = self._there.get(instance_id)
        if there is None:
            return True
        if _has_others(there, is_spare):
            return at >= there.paid_at
        others = [ended_at for name, ended_at in there.ended_at.items() if not is_spare(name)]
        alone_us = at - max(others, default=at - ALONE_US)
        return used < AT_ONCE + (1 - AT_ONCE) * min(1.0, alone_us / ALONE_US) * free_share

    def charge_best_effort(
        self, instance_id: str, cost_us: float, is_spare: IsSpare, at: int
    ) -> None:
        """Charge for a best-effort call that was just added to the calls in flight there."""
        there = self._there[instance_id]
        if _has_others(there, is_spare):
            there.paid_at = max(at, there.paid_at) + cost_us / BESIDE


def _has_others(there: _There, is_spare: IsSpare) -> bool:
    return not all(map(is_spare, there))

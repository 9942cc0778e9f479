"""How much of an instance those calls may have that go as spare, so that others do not notice.

In continuous batching every call that joins makes each step longer for all that run, and its prompt
holds all of them up. So memory and sequences that are free say little of what a call may take. Two
rules, both of ours:

- *Beside others* spare calls have a part (`BESIDE`) of the instance's time. What a call costs is
  known in µs of the whole instance (`service_cost.py`). One that goes where others run is paid for
  from that part of the time that passes, and until it is paid no other goes there. So others are
  slowed down by about as much, whatever the lengths, and however much would fit.
- *Alone* they may fill the instance by and by: at first a part of it (`AT_ONCE`), and all of it
  once no other call has been there for `ALONE_US`; but of what is beyond that first part, only the
  share of the pool's instances that have no other calls. Where another call comes, spare ones run
  to their end, and slow that down. How soon one comes is told by how long none has, and by how many
  are elsewhere: by day others find instances with little in their way, and at night all are full.
"""

from collections.abc import Callable, Sequence

from kairos.core.model import SECOND, Instance, Request

BESIDE = 0.05  # of an instance's time
AT_ONCE = 0.1  # of its memory and sequences
ALONE_US = 30 * SECOND
# Classes of which it is kept when a call of theirs ended last: more than there ever are that go as
# spare, so that the latest of others is among them. Over Kafka calls may name any.
_CLASSES = 64

IsSpare = Callable[[str], bool]  # of a class of service


class _There(dict[str, int]):
    """Calls in flight on an instance, by class of service."""

    __slots__ = ("ended_at", "paid_at")

    def __init__(self) -> None:
        self.ended_at: dict[str, int] = {}  # the latest of each class, in that order
        self.paid_at = 0.0  # spare ones are paid for by then


class SpareCalls:
    """Which calls are in flight where, by class of service, and what of that is paid for."""

    def __init__(self) -> None:
        self._there: dict[str, _There] = {}  # by instance

    def begin(self, request: Request, instance_id: str) -> None:
        there = self._there.get(instance_id)
        if there is None:
            there = self._there[instance_id] = _There()
        name = request.service_class
        there[name] = there.get(name, 0) + 1

    def end(self, request: Request, instance_id: str, at: int) -> None:
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

    def forget(self, instance_id: str) -> None:
        """It is gone, and nothing is in flight there."""
        self._there.pop(instance_id, None)

    def free_share(self, instances: Sequence[Instance], is_spare: IsSpare) -> float:
        """Of these instances, at least one, which share has no other calls, 0 to 1."""
        found = [self._there.get(each.id) for each in instances]
        with_others = sum(each is not None and _has_others(each, is_spare) for each in found)
        return 1 - with_others / len(instances)

    def may_go(
        self, instance_id: str, is_spare: IsSpare, used: float, free_share: float, at: int
    ) -> bool:
        """Whether one more may go there, of which so much is `used`, 0 to 1. `free_share`: of the
        instances that serve its model."""
        there = self._there.get(instance_id)
        if there is None:
            return True
        if _has_others(there, is_spare):
            return at >= there.paid_at
        others = [ended_at for name, ended_at in there.ended_at.items() if not is_spare(name)]
        alone_us = at - max(others, default=at - ALONE_US)
        return used < AT_ONCE + (1 - AT_ONCE) * min(1.0, alone_us / ALONE_US) * free_share

    def goes(self, instance_id: str, cost_us: float, is_spare: IsSpare, at: int) -> None:
        """A spare call, which is among those in flight there by now."""
        there = self._there[instance_id]
        if _has_others(there, is_spare):
            there.paid_at = max(at, there.paid_at) + cost_us / BESIDE


def _has_others(there: _There, is_spare: IsSpare) -> bool:
    return not all(map(is_spare, there))

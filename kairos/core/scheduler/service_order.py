"""The order in which calls that wait would go, as things stand: for people to look at.

The queues are drained by what fits where and when (`dispatching.py`), which nobody knows ahead.
Here each call goes as soon as its turn comes, nothing more arrives and nothing ends; what is
charged to a tenant for a call is what the call is expected to take. Within a queue: by the policy's
key, and of the overdue as many between them as the guard lets through. Who will be overdue by then
is not foreseen, and a key that what was learnt since has changed is the old one until it is renewed
(`queue.py`). Nothing here changes anything. Ours.
"""

from collections.abc import Iterable, Iterator, Mapping
from heapq import heapify, heappop, heapreplace, merge, nsmallest
from itertools import groupby, islice
from operator import itemgetter
from typing import Final, Literal

from kairos.core.model import Request
from kairos.core.scheduler.fair_queueing import FairQueueing, Share
from kairos.core.scheduler.policies import Key
from kairos.core.scheduler.queue import WaitQueue
from kairos.core.scheduler.queues import WaitQueues
from kairos.core.scheduler.waiting import WaitingRequest

# Why a call is where it is. returned: an instance failed it, so it goes before all that none did;
# overdue: its workflow has waited for as long as it may; policy: by the policy's key;
# aside: one like it may have killed an instance, so it has no turn until it can run alone.
Standing = Literal["returned", "overdue", "policy", "aside"]

_level_and_tenant = itemgetter(0, 1)


class QueuedCall:
    def __init__(self, request: Request, standing: Standing, work_us: int) -> None:
        self.request: Final = request
        self.standing: Final = standing
        self.work_us: Final = work_us  # that the call alone is expected to take


def service_order(queues: WaitQueues, most: int) -> list[QueuedCall]:
    """The first so many. O(n + most log n) in all that waits."""
    by_share: dict[Share, list[WaitQueue]] = {}
    for (share, _), queue in queues.open().items():
        by_share.setdefault(share, []).append(queue)
    calls = {share: _merged(own, most) for share, own in by_share.items()}
    return list(islice(_shared_out(calls, queues.fairness), most))


def _merged(queues: Iterable[WaitQueue], most: int) -> Iterator[QueuedCall]:
    """Of one share: the queue goes whose head is before those of the others."""
    heads = [_turns(queue, most) for queue in queues]
    for *_, waiting in merge(*heads):
        yield QueuedCall(waiting.request, _standing(waiting), waiting.work_us)


def _turns(queue: WaitQueue, most: int) -> Iterator[tuple[int, Key, int, str, WaitingRequest]]:
    """Yield each waiting call with what it stands by, in the order of the queue."""
    here = queue.standings()
    late = [each for each in here if each.overdue_at is not None and not each.aside]
    overdue = nsmallest(most, late, key=lambda each: (each.overdue_at, each.seq))
    keyed = nsmallest(most, here, key=lambda each: (each.aside, each.key, each.seq))
    for each, is_first in islice(queue.guard.in_turn(overdue, keyed), most):
        by_policy = not is_first and not each.aside
        place = 0 if is_first else 2 if each.aside else 1
        yield place, each.key if by_policy else (), each.seq, each.request.id, each


def _standing(waiting: WaitingRequest) -> Standing:
    if waiting.aside:
        return "aside"
    if waiting.overdue_at is None:
        return "policy"
    return "returned" if waiting.seq < 0 else "overdue"


def _shared_out(
    calls: Mapping[Share, Iterator[QueuedCall]], fairness: FairQueueing
) -> Iterator[QueuedCall]:
    """By level, then tenant, then class and app: each time that which has had least for its weight.
    Copies of the tags move with each call."""
    tags = {share: fairness.tags(share) for share in calls}
    now = {(id(each), name): each.tag(name) for own in tags.values() for each, name in own}

    def turn(share: Share) -> list[float]:
        return [now[id(each), name] for each, name in tags[share]]

    by_tenant = groupby(sorted(calls, key=_level_and_tenant), key=_level_and_tenant)
    turns = [
        (level, turn(own[0])[0], place, own)
        for place, ((level, _), own) in enumerate([(key, list(own)) for key, own in by_tenant])
    ]
    heapify(turns)
    while turns:
        level, _, place, own = turns[0]
        share = min(own, key=turn)
        call = next(calls[share], None)
        if call is None:
            own.remove(share)
        else:
            yield call
            for each, name in tags[share]:
                now[id(each), name] += each.weighed(name, call.work_us)
        if own:
            heapreplace(turns, (level, turn(share)[0], place, own))
        else:
            heappop(turns)

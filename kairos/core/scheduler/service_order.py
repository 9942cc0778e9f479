"""Predicted order in which waiting calls would be dispatched, for display. Not in the paper.

The real order depends on what fits where and when (`dispatching.py`), which cannot be foreseen.
Here each call is dispatched as soon as its turn comes, nothing arrives and nothing ends; a tenant
is charged a call's expected latency. Within a queue, calls are in policy order, with as many
overdue calls among them as the guard admits. Calls that will become overdue later are not foreseen,
and a key that learning has outdated is used until it is renewed (`queue.py`). Nothing here changes
any state.
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

# Why a call is at its place. returned: an instance failed it, so it precedes other calls;
# overdue: its workflow has waited too long; policy: by the policy's key;
# aside: quarantined until it can run alone, since a call like it may have killed an instance.
Standing = Literal["returned", "overdue", "policy", "aside"]

_level_and_tenant = itemgetter(0, 1)


class QueuedCall:
    def __init__(self, request: Request, standing: Standing, work_us: int) -> None:
        self.request: Final = request
        self.standing: Final = standing
        self.work_us: Final = work_us  # expected latency of the call alone


def service_order(queues: WaitQueues, most: int) -> list[QueuedCall]:
    """Return the first `most` calls. O(n + most log n) for n waiting calls."""
    by_share: dict[Share, list[WaitQueue]] = {}
    for (share, _), queue in queues.open().items():
        by_share.setdefault(share, []).append(queue)
    calls = {share: _merged(own, most) for share, own in by_share.items()}
    return list(islice(_shared_out(calls, queues.fairness), most))


def _merged(queues: Iterable[WaitQueue], most: int) -> Iterator[QueuedCall]:
    """Merge the queues of one share by their heads."""
    heads = [_turns(queue, most) for queue in queues]
    for *_, waiting in merge(*heads):
        yield QueuedCall(waiting.request, _standing(waiting), waiting.work_us)


def _turns(queue: WaitQueue, most: int) -> Iterator[tuple[int, Key, int, str, WaitingRequest]]:
    """Yield each waiting call with its sort key, in the order of the queue."""
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
    """Merge the shares by level, then tenant, then class and app, always the lowest tag first.

    Copies of the tags advance with each call.
    """
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

"""Remaining work of open workflows, as input for autoscaling."""

import math
from collections.abc import Sequence

from kairos.core.balancer import Balancer
from kairos.core.model import SECOND, Request
from kairos.core.pool_demand import Look, OpenWork
from kairos.core.scheduler.work_estimates import WorkEstimates
from kairos.core.workflow_tracker import WorkflowKey

MOST_LOOKED_AT = 2_000  # workflows; if there are more, every second, third, ... one is used
_PER_DOUBLING = 2  # bins per doubling: remaining times in a bin are within a factor of 1.4


def look_at_pool(balancer: Balancer, at_us: int) -> Look:
    """Return a snapshot of the pool. Changes nothing."""
    estimates = balancer.estimates
    return Look(
        at_s=at_us / SECOND,
        begun=estimates.positions.begun,
        open_work=open_work(estimates),
        running=len(balancer.ledger),
        seats=seats(balancer),
    )


def open_work(estimates: WorkEstimates) -> list[OpenWork]:
    """Group workflows with calls in flight by their remaining work per call in flight.

    Read-only. A sample of at most `MOST_LOOKED_AT` workflows stands for all.
    """
    keys = list(estimates.workflows())
    some = keys[:: math.ceil(len(keys) / MOST_LOOKED_AT) if keys else 1]
    bins: dict[int, tuple[int, int, float]] = {}
    for key in some:
        calls = list(estimates.in_flight(key))
        left_s = _left_us(estimates, key, calls) / SECOND
        place = math.floor(_PER_DOUBLING * math.log2(left_s / len(calls)))
        workflows, in_flight, work_s = bins.get(place, (0, 0, 0.0))
        bins[place] = workflows + 1, in_flight + len(calls), work_s + left_s
    scale = len(keys) / len(some) if some else 1.0
    return [OpenWork(*[scale * each for each in bins[place]]) for place in sorted(bins)]


def _left_us(estimates: WorkEstimates, key: WorkflowKey, calls: Sequence[Request]) -> float:
    """Return the same as `WorkEstimates.left_us` for one workflow, without storing anything."""
    to_come_us = estimates.to_come_us(key)
    if to_come_us is not None:
        return to_come_us + sum((estimates.call_us(each) for each in calls), 0.0)
    longest = max(calls, key=estimates.looked_at_us)
    own_us = sum((estimates.call_us(each) for each in calls if each is not longest), 0.0)
    return estimates.looked_at_us(longest) + own_us


def seats(balancer: Balancer) -> float | None:
    """Return the mean number of calls that an instance can run; None if nothing runs.

    That is what fits into its memory if calls are like the running ones, and at most its maximum of
    concurrent sequences. Prefill-only instances do not count.
    """
    ledger, at = balancer.ledger, balancer.at
    serving = ledger.served.serving(None)
    running = sum(ledger.running(each.id) for each in serving)
    tokens = sum(ledger.held_tokens(each.id, at) for each in serving)
    if not running or tokens <= 0:
        return None
    each_holds = [
        min(instance.max_num_seqs, instance.kv_tokens * running / tokens)
        if instance.kv_tokens
        else instance.max_num_seqs
        for instance in serving
    ]
    return max(1.0, sum(each_holds) / len(each_holds))

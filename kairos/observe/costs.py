"""Predicted cost of a call on every instance when it was dispatched, computed from the log.

The log has facts and decisions, but no costs. So it is replayed, and before each dispatch of the
workflow the default placement computes the cost on every instance, and which were unavailable.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from kairos.core import (
    PLACEMENTS,
    POLICIES,
    SECOND,
    Arrived,
    Balancer,
    Dispatch,
    Record,
    Request,
    Tick,
    Weighed,
    Weighing,
    can_hold,
)


class InstanceCost(msgspec.Struct, frozen=True, kw_only=True):
    """Cost of a call on one instance that serves its model, when the call was dispatched."""

    instance: str
    chosen: bool
    out: str | None  # why it was unavailable; null: it was available
    cost_s: float  # time that the call would have added there: its own, and delays of others
    cached_tokens: int  # prompt tokens expected in the prefix cache
    peak_share: float | None  # peak share of its memory in use; null: its size is unknown


Costs = Mapping[str, Sequence[InstanceCost]]  # by request id


def costs_of(records: Iterable[Record], tenant: str, workflow_id: str) -> Costs:
    """Return the costs of each dispatched call of the workflow; of its last dispatch if several.

    Calls that were in flight when the process that wrote the log crashed stay booked.
    """
    balancer = Balancer(
        POLICIES["fcfs"], PLACEMENTS["round-robin"]
    )  # unused: replay decides nothing
    weighing = Weighing(balancer.ledger)
    calls: dict[str, Request] = {}
    costs: dict[str, list[InstanceCost]] = {}
    for record in records:
        if isinstance(record.event, Arrived):
            request = record.event.request
            if (request.tenant, request.workflow_id) == (tenant, workflow_id):
                calls[request.id] = request
        rest = record
        for command in record.commands if calls else ():
            if isinstance(command, Dispatch) and command.request_id in calls:
                before, rest = _parted(rest, command)
                balancer.replay(before)
                costs[command.request_id] = _weighed(
                    balancer, weighing, calls[command.request_id], command.instance_id
                )
        balancer.replay(rest)
    return costs


def _parted(record: Record, command: Dispatch) -> tuple[Record, Record]:
    """Split a record before a command.

    Returns the fact with the commands before it, and the rest as commands of a `Tick`.
    """
    place = record.commands.index(command)
    return (
        Record(record.at, record.event, record.commands[:place]),
        Record(record.at, Tick(), record.commands[place:]),
    )


def _weighed(
    balancer: Balancer, weighing: Weighing, request: Request, chosen: str
) -> list[InstanceCost]:
    at, serving = balancer.at, balancer.ledger.served.serving(request.model)
    return [
        InstanceCost(
            instance=each.instance.id,
            chosen=each.instance.id == chosen,
            out=_out(balancer, request, each, at),
            cost_s=round(each.cost_us / SECOND, 3),
            cached_tokens=each.cached_tokens,
            peak_share=_share(each),
        )
        for each in weighing.weigh(request, serving, at)
    ]


def _out(balancer: Balancer, request: Request, weighed: Weighed, at: int) -> str | None:
    ledger, instance = balancer.ledger, weighed.instance
    if not balancer.faults.circuits.admits_call(instance.id, ledger.running(instance.id), at):
        return "its circuit breaker was open after failures"
    if not can_hold(instance, request):
        return "its memory could never hold the call"
    if instance.id in ledger.busy.ids(at):
        return "it had no free sequence, or no free tokens in a step"
    if ledger.health.is_suspended(instance.id, at):
        return "it reported a shortage of memory"
    return "too little memory until the call's end" if weighed.peak > weighed.capacity else None


def _share(weighed: Weighed) -> float | None:
    kv_tokens = weighed.instance.kv_tokens
    return None if kv_tokens is None else round(weighed.peak / kv_tokens, 3)

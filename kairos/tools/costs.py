"""What each instance would have cost when a call went, and which were out: from the log alone.

The log has facts and decisions, and no costs. So it is replayed, and before each dispatch of the
workflow the default placement is asked what it thinks of every instance.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np

from kairos.balancer import Balancer
from kairos.dispatcher.compiled import expected_tokens
from kairos.dispatcher.demand import can_hold
from kairos.dispatcher.ledger import Ledger
from kairos.dispatcher.placements import PLACEMENTS
from kairos.dispatcher.survival_packing import SurvivalPacking
from kairos.events import Arrived, Dispatch, Record, Tick
from kairos.model import SECOND, Instance, Request
from kairos.scheduler.policies import POLICIES


class InstanceCost(msgspec.Struct, frozen=True, kw_only=True):
    """Of one instance that serves the call's model, at the instant of the dispatch."""

    instance: str
    chosen: bool
    out: str | None  # why the call could not go there then; null: it could
    cost_s: float  # time that the call would have added there: its own, and that of others
    cached_tokens: int  # of its prompt, expected in the prefix cache
    peak_share: float | None  # of its memory, taken at the peak; null: it does not tell its size


Costs = Mapping[str, Sequence[InstanceCost]]  # by request id


class Weighing(SurvivalPacking):
    """The default placement, asked for its reasons. What is reserved for others does not count."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger, kernel=None)

    def weigh(
        self, request: Request, serving: Sequence[Instance], chosen: str, at: int
    ) -> list[InstanceCost]:
        if not serving:
            return []
        cached = self._ledger.prefixes.match(request) if request.prefix else {}
        here = np.array([float(cached.get(each.id, 0)) for each in serving])
        costs_us = self._costs_us(request, serving, here, expected_tokens(self._ledger, request))
        held = self._held(request, serving, at)
        peaks = self._loads(request, serving, held, at).max(axis=-1)
        room = self._capacities(serving, at)
        return [
            InstanceCost(
                instance=each.id,
                chosen=each.id == chosen,
                out=self._out(request, each, peak > capacity, at),
                cost_s=round(cost_us / SECOND, 3),
                cached_tokens=cached.get(each.id, 0),
                peak_share=None if each.kv_tokens is None else round(peak / each.kv_tokens, 3),
            )
            for each, cost_us, peak, capacity in zip(
                serving, costs_us.tolist(), peaks.tolist(), room.tolist(), strict=True
            )
        ]

    def _out(self, request: Request, instance: Instance, is_over: bool, at: int) -> str | None:
        if not can_hold(instance, request):
            return "its memory could never hold the call"
        if instance.id in self._ledger.busy.ids(at):
            return "its sequences, or the tokens of a step, were taken"
        if self._ledger.health.is_suspended(instance.id, at):
            return "it said that it was short of memory"
        return "no room to the call's end" if is_over else None


def costs_of(records: Iterable[Record], tenant: str, workflow_id: str) -> Costs:
    """Of each call of the workflow that was dispatched; of one that went several times, the last.

    What was in flight when the process crashed that wrote the log stays booked.
    """
    balancer = Balancer(POLICIES["fcfs"], PLACEMENTS["round-robin"])  # neither decides anything
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
    """The fact with what was decided before the command, and the rest as if nothing had happened
    but that time passed."""
    place = record.commands.index(command)
    return (
        Record(record.at, record.event, record.commands[:place]),
        Record(record.at, Tick(), record.commands[place:]),
    )


def _weighed(
    balancer: Balancer, weighing: Weighing, request: Request, chosen: str
) -> list[InstanceCost]:
    at, ledger = balancer.at, balancer.ledger
    serving = ledger.served.serving(request.model)
    return [
        each
        if balancer.faults.circuits.takes(each.instance, ledger.running(each.instance), at)
        else msgspec.structs.replace(each, out="it was left alone after failures")
        for each in weighing.weigh(request, serving, chosen, at)
    ]

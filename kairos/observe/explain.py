"""A workflow in a terminal, from a running service or its log: a tree, with reasons and costs."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

import msgspec
from rich.console import Console, Group
from rich.text import Text
from rich.tree import Tree

from kairos.core import (
    MAX_CALLS,
    PLACEMENTS,
    POLICIES,
    SECOND,
    Arrived,
    Balancer,
    Dispatch,
    Orchestrator,
    Record,
    Request,
    SetupError,
    Tick,
    Weighed,
    Weighing,
    can_hold,
)
from kairos.host import JsonServer
from kairos.observe.explanation import explain_call, explain_origin
from kairos.observe.fact_log import read_facts
from kairos.observe.views import CallView, WorkflowView, workflow_snapshot, workflow_view
from kairos.settings import TlsFiles

_TIMEOUT_S = 30.0
_WIDTH = 160  # without a terminal


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

    The log has facts and decisions, but no costs. So it is replayed, and before each dispatch of
    the workflow the default placement computes the cost on every instance, and which were
    unavailable. Calls that were in flight when the process that wrote the log crashed stay booked.
    """
    # A replay decides nothing: the policy and the placement are not used.
    balancer = Balancer(POLICIES["fcfs"], PLACEMENTS["round-robin"])
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
                place = rest.commands.index(command)
                balancer.replay(Record(record.at, rest.event, rest.commands[:place]))
                rest = Record(record.at, Tick(), rest.commands[place:])
                costs[command.request_id] = _weighed(
                    balancer, weighing, calls[command.request_id], command.instance_id
                )
        balancer.replay(rest)
    return costs


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


def explain_from_service(
    url: str, key: str | None, workflow_id: str, files: TlsFiles
) -> WorkflowView:
    """Fetch the view of a workflow from a running Kairos.

    Raises:
        SetupError: nothing answers there, or the answer is an error; the message has it.
    """
    server = JsonServer(url.rstrip("/").removesuffix("/v1"), files, _TIMEOUT_S)
    path = f"/v1/workflows/{quote(workflow_id, safe='')}?limit={MAX_CALLS}"
    return server.read(path, WorkflowView, key, "a Kairos")


def explain_from_log(directory: Path, tenant: str | None, workflow_id: str) -> WorkflowView:
    """Return the view of a workflow from the facts in a log. If an id was reused: the last one.

    Raises:
        SetupError: the log has no such workflow; or several tenants have one, and none is named.
        InvalidFile: a line of the log is invalid.
    """
    if not directory.is_dir():
        raise SetupError(f"there is no directory {directory}")
    tenants: set[str] = set()
    orchestrator, at = Orchestrator(), 0
    for record in read_facts(directory):
        at, event = record.at, record.event
        if isinstance(event, Arrived):
            request = event.request
            if request.workflow_id == workflow_id and tenant in (None, request.tenant):
                tenants.add(request.tenant)
            else:
                event = Tick()  # so that facts about other requests have no effect
        orchestrator.observe(Record(at, event, record.commands))
    if len(tenants) > 1:
        named = ", ".join(sorted(tenants))
        raise SetupError(f"several tenants have a workflow '{workflow_id}': name one of {named}")
    workflow = orchestrator.workflow(tenants.pop(), workflow_id) if tenants else None
    if workflow is None:
        raise SetupError(f"the log in {directory} has no workflow '{workflow_id}'")
    return workflow_view(workflow_snapshot(workflow, at), 0, MAX_CALLS)


def read_costs(directory: Path, view: WorkflowView) -> Costs:
    """Return the costs of the workflow's calls on each instance."""
    return costs_of(read_facts(directory), view.tenant, view.id)


def show_explanation(view: WorkflowView, costs: Costs) -> None:
    console = Console()
    console.width = console.width if console.is_terminal else _WIDTH
    console.print(explained(view, costs))


def explained(view: WorkflowView, costs: Costs) -> Group:
    """Return the workflow's summary and the tree of its calls.

    A call is below the call that led to it; only parallel branches are indented, so a chain stays a
    list.
    """
    calls = {call.id: call for call in view.calls}
    tree = Tree(Text(_headline(view), style="bold"), guide_style="dim")
    to_grow = [(tree, view.stages)]
    while to_grow:
        under, stages = to_grow.pop()
        below = under
        while len(stages) == 1 and len(stages[0]) == 1:  # a chain
            call = calls[stages[0][0]]
            below, stages = under.add(_told(call, costs)), call.stages
        for stage in stages:
            group = below.add(Text(f"{len(stage)} at once")) if len(stage) > 1 else below
            branches = [calls[name] for name in stage]
            to_grow += [(group.add(_told(call, costs)), call.stages) for call in branches]
    return Group(tree, *map(Text, _sums(view)))


def _headline(view: WorkflowView) -> str:
    app = f" of {view.app}" if view.app is not None else ""
    if view.ended_at is None:
        return f"{view.id}{app}: open"
    took = f"{(view.ended_at - view.started_at) / SECOND:.2f} s"
    idle = ", assumed after a long silence" if view.ended_by == "idle" else ""
    return f"{view.id}{app}: ended after {took}{idle}"


def _told(call: CallView, costs: Costs) -> Text:
    agent = call.agent or "a call without a name"
    told = (f" ({each})" for each in explain_origin(call))
    text = Text.assemble((agent, "cyan"), *told, " ", (call.id, "dim"))
    for line in (*explain_call(call), *map(_cost, costs.get(call.id, ()))):
        text.append(f"\n  {line}")
    return text


def _cost(of: InstanceCost) -> str:
    peak = "" if of.peak_share is None else f", peak memory {of.peak_share:.0%}"
    cached = f", {of.cached_tokens:,} tokens cached" if of.cached_tokens else ""
    chosen = " (chosen)" if of.chosen else ""
    out = f"; unavailable: {of.out}" if of.out is not None else ""
    return f"cost on {of.instance}{chosen}: {of.cost_s:.2f} s{peak}{cached}{out}"


def _sums(view: WorkflowView) -> list[str]:
    waited = sum(call.wait_s for call in view.calls)
    ran = sum(call.execution_s or 0.0 for call in view.calls)
    lines = [f"{view.calls_total} calls: {waited:.2f} s of waiting, {ran:.2f} s on instances"]
    if view.calls_left_out:
        lines.append(f"{view.calls_left_out} more calls were not kept")
    return lines

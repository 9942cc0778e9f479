"""Terminal output for a workflow: a tree of its calls, with the reason for each dispatch."""

from rich.console import Console, Group
from rich.text import Text
from rich.tree import Tree

from kairos.core import SECOND
from kairos.observe.costs import Costs, InstanceCost
from kairos.observe.explanation import explain_call, explain_origin
from kairos.observe.views import CallView, WorkflowView

_WIDTH = 160  # without a terminal


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

"""How a workflow is shown to a person: a tree of its calls, and why each went when it went."""

from rich.console import Console, Group
from rich.text import Text
from rich.tree import Tree

from kairos.live.frontend.views import CallView, DispatchView, WorkflowView
from kairos.model import SECOND
from kairos.refusals import REFUSALS
from kairos.tools.costs import Costs, InstanceCost

_WIDTH = 160  # where there is no terminal

_REASONS = {
    "first": "first by policy",
    "backfill": "those before it did not fit",
    "kept": "memory was kept for it, where its context is",
    "overdue": "it had waited, or been overtaken, as much as is allowed",
}
_REFUSED: dict[str, str] = {reason: each.words for reason, each in REFUSALS.items()}
_ENDS = {"failed": "failed", "cancelled": "was cancelled", "refused": "was refused"}


def show(view: WorkflowView, costs: Costs) -> None:
    console = Console()
    console.width = console.width if console.is_terminal else _WIDTH
    console.print(explained(view, costs))


def explained(view: WorkflowView, costs: Costs) -> Group:
    """The workflow's figures above a tree. A call stands below the one that led to it, further in
    only where several did: a chain stays a list."""
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
    idle = ", taken as ended since nothing more was heard of it" if view.ended_by == "idle" else ""
    return f"{view.id}{app}: ended after {took}{idle}"


def _told(call: CallView, costs: Costs) -> Text:
    agent = call.agent or "a call without a name"
    text = Text.assemble((agent, "cyan"), *_origin(call), " ", (call.id, "dim"))
    weighed = map(_cost, costs.get(call.id, ()))
    for line in (_known(call), _course(call), _reason(call.dispatch), _outlook(call), *weighed):
        if line:
            text.append(f"\n  {line}")
    return text


def _origin(call: CallView) -> list[str]:
    """Of whom it has its work, where that is not plain from the tree."""
    said = []
    if call.parents_total > 1:
        said.append(f" (joins {call.parents_total} calls)")
    if call.ambiguous:
        said.append(" (its parent is a guess: others bear the same name)")
    if call.missing:
        said.append(f" (its parent {', '.join(call.missing)} is not known)")
    return said


def _known(call: CallView) -> str:
    """What said who calls."""
    by_source: dict[str, list[str]] = {}
    for field, source in call.sources.items():
        if source != "none":
            by_source.setdefault(source, []).append(field.removesuffix("_id"))
    said = [f"{', '.join(fields)} {source}" for source, fields in by_source.items()]
    if said or call.agent is not None:  # facts of before sources were kept have none
        return "; ".join(said)
    return "nothing says who calls"


def _course(call: CallView) -> str:
    tries = f", attempt {call.attempts}" if call.attempts > 1 else ""
    if call.dispatch is None:
        state = "has waited" if call.outcome is None else f"{call.outcome} after it had waited"
        return f"{state} {call.wait_s:.3f} s{_why(call)}{tries}"
    where = f"waited {call.wait_s:.3f} s, then ran on {call.dispatch.instance}"
    if call.execution_s is None:
        return f"{where}, and still does{tries}"
    tokens = f", {call.prompt_tokens} + {call.completion_tokens} tokens"
    return (
        f"{where} for {call.execution_s:.3f} s"
        + (tokens if call.completion_tokens is not None else "")
        + (f"; it {_ENDS[call.outcome]}{_why(call)}" if call.outcome in _ENDS else "")
        + tries
    )


def _why(call: CallView) -> str:
    return f": {_REFUSED.get(call.why, call.why)}" if call.why is not None else ""


def _reason(dispatch: DispatchView | None) -> str:
    if dispatch is None:
        return ""
    rank = f", rank {dispatch.rank:.2f}" if dispatch.rank is not None else ""
    reason = _REASONS.get(dispatch.reason, dispatch.reason)
    waiting = f"{dispatch.left_waiting} others stayed waiting{rank}"
    return f"its turn: {reason}; {waiting}{_shares(dispatch)}"


def _shares(dispatch: DispatchView) -> str:
    """Why it was its tenant's turn."""
    if not dispatch.tenants_waiting:
        return ""
    said = f"; of {dispatch.tenants_waiting + 1} tenants that waited, its own had had "
    if not dispatch.tenants_before:
        return f"{said}least service for its weight"
    return f"{said}more than {dispatch.tenants_before} of which nothing fitted"


def _outlook(call: CallView) -> str:
    expected = call.dispatch and call.dispatch.expected_remaining_s
    if expected is None:
        return ""
    actual = f"; it was {call.remaining_s:.2f} s" if call.remaining_s is not None else ""
    return f"expected work of the workflow from here on: {expected:.2f} s{actual}"


def _cost(of: InstanceCost) -> str:
    peak = "" if of.peak_share is None else f", {of.peak_share:.0%} of its memory at the peak"
    cached = f", {of.cached_tokens:,} tokens cached" if of.cached_tokens else ""
    chosen = " (chosen)" if of.chosen else ""
    out = f"; out: {of.out}" if of.out is not None else ""
    return f"on {of.instance}{chosen} it costs {of.cost_s:.2f} s{peak}{cached}{out}"


def _sums(view: WorkflowView) -> list[str]:
    waited = sum(call.wait_s for call in view.calls)
    ran = sum(call.execution_s or 0.0 for call in view.calls)
    lines = [f"{view.calls_total} calls: {waited:.2f} s of waiting, {ran:.2f} s on instances"]
    if view.calls_left_out:
        lines.append(f"{view.calls_left_out} more calls were not kept")
    return lines

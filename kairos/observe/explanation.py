"""Explanation of a call's time and place of dispatch, in sentences for terminal and browser."""

from kairos.core import REFUSALS
from kairos.observe.views import CallView, DispatchView

_REASONS = {
    "first": "first by policy",
    "backfill": "the calls before it did not fit",
    "kept": "memory was retained for it, where its context is cached",
    "overdue": "the starvation guard moved it forward: its workflow had waited too long",
    "returned": "an instance had returned it",
}
_REFUSED: dict[str, str] = {reason: each.words for reason, each in REFUSALS.items()}
_ENDS = {"failed": "failed", "cancelled": "was cancelled", "refused": "was refused"}


def explain_call(call: CallView) -> list[str]:
    """Return lines on the source of the call's identity, its course, its turn and its outlook."""
    said = _known(call), _course(call), _reason(call.dispatch), _outlook(call)
    return [line for line in said if line]


def explain_origin(call: CallView) -> list[str]:
    """Return remarks on the parents of the call that the tree does not show."""
    said = []
    if call.parents_total > 1:
        said.append(f"joins {call.parents_total} calls")
    if call.ambiguous:
        said.append("its parent is a guess: several calls have that name")
    if call.missing:
        said.append(f"its parent {', '.join(call.missing)} is unknown")
    return said


def _known(call: CallView) -> str:
    """Return the sources of the call's identity."""
    by_source: dict[str, list[str]] = {}
    for field, source in call.sources.items():
        if source != "none":
            by_source.setdefault(source, []).append(field.removesuffix("_id"))
    said = [f"{', '.join(fields)} {source}" for source, fields in by_source.items()]
    if said or call.agent is not None:  # facts from old versions have no sources
        return "; ".join(said)
    return "the caller is unknown"


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
    """Return why it was its tenant's turn."""
    if not dispatch.tenants_waiting:
        return ""
    said = f"; of {dispatch.tenants_waiting + 1} waiting tenants, its own had had "
    if not dispatch.tenants_before:
        return f"{said}the least service for its weight"
    return f"{said}more than {dispatch.tenants_before} without a call that fitted"


def _outlook(call: CallView) -> str:
    expected = call.dispatch and call.dispatch.expected_remaining_s
    if expected is None:
        return ""
    actual = f"; it was {call.remaining_s:.2f} s" if call.remaining_s is not None else ""
    return f"expected work of the workflow from here on: {expected:.2f} s{actual}"

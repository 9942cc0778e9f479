"""Passes of users: functions that rewrite a declaration before Kairos's own passes.

The result is checked like any declaration. It may change anything but the output columns.
"""

from collections.abc import Callable, Sequence

from kairos.workflows.compile.check import check
from kairos.workflows.compile.invalid import InvalidFlow
from kairos.workflows.compile.operators import Declaration

Rewriting = Callable[[Declaration], Declaration]


def rewritten(declaration: Declaration, rewritings: Sequence[Rewriting]) -> Declaration:
    """Apply the functions in turn.

    Raises:
        InvalidFlow: the flow cannot be run, as declared or as rewritten; the message names the
            pass.
    """
    if rewritings:
        check(declaration)
    for each in rewritings:
        declaration = _by_one(declaration, each)
    return declaration


def _by_one(declaration: Declaration, rewriting: Rewriting) -> Declaration:
    name = getattr(rewriting, "__name__", type(rewriting).__name__)
    try:
        result = rewriting(declaration)
    except Exception as error:
        raise InvalidFlow(None, f"the pass '{name}' failed: {error}") from error
    if not isinstance(result, Declaration):
        raise InvalidFlow(None, f"the pass '{name}' gave no Declaration: {type(result).__name__}")
    try:
        check(result)
    except InvalidFlow as error:
        raise InvalidFlow(None, f"as the pass '{name}' made it: {error}") from error
    before, after = ([each.column for each in flow.outputs] for flow in (declaration, result))
    if before != after:
        raise InvalidFlow(
            None,
            f"the pass '{name}' changed which columns come out: {', '.join(before)} to "
            f"{', '.join(after)}",
        )
    return result

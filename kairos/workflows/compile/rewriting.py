"""Passes of a user's own: functions that rewrite what was declared, before the passes of Kairos.

What one gives is checked as if it had been declared so. It may say anything else than before, but
for the columns that come out.
"""

from collections.abc import Callable, Sequence

from kairos.workflows.compile.check import check
from kairos.workflows.compile.invalid import InvalidFlow
from kairos.workflows.compile.operators import Declaration

Rewriting = Callable[[Declaration], Declaration]


def rewritten(declaration: Declaration, rewritings: Sequence[Rewriting]) -> Declaration:
    """By one after the other.

    Raises:
        InvalidFlow: it cannot be run, as it was declared or as a pass made it; names the pass.
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
    before, after = _columns(declaration), _columns(result)
    if before != after:
        raise InvalidFlow(
            None,
            f"the pass '{name}' changed which columns come out: {', '.join(before)} to "
            f"{', '.join(after)}",
        )
    return result


def _columns(declaration: Declaration) -> list[str]:
    return [each.column for each in declaration.outputs]

"""Errors of declared workflows, and of single rows."""

from collections.abc import Sequence
from difflib import get_close_matches

from kairos.core import KairosError, SetupError


class InvalidFlow(SetupError):
    """A declared workflow cannot be run.

    `operator` and its `key` say where; `offset` counts lines in the value of the key, from 0.
    """

    def __init__(
        self, operator: str | None, problem: str, *, key: str | None = None, offset: int = 0
    ) -> None:
        where = f"operator '{operator}'" if operator else ""
        where += f", {key}" if operator and key else key or ""
        super().__init__(f"{where}: {problem}" if where else problem)
        self.operator = operator
        self.key = key
        self.offset = offset


def meant_by(name: str, known: Sequence[str]) -> str:
    """Return a hint for an unknown name: the nearest of the known ones, or some of them."""
    near = get_close_matches(name, known, n=1)
    return f"did you mean '{near[0]}'?" if near else f"there are {', '.join(known[:20]) or 'none'}"


class OperatorFailed(KairosError):
    """An operator has no value for one row. The message goes into the table of errors."""

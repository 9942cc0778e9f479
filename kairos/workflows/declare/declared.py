"""Operators in the order in which a program declares them."""

from collections.abc import Mapping, Sequence

from kairos.workflows.compile.operators import OnError, Operator, Params, Reference
from kairos.workflows.declare.operand import Operand, argument, constant


class DeclaredOperators:
    """Declared operators: of the flow, and of each open body, the innermost last."""

    def __init__(self) -> None:
        self._scopes: list[list[Operator]] = [[]]

    def _add(
        self,
        name: str,
        params: Params,
        inputs: Mapping[str, object] | None = None,
        bound: Mapping[str, object] | None = None,
        *,
        after: Sequence[Operand] = (),
        on_error: OnError = "fail",
        default: object = None,
        retries: int = 0,
    ) -> Operand:
        given = {**(inputs or {}), **(bound or {})}
        operator = Operator(
            name=name,
            params=params,
            inputs={key: argument(self, name, value) for key, value in given.items()},
            after=tuple(each.reference.operator for each in after),
            on_error=on_error,
            default=constant(name, default),
            retries=retries,
        )
        self._scopes[-1].append(operator)
        return Operand(self, Reference(name))

"""Commands that make the calls of flights."""

from kairos.workflows.compile.operators import (
    Embedding,
    Generation,
    Processing,
    RegisteredCall,
    Rerank,
    kind_of,
)
from kairos.workflows.compile.pipeline import Plan
from kairos.workflows.compile.retrieval import settings
from kairos.workflows.execute.commands import IssueCall, RunFunction, RunProcessor
from kairos.workflows.execute.flight import Flight
from kairos.workflows.execute.held_values import HeldValues

_FIRST_DELAY_US, _LONGEST_DELAY_US = 500_000, 30_000_000


class FlightCommands:
    """Commands for the calls of one plan."""

    def __init__(self, plan: Plan, held: HeldValues) -> None:
        self._staying, self._held = plan.staying, held
        self._depths = plan.depths
        self._partial = {each.operator: each for each in plan.partial}

    def command(self, flight: Flight) -> IssueCall | RunFunction | RunProcessor:
        """Return the command of the call's next attempt."""
        frame, slot = flight.leader
        operator, wants = flight.operator, flight.wants
        params, node, row = operator.params, frame.node(slot), frame.row
        attempt = (  # the fields of a CallAttempt
            flight.number,
            row.stage,
            node,
            row.row,
            flight.attempt,
            operator.name,
            wants.signature,
            _delay_us(flight.attempt),
        )
        if isinstance(params, Generation):
            items = self._partial.get(operator.name)
            return IssueCall(*attempt, model=params.model, body=wants.content, items=items)
        key = f"{row.stage}/{node}/{row.row}" if operator.purity == "effect" else None
        if isinstance(params, RegisteredCall):
            return RunFunction(
                *attempt,
                function=params.function,
                arguments=wants.content,
                idempotency_key=key,
                batch=params.items if params.is_batched else None,
                depth=self._depths[operator.name],
                cpus=params.cpus,
            )
        assert isinstance(params, Processing)
        return RunProcessor(
            *attempt,
            kind=kind_of(params),  # type: ignore[arg-type]
            model=params.model if isinstance(params, Embedding | Rerank) else None,
            arguments={**wants.content, **settings(params)},
            idempotency_key=key,
            depth=self._depths[operator.name],
            stays=operator.name in self._staying,
            held=self._held.places(wants.content),
        )


def _delay_us(attempt: int) -> int:
    """Return the wait before an attempt: 0.5 s before the second, then twice as long each time."""
    if attempt == 1:
        return 0
    return min(_FIRST_DELAY_US << (attempt - 2), _LONGEST_DELAY_US)

"""Timeline of a run's calls of models, functions and processors.

The driver reports when each begins and ends, in µs since any origin.
"""

import msgspec

from kairos.workflows.execute.commands import IssueCall, RunFunction, RunProcessor
from kairos.workflows.execute.facts import CallAnswered, CallBroke, FlowFact

MOST_ACTIVITIES = 10_000

Calling = IssueCall | RunFunction | RunProcessor


class Activity(msgspec.Struct, frozen=True, gc=False):
    """Call that has ended."""

    stage: int
    row: int
    node: str
    operator: str
    kind: str  # of the operator
    begun_us: int
    ended_us: int

    @property
    def us(self) -> int:
        return self.ended_us - self.begun_us


class Timeline:
    """Timeline of up to `MOST_ACTIVITIES` calls; later ones are not recorded."""

    def __init__(self) -> None:
        self.activities: list[Activity] = []
        self._begun: dict[int, tuple[Calling, int]] = {}

    def begun(self, command: Calling, at_us: int) -> None:
        if len(self.activities) + len(self._begun) < MOST_ACTIVITIES:
            self._begun[command.call] = (command, at_us + command.delay_us)

    def told(self, fact: FlowFact, at_us: int) -> None:
        if isinstance(fact, CallAnswered | CallBroke) and fact.call in self._begun:
            command, begun_us = self._begun.pop(fact.call)
            self.activities.append(
                Activity(
                    command.stage,
                    command.row,
                    command.node,
                    command.operator,
                    _kind(command),
                    begun_us,
                    at_us,
                )
            )


def _kind(command: Calling) -> str:
    match command:
        case IssueCall():
            return "llm"
        case RunFunction():
            return "call"
    return command.kind

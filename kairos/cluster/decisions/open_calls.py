"""Open calls of all performers, as the log of decisions has them."""

from collections.abc import Iterable

import msgspec

from kairos.cluster.decisions.messages import LoggedDecision
from kairos.core import (
    Arrived,
    Bounced,
    Cancelled,
    Command,
    Dispatch,
    Failed,
    Finished,
    FirstToken,
    PrefillFailed,
    Record,
    Refuse,
    Request,
    Tick,
)


class OpenCall(msgspec.Struct):
    """A call that has arrived and not ended."""

    request: Request
    performer: str
    cause: int | None  # the number of the message with which it arrived
    logged_at: int  # its arrival
    turn: int = 0
    dispatch: Dispatch | None = None  # None: it waits
    refused: Refuse | None = None  # its performer may not know of the refusal yet
    to_redo: bool = False  # cancelled, and not repeated yet
    bus_call: object = None  # if it came over the bus: it ends once its answer is committed
    course: list[LoggedDecision] = msgspec.field(default_factory=list)  # enough to replay it


class Applied(msgspec.Struct, frozen=True):
    """Calls that a decision concerned: its commands with their calls, and the calls that ended.

    Commands about calls that are not open are left out.
    """

    commands: list[tuple[OpenCall, Command]]
    ended: list[OpenCall]


class OpenCallTable:
    """Open calls by request id, in the order of their arrival.

    They follow the log, both live and when it is read back.
    """

    def __init__(self) -> None:
        self._calls: dict[str, OpenCall] = {}

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._calls

    def get(self, request_id: str) -> OpenCall | None:
        return self._calls.get(request_id)

    def remove(self, request_id: str) -> OpenCall | None:
        return self._calls.pop(request_id, None)

    def all(self) -> list[OpenCall]:
        return list(self._calls.values())

    def performed_by(self, performers: Iterable[str]) -> list[OpenCall]:
        names = {*performers}
        return [each for each in self._calls.values() if each.performer in names]

    def oldest_at(self, default: int) -> int:
        return min((each.logged_at for each in self._calls.values()), default=default)

    def running(self, instance_id: str) -> int:
        dispatches = (each.dispatch for each in self._calls.values())
        return sum(each is not None and each.instance_id == instance_id for each in dispatches)

    def course(self) -> list[LoggedDecision]:
        """Return decisions that restore all open calls, in order."""
        decisions = [each for call in self._calls.values() for each in call.course]
        return sorted(decisions, key=lambda each: each.record.at)

    def recall(self, decision: LoggedDecision) -> None:
        """Apply a decision of an earlier process.

        A call that it refused stays open: its performer may not know of the refusal.
        """
        for each in self.apply(decision).ended:
            if each.refused is not None:
                self._calls[each.request.id] = each

    def apply(self, decision: LoggedDecision, bus_call: object = None) -> Applied:
        """Apply a decision. `bus_call` is kept with a call that arrives by it."""
        ended = self._apply_event(decision, bus_call)
        commands: list[tuple[OpenCall, Command]] = []
        for command in decision.record.commands:
            if (call := self._calls.get(command.request_id)) is None:
                continue
            commands.append((call, command))
            if isinstance(command, Dispatch):
                call.dispatch = command
                call.course.append(LoggedDecision(Record(decision.record.at, Tick(), (command,))))
                continue
            call.refused = command
            if call.bus_call is None:
                ended.append(self._calls.pop(command.request_id))
        return Applied(commands, ended)

    def _apply_event(self, decision: LoggedDecision, bus_call: object) -> list[OpenCall]:
        """Apply a decision's fact, and return the calls that have ended with it."""
        event, at = decision.record.event, decision.record.at
        match event:
            case Arrived(request=request):
                arrived = OpenCall(
                    request, decision.performer, decision.cause, at, decision.turn,
                    bus_call=bus_call, course=[_without_commands(decision)],
                )  # fmt: skip
                self._calls[request.id] = arrived
            case FirstToken() | PrefillFailed() | Bounced():
                if (call := self._calls.get(event.request_id)) is not None:
                    call.course.append(_without_commands(decision))
                    if isinstance(event, Bounced):
                        call.dispatch, call.turn = None, decision.turn
            case Finished() | Failed() | Cancelled() if not decision.redo:
                call = self.remove(event.request_id)
                return [] if call is None else [call]
            case Finished() | Failed() | Cancelled():
                if (call := self._calls.get(event.request_id)) is not None:
                    call.to_redo = True
        return []


def _without_commands(decision: LoggedDecision) -> LoggedDecision:
    """Return the decision without its commands, which are kept with the calls they are about."""
    record = decision.record
    if not record.commands:
        return decision
    return msgspec.structs.replace(decision, record=Record(record.at, record.event))

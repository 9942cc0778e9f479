"""Facts that performers report, and signs of life: what a process that decides believes of them."""

from collections.abc import Callable, Iterable

import msgspec

from kairos.cluster.decisions.messages import Declined
from kairos.cluster.decisions.open_calls import OpenCallTable
from kairos.core import (
    SECOND,
    Arrived,
    Bounced,
    Cancelled,
    Clock,
    Event,
    Failed,
    Finished,
    FirstToken,
    InvalidRequest,
    KairosError,
    PlanDeclared,
    PrefillFailed,
    Progressed,
    Refuse,
    Request,
    RequestIdTaken,
    RequestInFlight,
    Unavailable,
    WorkflowEnded,
)

BEAT_S = 1.0  # between a performer's signs of life
LOST_S = 5.0  # of silence: a performer that is stopped, or cannot be reached any more
_STALLED_S = 2.5  # of our own silence: then that of others means nothing

OF_CALLS = FirstToken | PrefillFailed | Finished | Failed | Cancelled | Bounced


class Report(msgspec.Struct, frozen=True):
    performer: str
    event: Event
    turn: int = 0  # of the call that waits from then on
    cause: int | None = None  # the number of its message


class Reports:
    """Reports of performers, checked against the open calls, and decided on.

    A performer can report on its own calls only, and a call's id is open once.
    """

    def __init__(
        self,
        calls: OpenCallTable,
        clock: Clock,
        decide: Callable[[Event, Report], None],
        decline: Callable[[Report, Refuse | Declined], None],
    ) -> None:
        """`decline` tells the performer that the call of its report is refused."""
        self._calls = calls
        self._clock = clock
        self._decide = decide
        self._decline = decline

    def hear(self, report: Report, refused: Refuse | None = None) -> bool:
        """Decide on what was reported. Return whether the report concerns an open call.

        `refused` is the refusal of the report's call, if it was refused earlier.

        Raises:
            KairosError: The fact is refused, or a performer cannot report it.
        """
        event = report.event
        match event:
            case Arrived():
                self.hear_arrival(event, report)
            case Progressed():
                theirs = {
                    name: tokens
                    for name, tokens in event.completion_tokens.items()
                    if self._runs_at(name, report.performer)
                }
                if not theirs:
                    return False
                self._decide(Progressed(theirs), report)
            case WorkflowEnded() | PlanDeclared():
                self._decide(event, report)
            case FirstToken() | PrefillFailed() | Finished() | Failed() | Cancelled() | Bounced():
                call = self._calls.get(event.request_id)
                if call is not None and call.performer == report.performer:
                    self._decide(event, report)
                elif call is None and isinstance(event, Bounced):  # given up on an earlier turn
                    self.decline_unknown(event.request_id, report, refused)
                else:
                    return False
            case _:
                raise InvalidRequest(f"a performer cannot report {type(event).__name__}")
        return True

    def hear_arrival(self, arrived: Arrived, report: Report) -> None:
        """Decide on a call that has arrived at its performer, or tell it that it is refused."""
        try:
            self._decide(Arrived(self.admitted(arrived.request), arrived.body), report)
        except KairosError as error:
            self._decline(report, Declined.of(arrived.request.id, error))

    def admitted(self, request: Request) -> Request:
        """Return an arrived request, by this process's clock.

        Raises:
            KairosError: Its id is in use.
        """
        if (other := self._calls.get(request.id)) is not None:
            is_own = other.request.tenant == request.tenant
            raise (RequestInFlight if is_own else RequestIdTaken)(request.id)
        now = self._clock.now()
        return msgspec.structs.replace(
            request,
            arrived_at=min(request.arrived_at, now),
            workflow_started_at=min(request.workflow_started_at, now),
        )

    def decline_unknown(self, request_id: str, report: Report, refused: Refuse | None) -> None:
        """Refuse a call that is not open: it was refused or cancelled earlier, or is lost."""
        lost = Declined.of(request_id, Unavailable("the call is not known here any more"))
        self._decline(report, refused or lost)

    def _runs_at(self, request_id: str, performer: str) -> bool:
        call = self._calls.get(request_id)
        return call is not None and call.dispatch is not None and call.performer == performer


class Liveness:
    """Liveness of performers. Time is an argument, in µs.

    Over a bus this process's own signs of life take the same way as the others'; else its own watch
    gives them. While its own do not come, the silence of others means nothing.
    """

    def __init__(self, ourselves: str, performers: Iterable[str], now: int) -> None:
        self._ourselves = ourselves
        self._heard_at = {**dict.fromkeys(performers, now), ourselves: now}

    def hear(self, performer: str, now: int) -> None:
        silent_us = now - self._heard_at[self._ourselves]
        if performer == self._ourselves and silent_us > 2 * BEAT_S * SECOND:
            self._heard_at = dict.fromkeys(self._heard_at, now)  # theirs may be delayed, too
        self._heard_at[performer] = now

    def forget(self, performer: str) -> None:
        self._heard_at.pop(performer, None)

    def take_lost(self, now: int) -> set[str]:
        """Return the performers that fell silent, and forget them."""
        if now - self._heard_at[self._ourselves] > _STALLED_S * SECOND:
            return set()
        lost = {each for each, at in self._heard_at.items() if at + LOST_S * SECOND < now}
        for each in lost:
            del self._heard_at[each]
        return lost

"""Metering of calls from a log: facts in, one usage record per ended call.

The ledger is replayed, and a call's service is computed as for fair shares (`booking.py`).
Attempts that an instance returned count, too, since they used it. A call that was running when its
instance left is measured by the instance's last limits.
"""

from collections.abc import Hashable

import msgspec

from kairos.core import (
    EXPECTED_COMPLETION_TOKENS,
    Arrived,
    Booking,
    Bounced,
    CallRow,
    CallTracker,
    Cancelled,
    Dispatch,
    Distribution,
    Event,
    Failed,
    Finished,
    FirstToken,
    Instance,
    InstanceJoined,
    InstanceLeft,
    Ledger,
    Outcome,
    Progressed,
    Record,
    Refuse,
    Request,
    exponential_distribution,
    service_us,
)

_ANY = exponential_distribution(EXPECTED_COMPLETION_TOKENS)


class CallUse(msgspec.Struct, frozen=True, kw_only=True):
    """Usage of an ended call. Tokens are the engine's, if reported.

    A failed or refused call has no tokens, since it got no answer. A cancelled call has its
    prompt's tokens if its answer had begun, and the answer's as far as reported.
    """

    request: Request
    ended_at: int  # µs
    outcome: Outcome
    queued_us: int  # without the time of returned attempts
    service_us: float  # time of a whole instance
    kv_token_us: float  # tokens in memory times µs: the prompt, and half of the answer
    prompt_tokens: int = 0
    cached_tokens: int = 0  # prompt tokens found in the prefix cache
    answer_tokens: int = 0
    is_measured: bool = True  # False: the limits of one of its instances are unknown


class _Tries(msgspec.Struct):
    """Usage by the attempts at a call so far."""

    us: int = 0  # duration of the attempts before the last
    service_us: float = 0.0
    kv_token_us: float = 0.0
    has_begun: bool = False  # whether the last attempt's answer has begun
    generated: int = 0  # its tokens, as last reported
    is_measured: bool = True


class UsageMeter:
    """Meter of records; stores only the calls in flight.

    Facts about calls that never arrived have no effect, and decreasing times count as the latest
    one.
    """

    def __init__(self) -> None:
        self.at = 0  # time of the last fact, in µs
        self._tracker = CallTracker()
        self._ledger = Ledger(_Unexpected())
        self._limits: dict[str, Instance] = {}  # last known ones, also of instances that left
        self._tries: dict[str, _Tries] = {}  # by request id

    @property
    def under_way(self) -> int:
        """Return the number of calls that have not ended."""
        return len(self._tracker)

    def observe(self, record: Record) -> list[CallUse]:
        """Process the next record, and return the usage of the calls that it ended."""
        event, at = record.event, max(record.at, self.at)
        self.at = at
        if type(event) is Arrived:  # prefixes are unneeded: each dispatch has its cached tokens
            event = Arrived(msgspec.structs.replace(event.request, prefix=(), prefix_units=0))
        ended = self._tracker.observe(Record(at, event, record.commands))
        self._on_event(event, at)
        for command in record.commands:
            if isinstance(command, Refuse):
                self._release(command.request_id, at)
            else:
                self._dispatch(command, at)
        return [_use(row, self._tries.pop(row.request.id, _Tries())) for row in ended]

    def _on_event(self, event: Event, at: int) -> None:
        if type(event) is Finished:
            self._release(event.request_id, at, event)
        elif type(event) is Failed or type(event) is Cancelled:
            self._release(event.request_id, at)
        elif type(event) is Bounced:
            self._give_back(event.request_id, at)
        elif type(event) is FirstToken:
            self._ledger.record_first_token(event.request_id, at)
        elif type(event) is Progressed:
            self._ledger.record_progress(event.completion_tokens, at)
        elif type(event) is InstanceJoined:
            self._limits[event.instance.id] = event.instance
            self._ledger.add_instance(event.instance)
        elif type(event) is InstanceLeft:
            self._ledger.remove_instance(event.instance_id)

    def _dispatch(self, command: Dispatch, at: int) -> None:
        row = self._tracker.row(command.request_id)
        if row is None:
            return
        lost = self._ledger.booking(command.request_id)
        if lost is not None:  # lost with a process; its duration is unknown
            self._ledger.release_booking(command.request_id, at)
            self._tries.setdefault(command.request_id, _Tries()).us += at - lost.at
        self._ledger.book(row.request, command.instance_id, at)
        booking = self._ledger.booking(command.request_id)
        assert booking is not None
        booking.cached_tokens = command.cached_tokens

    def _give_back(self, request_id: str, at: int) -> None:
        """Record that a call waits again."""
        booking = self._release(request_id, at)
        if booking is not None:
            tries = self._tries[request_id]
            tries.us += at - booking.at
            tries.has_begun, tries.generated = False, 0

    def _release(
        self, request_id: str, at: int, finished: Finished | None = None
    ) -> Booking | None:
        booking = self._ledger.booking(request_id)
        if booking is None:
            return None
        instance_id = booking.instance_id
        instance = self._limits.get(instance_id)
        speed = self._ledger.served.speeds.get(instance_id)  # before `release` learns from the call
        self._ledger.release_booking(request_id, at, finished)
        prompt, _, answer = lengths = booking.lengths(finished)
        took_us = at - booking.at
        tries = self._tries.setdefault(request_id, _Tries())
        tries.has_begun = booking.first_token_at is not None or booking.generated > 0
        tries.generated = booking.generated
        tries.kv_token_us += (prompt + answer / 2) * took_us
        if instance is None or speed is None:
            tries.is_measured = False
        else:
            tries.service_us += service_us(booking, instance, speed, took_us, lengths)
        return booking


def _use(row: CallRow, tries: _Tries) -> CallUse:
    assert row.ended_at is not None
    assert row.outcome is not None
    prompt = cached = answer = 0
    if row.outcome == "finished":
        told, answered = row.prompt_tokens, row.completion_tokens
        prompt = row.request.prompt_tokens if told is None else told
        cached = min(row.cached_tokens or 0, prompt)
        answer = tries.generated if answered is None else answered
    elif row.outcome == "cancelled" and tries.has_begun:
        prompt, answer = row.request.prompt_tokens, tries.generated
    return CallUse(
        request=row.request,
        ended_at=row.ended_at,
        outcome=row.outcome,
        queued_us=max(0, row.queued_us - tries.us),
        service_us=tries.service_us,
        kv_token_us=tries.kv_token_us,
        prompt_tokens=prompt,
        cached_tokens=cached,
        answer_tokens=answer,
        is_measured=tries.is_measured,
    )


class _Unexpected:
    """Lengths without expectations: the usage of calls is known from their ends."""

    def kind(self, request: Request) -> Hashable:  # noqa: ARG002
        return None

    def completion_tokens(self, request: Request) -> Distribution | None:  # noqa: ARG002
        return _ANY  # one curve for all, instead of drawing one for each length

    def latency_us(self, request: Request) -> Distribution | None:  # noqa: ARG002
        return None

    def call_us(self, request: Request) -> int:  # noqa: ARG002
        return 1

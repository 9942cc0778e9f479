"""Calls in progress of this process by request id; the balancer's commands reach them here."""

import asyncio
from collections.abc import Callable
from itertools import count, islice
from typing import TYPE_CHECKING

from kairos.core import REFUSALS, Dispatch, Event, KairosError, Progressed, Refuse
from kairos.proxy.sse import SseReader

if TYPE_CHECKING:
    from kairos.proxy.call import Call


PROGRESS_S = 1.0  # between reports of the progress of streamed answers
CALLS_TOLD = 10_000  # in one fact; further calls are not reported


class _Turn:
    __slots__ = ("call", "instance_id", "is_over", "number")

    def __init__(self, number: int, call: "Call") -> None:
        self.number, self.call = number, call
        self.is_over = False  # it has been dispatched or refused
        self.instance_id: str | None = None


class CallsInFlight:
    """Calls in progress: passes each its dispatch or refusal.

    It is the counterpart of `kairos.core.ports.Engine`.
    """

    def __init__(self) -> None:
        self.streams: dict[str, SseReader] = {}  # answers under way
        self._expected: dict[str, _Turn] = {}
        self._running: dict[str, int] = {}  # calls, by instance
        self.sent: dict[int, Call] = {}  # those that had their turn, by its number
        self._turns = count(1)

    def expect(self, request_id: str, call: "Call") -> None:
        """Register a call that waits for its dispatch."""
        assert request_id not in self._expected
        self._expected[request_id] = _Turn(next(self._turns), call)

    def turn(self, request_id: str) -> int:
        """Return the number of the call's present turn.

        Commands for an earlier turn, of this or another call with its id, are void.
        """
        return self._expected[request_id].number

    def expects(self, request_id: str) -> bool:
        return request_id in self._expected

    def tenant_of(self, request_id: str) -> str | None:
        """Return the tenant of the call in flight with this id, or None."""
        turn = self._expected.get(request_id)
        return None if turn is None else turn.call.request.tenant

    def is_waiting(self, request_id: str) -> bool:
        """Return whether a call with this id is in flight and not yet dispatched."""
        turn = self._expected.get(request_id)
        return turn is not None and not turn.is_over

    def running(self, instance_id: str) -> int:
        """Return the number of this process's calls on the instance."""
        return self._running.get(instance_id, 0)

    def forget(self, request_id: str) -> None:
        turn = self._expected.pop(request_id, None)
        self.streams.pop(request_id, None)
        if turn is None or (instance_id := turn.instance_id) is None:
            return
        del self.sent[turn.number]
        self._running[instance_id] -= 1
        if not self._running[instance_id]:
            del self._running[instance_id]

    def dispatch(self, command: Dispatch) -> None:
        turn = self._expected[command.request_id]
        if not turn.is_over:
            turn.is_over, turn.instance_id = True, command.instance_id
            self._running[command.instance_id] = self.running(command.instance_id) + 1
            self.sent[turn.number] = turn.call
            turn.call.go(command)

    def refuse(self, command: Refuse) -> None:
        turn = self._expected[command.request_id]
        meaning = REFUSALS[command.reason]
        if not turn.is_over:
            turn.is_over = True
            turn.call.give_up(meaning.error(command), runs=False)
        elif meaning.wherever and turn.instance_id is not None:
            turn.call.give_up(meaning.error(command), runs=True)

    def decline(self, request_id: str, error: KairosError) -> None:
        """Refuse a call for a reason from another process."""
        turn = self._expected[request_id]
        if not turn.is_over:
            turn.is_over = True
            turn.call.give_up(error, runs=False)


async def tell_progress(calls: CallsInFlight, feed: Callable[[Event], None]) -> None:
    """Feed the progress once a second, until cancelled; nothing while no answer is streamed."""
    while True:
        await asyncio.sleep(PROGRESS_S)
        if (fact := progress(calls)) is not None:
            feed(fact)


def progress(calls: CallsInFlight) -> Progressed | None:
    """Return the number of tokens of each streamed answer that has begun."""
    begun = (
        (request_id, tokens)
        for request_id, stream in calls.streams.items()
        if (tokens := stream.completion_tokens)
    )
    told = dict(islice(begun, CALLS_TOLD))
    return Progressed(told) if told else None

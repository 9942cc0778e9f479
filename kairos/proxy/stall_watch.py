"""Detection of stalled calls: twice a second all calls on instances are checked.

Calls that their instances have lost are sent elsewhere (`kairos/core/faults/stalls.py`), and silent
streams get keep-alive comments. A call that begins and ends between two checks costs nothing.
"""

import asyncio
from typing import TYPE_CHECKING

from kairos.core import (
    SECOND,
    SEEN_US,
    Event,
    InstanceJoined,
    InstanceLeft,
    InstanceStatus,
    SeenCall,
    Stalls,
)
from kairos.proxy.calls_in_flight import CallsInFlight
from kairos.proxy.engine_answer import EngineAnswer

if TYPE_CHECKING:
    from kairos.proxy.call import Call

INTERVAL_S = SEEN_US / SECOND


class StallWatch:
    """Watch over the calls of one process: `run` it, and `hear` facts of instances."""

    def __init__(self, calls: CallsInFlight) -> None:
        self._calls = calls
        self._stalls = Stalls()
        self._answers: dict[int, EngineAnswer] = {}  # that were awaited at the last look

    def hear(self, event: Event) -> None:
        """Track the instances; ignore other facts."""
        match event:
            case InstanceStatus(instance_id=instance_id):
                self._stalls.record_status(event, self._calls.running(instance_id), _now())
            case InstanceJoined(instance=instance):
                self._stalls.add_instance(instance)
            case InstanceLeft(instance_id=instance_id):
                self._stalls.remove_instance(instance_id)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL_S)
            self.look()

    def look(self) -> None:
        now, sent = _now(), self._calls.sent
        answers: dict[int, EngineAnswer] = {}
        seen: list[SeenCall] = []
        for key, call in sent.items():
            in_flight = _seen(key, call)
            if in_flight is not None and call.answer is not None:
                answers[key] = call.answer
                seen.append(in_flight)
                if not in_flight.is_paused:
                    call.keep_alive((now - in_flight.since) / SECOND)
        for key in self._answers.keys() - answers.keys():
            if self._answers[key].is_whole:
                self._stalls.end_watch(key, now)
        self._answers = answers
        for call in [sent[key] for key in self._stalls.probe_calls(seen, now)]:
            call.stalled()


def _seen(key: int, call: "Call") -> SeenCall | None:
    """Return the call as seen at its instance; None if it is not there yet."""
    answer, instance_id = call.answer, call.instance_id
    since = None if answer is None else answer.silent_since
    if answer is None or instance_id is None or since is None:
        return None
    return SeenCall(
        key,
        instance_id,
        call.request.model,
        call.request.prompt_tokens,
        int(since * SECOND),
        call.body.stream,
        call.response.started,
        answer.is_paused,
    )


def _now() -> int:
    return int(asyncio.get_running_loop().time() * SECOND)

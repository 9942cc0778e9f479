"""Looks at all calls in flight twice a second, and sends elsewhere those that their instances have
forgotten (`kairos/faults/stalls.py`). A call that begins and ends between two looks costs nothing.
"""

import asyncio
from collections.abc import Callable

from kairos.events import Event, InstanceJoined, InstanceLeft, InstanceStatus
from kairos.faults.stalls import SEEN_US, InFlight, Stalls
from kairos.live.proxy.calls_in_flight import CallsInFlight
from kairos.live.proxy.engine_answer import EngineAnswer
from kairos.model import SECOND

INTERVAL_S = SEEN_US / SECOND


class StallWatch:
    """Of the calls of one process. `run` until cancelled, and `hear` of instances beside."""

    def __init__(self, calls: CallsInFlight, now_s: Callable[[], float]) -> None:
        """`now_s`: the clock of the event loop."""
        self._calls = calls
        self._now_s = now_s
        self._stalls = Stalls()
        self._answers: dict[int, EngineAnswer] = {}  # that were awaited at the last look

    def hear(self, event: Event) -> None:
        """What is said of instances; nothing else is of interest."""
        match event:
            case InstanceStatus(instance_id=instance_id):
                self._stalls.told(event, self._calls.running(instance_id), self._now())
            case InstanceJoined(instance=instance):
                self._stalls.joined(instance)
            case InstanceLeft(instance_id=instance_id):
                self._stalls.left(instance_id)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL_S)
            self.look()

    def look(self) -> None:
        now, calls = self._now(), self._calls.calls()
        answers: dict[int, EngineAnswer] = {}
        seen: list[InFlight] = []
        for key, call in calls.items():
            in_flight = call.in_flight(key)
            if in_flight is not None and call.answer is not None:
                answers[key] = call.answer
                seen.append(in_flight)
        for key in self._answers.keys() - answers.keys():
            if self._answers[key].is_whole:
                self._stalls.answered(key, now)
        self._answers = answers
        for key in self._stalls.look(seen, now):
            calls[key].stalled()

    def _now(self) -> int:
        return int(self._now_s() * SECOND)

"""So that nobody waits for all who are served at the same moment."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Any

STRETCH_S = 0.002  # of steps without a look at what has come; a call's step takes some 0.2 ms


class LoopPace:
    """Lets steps of calls begin at once for a stretch of time, and those beyond it in later turns
    of the event loop. Between turns the loop takes what has come meanwhile, so a short question
    (`/health`) need not wait until hundreds of calls that ended together have been seen to."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._ends_s = 0.0  # the stretch
        self._has_turned = True  # the loop, since the stretch began

    def begin(self, step: Callable[..., object], *arguments: object) -> None:
        """At once, or in a later turn; in order."""
        if not self._waiting:
            now_s = time.perf_counter()
            if now_s < self._ends_s:
                step(*arguments)
                return
            if self._has_turned:
                self._has_turned = False
                self._ends_s = now_s + STRETCH_S
                asyncio.get_running_loop().call_soon(self._next_turn)
                step(*arguments)
                return
        self._waiting.append((step, arguments))

    def _next_turn(self) -> None:
        waiting = self._waiting
        if not waiting:
            self._has_turned = True
            return
        asyncio.get_running_loop().call_soon(self._next_turn)
        self._ends_s = time.perf_counter() + STRETCH_S
        while waiting and time.perf_counter() < self._ends_s:
            step, arguments = waiting.popleft()
            step(*arguments)

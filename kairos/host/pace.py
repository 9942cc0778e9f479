"""Fair pacing of the event loop: no caller waits for all that is done at the same moment."""

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from typing import Any

STRETCH_S = 0.001  # of steps without a look at what has come; a call's step takes some 0.2 ms
_TURN_S = 0.00025  # of one caller, to the end of a step

_Step = tuple[Callable[..., object], tuple[Any, ...]]


class LoopPace:
    """Pacing of calls' steps in the event loop.

    Steps run at once for a stretch of time; further ones wait for later turns of the loop. Between
    turns the loop handles new input, so a short request (`/health`) need not wait until hundreds of
    calls that ended together have been handled. Waiting callers take turns, by time: thousands of
    steps of one caller do not delay another's.
    """

    def __init__(self) -> None:
        # By caller; the first is the next.
        self._waiting: OrderedDict[Hashable, deque[_Step]] = OrderedDict()
        self._ends_s = 0.0  # the stretch
        self._has_turned = True  # the loop, since the stretch began

    def may_begin(self) -> bool:
        """Return whether a step may run now. If not, pass it to `wait`."""
        if self._waiting:
            return False
        now_s = time.perf_counter()
        if now_s < self._ends_s:
            return True
        if not self._has_turned:
            return False
        self._has_turned = False
        self._ends_s = now_s + STRETCH_S
        asyncio.get_running_loop().call_soon(self._next_turn)
        return True

    def wait(self, caller: Hashable, step: Callable[..., object], *arguments: object) -> None:
        """Run a step in a later turn, after the same caller's, in turn with other callers."""
        steps = self._waiting.get(caller)
        if steps is None:
            steps = self._waiting[caller] = deque()
        steps.append((step, arguments))

    def begin_step(self, caller: Hashable, step: Callable[..., object], *arguments: object) -> None:
        """Run a step now, or in a later turn."""
        if self.may_begin():
            step(*arguments)
        else:
            self.wait(caller, step, *arguments)

    def _next_turn(self) -> None:
        waiting = self._waiting
        if not waiting:
            self._has_turned = True
            return
        asyncio.get_running_loop().call_soon(self._next_turn)
        now_s = time.perf_counter()
        self._ends_s = now_s + STRETCH_S
        while waiting and now_s < self._ends_s:
            caller, steps = next(iter(waiting.items()))
            turn_ends_s = now_s + _TURN_S
            while steps and now_s < turn_ends_s:
                step, arguments = steps.popleft()
                step(*arguments)
                now_s = time.perf_counter()
            if steps:
                waiting.move_to_end(caller)
            else:
                del waiting[caller]

"""So that nobody waits for all who are served at the same moment."""

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from typing import Any

STRETCH_S = 0.001  # of steps without a look at what has come; a call's step takes some 0.2 ms
_TURN_S = 0.00025  # of one caller, to the end of a step

_Step = tuple[Callable[..., object], tuple[Any, ...]]


class LoopPace:
    """Lets steps of calls begin at once for a stretch of time, and those beyond it in later turns
    of the event loop. Between turns the loop takes what has come meanwhile, so a short question
    (`/health`) need not wait until hundreds of calls that ended together have been seen to.

    Where steps wait, callers take turns, by time: thousands of one do not delay another's."""

    def __init__(self) -> None:
        # By caller; the first is the next.
        self._waiting: OrderedDict[Hashable, deque[_Step]] = OrderedDict()
        self._ends_s = 0.0  # the stretch
        self._has_turned = True  # the loop, since the stretch began

    def may_begin(self) -> bool:
        """Whether a step may be taken now. If not, it is to `wait`."""
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
        """Take it in a later turn: after what waits of the same caller, and in turn with others."""
        steps = self._waiting.get(caller)
        if steps is None:
            steps = self._waiting[caller] = deque()
        steps.append((step, arguments))

    def begin(self, caller: Hashable, step: Callable[..., object], *arguments: object) -> None:
        """At once, or in a later turn."""
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

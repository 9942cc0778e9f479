"""So that nobody waits for all who are served at the same moment."""

import asyncio
from collections import deque
from collections.abc import Callable

MOST = 4  # a call's step takes some 0.3 ms


class LoopPace:
    """Lets so many steps of calls begin in a turn of the event loop, the others in the next ones.
    Between turns the loop takes what has come meanwhile, so a short question (`/health`) need not
    wait until hundreds of calls that ended together have been seen to."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], object]] = deque()
        self._begun = 0  # in this turn

    def begin(self, step: Callable[[], object]) -> None:
        """At once, or in a later turn; in order."""
        if self._begun >= MOST or self._waiting:
            self._waiting.append(step)
            return
        if not self._begun:
            asyncio.get_running_loop().call_soon(self._next_turn)
        self._begun += 1
        step()

    def _next_turn(self) -> None:
        self._begun = 0
        waiting = self._waiting
        while waiting and self._begun < MOST:
            self._begun += 1
            waiting.popleft()()
        if self._begun:
            asyncio.get_running_loop().call_soon(self._next_turn)

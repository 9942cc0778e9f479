"""How long an LLM call is tried that nobody takes for now, and how often."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from itertools import count
from math import inf
from typing import Any

from kairos.errors import Unavailable
from kairos.header_names import ATTEMPT, DEADLINE
from kairos.model import SECOND

_TRIES = 5
_BACKOFF_MAX_S = 5
_ATTEMPT_MAX = 999  # that a header may say

Answer = dict[str, Any]
Ask = Callable[[Mapping[str, str]], Awaitable[Answer]]


class Patience:
    """Tries a call again that was refused for now: the same call, its attempt counted up, but never
    past the call's deadline.

    Without `limit_s` up to 4 times, each after the Retry-After it was told. With it, for as long
    as that from the first refusal: after 1 s, 2 s, 4 s, then every 5 s, or after the Retry-After
    where that is longer.
    """

    def __init__(
        self,
        limit_s: float | None = None,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._tries = _TRIES if limit_s is None else inf
        self._limit_s = inf if limit_s is None else limit_s
        self._backoff_max_s = 0 if limit_s is None else _BACKOFF_MAX_S
        self._sleep = sleep
        self._now_s = now_s

    async def until_answered(self, ask: Ask, headers: Mapping[str, str]) -> Answer:
        """Ask with these headers, the attempt counted up, until there is an answer.

        Raises:
            Unavailable: the last refusal.
            KairosError: whatever else `ask` raises.
        """
        first, until_s = int(headers.get(ATTEMPT, "1")), None
        for refused in count():
            attempt = min(first + refused, _ATTEMPT_MAX)
            try:
                return await ask({**headers, ATTEMPT: str(attempt)})
            except Unavailable as error:
                if until_s is None:
                    until_s = min(self._now_s() + self._limit_s, _deadline_s(headers))
                wait_s = max(error.retry_after_s or 0, min(2**refused, self._backoff_max_s))
                if refused + 1 == self._tries or self._now_s() + wait_s > until_s:
                    raise
            await self._sleep(wait_s)
        raise AssertionError("unreachable")


def _deadline_s(headers: Mapping[str, str]) -> float:
    return int(headers[DEADLINE]) / SECOND if DEADLINE in headers else inf

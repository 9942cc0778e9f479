"""Retries of LLM calls that are refused for now: how often, and for how long."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from itertools import count
from math import inf
from typing import Any

import msgspec

from kairos.core import SECOND, Header, Unavailable, UpstreamUnreachable

_TRIES = 5
_BROKEN_TRIES = 5  # of a call at which engines that are well break the connection
_BACKOFF_MAX_S = 5
_ATTEMPT_MAX = 999  # that a header may say

Answer = dict[str, Any]
Ask = Callable[[Mapping[str, str]], Awaitable[Answer]]


class Wait(msgspec.Struct, frozen=True):
    """A refused call that will be retried. Instants in seconds, by the clock."""

    why: str
    since_s: float
    again_s: float
    until_s: float  # then it has failed


class Patience:
    """Retry policy: repeats a refused call with its attempt counted up, until the call's deadline.

    Without `limit_s` up to 4 retries, each after the Retry-After. With it, for that long since the
    first refusal: after 1 s, 2 s, 4 s, then every 5 s, or after a longer Retry-After. A call whose
    connection breaks at engines is tried 5 times in a row: since unavailable engines get no calls,
    the call itself is probably the cause.
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
        self._waits: dict[asyncio.Future[None], Wait] = {}
        self._has_left = False

    @property
    def waits(self) -> list[Wait]:
        """Refused calls that will be retried, the oldest first."""
        return list(self._waits.values())

    def leave(self) -> None:
        """Stop all retries: refused calls fail."""
        self._has_left = True
        for each in self._waits:
            each.cancel()

    async def until_answered(self, ask: Ask, headers: Mapping[str, str]) -> Answer:
        """Send with these headers, and retry until there is an answer.

        Raises:
            Unavailable: The last refusal.
            KairosError: Any other error of `ask`.
        """
        first, since_s, until_s = int(headers.get(Header.ATTEMPT, "1")), 0.0, None
        broken = 0
        for refused in count():
            attempt = min(first + refused, _ATTEMPT_MAX)
            try:
                return await ask({**headers, Header.ATTEMPT: str(attempt)})
            except Unavailable as error:
                now_s = self._now_s()
                if until_s is None:
                    since_s, until_s = now_s, min(now_s + self._limit_s, _deadline_s(headers))
                wait_s = max(error.retry_after_s or 0, min(2**refused, self._backoff_max_s))
                broken = broken + 1 if error.code == UpstreamUnreachable.code else 0
                is_last = refused + 1 == self._tries or now_s + wait_s > until_s
                is_last = is_last or broken == _BROKEN_TRIES
                error.is_final = is_last and self._tries == inf
                if is_last or not await self._slept(
                    wait_s, Wait(str(error), since_s, now_s + wait_s, until_s)
                ):
                    raise
        raise AssertionError("unreachable")

    async def _slept(self, wait_s: float, wait: Wait) -> bool:
        """Sleep; return False if `leave` ended it early."""
        if self._has_left:
            return False
        sleeping = asyncio.ensure_future(self._sleep(wait_s))
        self._waits[sleeping] = wait
        try:
            await sleeping
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not self._has_left or (task is not None and task.cancelling()):
                raise
            return False
        finally:
            del self._waits[sleeping]
            sleeping.cancel()
        return True


def _deadline_s(headers: Mapping[str, str]) -> float:
    return int(headers[Header.DEADLINE]) / SECOND if Header.DEADLINE in headers else inf

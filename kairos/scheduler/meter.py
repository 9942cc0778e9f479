"""What has been used of one quota.

What is per minute is a token bucket that holds a minute's worth: so much may come at once, and
then as much as flows in (Turner, "New directions in communications", IEEE Communications 24 (10),
1986). A day is one of UTC.
"""

import math
from collections.abc import Iterator

from kairos.entitlements import Quota
from kairos.errors import KairosError
from kairos.model import SECOND
from kairos.rate_limits import RateLimit, RateLimits, scarcer
from kairos.scheduler.workflows_at_once import WorkflowsAtOnce
from kairos.workflow_tracker import WorkflowKey

_MINUTE_US, _DAY_US = 60 * SECOND, 86_400 * SECOND


class QuotaExceeded(KairosError):
    """The tenant, or its app or key, has used what its quota allows. `Retry-After` says when there
    is more of it."""

    status = 429
    code = "quota_exceeded"

    def __init__(self, quota: Quota, what: str, limit: int, retry_after_s: int) -> None:
        super().__init__(
            f"{quota.whose}: the quota of {limit} {what} is used up; try again in {retry_after_s} s"
        )
        self.retry_after_s = retry_after_s


class TokenBucket:
    """Holds a minute's worth."""

    def __init__(self, per_minute: int) -> None:
        self._most, self._level, self._at = per_minute, float(per_minute), 0

    def _fill(self, at: int) -> None:
        self._level = min(self._most, self._level + (at - self._at) * self._most / _MINUTE_US)
        self._at = at

    def wait_us(self, amount: float, at: int) -> float:
        """Until so much is in it; of more than it holds, until it is full."""
        self._fill(at)
        return max(0.0, min(amount, self._most) - self._level) * _MINUTE_US / self._most

    def take(self, amount: float, at: int) -> None:
        """It may go below 0; a negative amount is given back."""
        self._fill(at)
        self._level = min(self._most, self._level - amount)

    def left(self, at: int) -> RateLimit:
        reset_us = math.ceil(self.wait_us(self._most, at))
        return RateLimit(self._most, max(0, math.floor(self._level)), reset_us)


class Meter:
    """Of one quota."""

    def __init__(self, quota: Quota, idle_us: int) -> None:
        """After `idle_us` of silence a workflow has ended."""
        self.quota = quota
        self._calls = _bucket(quota.calls_per_minute)
        self._tokens = _bucket(quota.tokens_per_minute)
        self._day = self._tokens_on_day = self._at_once = 0
        self._workflows = WorkflowsAtOnce(idle_us) if quota.workflows_at_once is not None else None

    def check(self, workflow: WorkflowKey, tokens: int, at: int) -> None:
        """Raises QuotaExceeded: a call with so many tokens would use more than there is; of several
        limits, for the one that lasts longest."""
        limits = sorted(self._waits(workflow, tokens, at))
        if limits and limits[-1][0] > 0:
            wait_us, what, limit = limits[-1]
            raise QuotaExceeded(self.quota, what, limit, max(1, math.ceil(wait_us / SECOND)))

    def _waits(
        self, workflow: WorkflowKey, tokens: int, at: int
    ) -> Iterator[tuple[float, str, int]]:
        quota = self.quota
        if self._calls is not None and quota.calls_per_minute is not None:
            yield self._calls.wait_us(1, at), "calls per minute", quota.calls_per_minute
        if self._tokens is not None and quota.tokens_per_minute is not None:
            yield self._tokens.wait_us(tokens, at), "tokens per minute", quota.tokens_per_minute
        if (limit := quota.tokens_per_day) is not None:
            used = self._tokens_today(at)
            is_over = used > 0 and used + tokens > limit
            yield _day_left_us(at) if is_over else 0, "tokens per day", limit
        if (limit := quota.calls_at_once) is not None:
            yield SECOND if self._at_once >= limit else 0, "calls at once", limit
        if (limit := quota.workflows_at_once) is not None and self._workflows is not None:
            is_full = self._workflows.open(at) >= limit and workflow not in self._workflows
            yield SECOND if is_full else 0, "workflows at once", limit

    def left(self, at: int) -> RateLimits:
        """What could still come now."""
        requests = None if self._calls is None else self._calls.left(at)
        tokens = None if self._tokens is None else self._tokens.left(at)
        if (limit := self.quota.tokens_per_day) is not None:
            used = self._tokens_today(at)
            reset_us = _day_left_us(at) if used else 0
            tokens = scarcer(tokens, RateLimit(limit, max(0, limit - used), reset_us))
        return RateLimits(requests, tokens)

    def begin(self, workflow: WorkflowKey, tokens: int, at: int) -> None:
        self._at_once += 1
        if self._workflows is not None:
            self._workflows.arrived(workflow)
        if self._calls is not None:
            self._calls.take(1, at)
        self._take(tokens, at)

    def end(self, workflow: WorkflowKey, more_tokens: int, at: int, *, has_run: bool) -> None:
        """The call used so many more than it took; fewer, where that is negative."""
        self._at_once -= 1
        if self._workflows is not None:
            self._workflows.call_ended(workflow, at, has_run=has_run)
        self._take(more_tokens, at)

    def workflow_ended(self, workflow: WorkflowKey) -> None:
        if self._workflows is not None:
            self._workflows.ended(workflow)

    def _take(self, tokens: int, at: int) -> None:
        if self._tokens is not None:
            self._tokens.take(tokens, at)
        self._tokens_on_day = max(0, self._tokens_today(at) + tokens)
        self._day = at // _DAY_US

    def _tokens_today(self, at: int) -> int:
        return self._tokens_on_day if at // _DAY_US == self._day else 0


def _bucket(per_minute: int | None) -> TokenBucket | None:
    return None if per_minute is None else TokenBucket(per_minute)


def _day_left_us(at: int) -> int:
    return _DAY_US - at % _DAY_US
